"""Compute tails and quantiles of Student's t-distribution, vectorized."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVEL = 0.05  # two-sided, for 95 % intervals
Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution
MAX_DF = 1e7  # here Student's distribution equals the normal one to seven digits
TERMS, ROUNDS = 400, 30
_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def compute_student_tail(score: Floats, df: Floats) -> Floats:
    """Compute the two-sided tail probability of a score under Student's distribution.

    This is the regularized incomplete beta function of (df / 2, 1 / 2) at df / (df + score²).
    """
    squared, freedom = np.broadcast_arrays(np.asarray(score, np.float64) ** 2, np.minimum(df, MAX_DF))
    return _compute_beta(freedom / (freedom + squared), squared / (freedom + squared), freedom / 2)


def compute_student_quantile(df: Floats, tail: float = LEVEL) -> Floats:
    """Compute the score whose two-sided tail probability under Student's distribution is `tail`, for each `df`.

    Uses Newton's method on log score and log tail, whose relation is nearly linear for small `df`.
    """
    freedom = np.minimum(np.asarray(df, np.float64), MAX_DF)
    if freedom.size == 1:  # breakdowns repeat the same few values
        return np.full_like(freedom, _find_quantile(float(freedom.reshape(())), tail))
    return _solve_quantiles(freedom, tail)


@lru_cache(maxsize=4096)
def _find_quantile(freedom: float, tail: float) -> float:
    return float(_solve_quantiles(np.array([freedom]), tail)[0])


def _solve_quantiles(freedom: Floats, tail: float) -> Floats:
    scale = _lgamma((freedom + 1) / 2) - _lgamma(freedom / 2) - np.log(freedom * math.pi) / 2
    score = np.full_like(freedom, Z)
    for _ in range(ROUNDS):
        found = compute_student_tail(score, freedom)
        slope = -2 * score * np.exp(scale - (freedom + 1) / 2 * np.log1p(score**2 / freedom)) / found
        step = np.clip((np.log(tail) - np.log(found)) / slope, -1, 3)
        score = score * np.exp(step)
        if (np.abs(step) < 1e-14).all():
            break
    return score


def _compute_beta(share: Floats, rest: Floats, first: Floats) -> Floats:
    """Compute the regularized incomplete beta function of (`first`, 1/2) at `share` = 1 - `rest`.

    The continued fraction (DLMF 8.17.22) converges fast below (a + 1) / (a + b + 2); above, use one minus the function
    with exchanged arguments.
    """
    second = np.full_like(first, 0.5)
    exchanged = share > (first + 1) / (first + second + 2)
    a, b = np.where(exchanged, second, first), np.where(exchanged, first, second)
    x, y = np.where(exchanged, rest, share), np.where(exchanged, share, rest)
    with np.errstate(divide="ignore"):
        logs = a * np.log(x) + b * np.log(y) + _lgamma(a + b) - _lgamma(a) - _lgamma(b)
    part = np.where(x > 0, np.exp(logs) / (a * _compute_fraction(x, a, b)), 0.0)
    tail: Floats = np.where(exchanged, 1 - part, part)
    return tail


def _compute_fraction(x: Floats, a: Floats, b: Floats) -> Floats:
    """Compute the continued fraction 1 + d1 / (1 + d2 / (1 + …)) by Lentz's algorithm."""
    value = ratio = np.ones_like(x)
    inverse = np.zeros_like(x)
    for number in range(1, TERMS):
        half, odd = divmod(number, 2)
        if odd:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        inverse = 1 / (1 + term * inverse)
        ratio = 1 + term / ratio
        value = value * ratio * inverse
        if (np.abs(ratio * inverse - 1) < 1e-15).all():
            break
    return value
