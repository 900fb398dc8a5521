"""Measures of an answer's tokens for the index of a step: repetition, improbable tokens, and a hash of its content."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPEATED_GRAM = 8  # tokens: step-by-step algebra repeats shorter n-grams
CONTENT_GRAM = 5
RARE_LOGP = math.log(0.01)
DIGITS = 4
# Odd multipliers, from the fractional part of the golden ratio and the finaliser of SplitMix64.
STEP = 0x9E3779B97F4A7C15
MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHINGLES = np.array([[(STEP * (2 * number + 1)) % (1 << 64)] for number in range(1, 9)], np.uint64)
POWERS = np.array([pow(STEP, number, 1 << 64) for number in range(REPEATED_GRAM)], np.uint64)  # a gram is a polynomial
MANY_GRAMS = 1 << 16  # of an answer; with more, computing eight products of each at once would take too much memory
Hashes = NDArray[np.uint64]


def measure_answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the tokens of an answer; a measure that cannot be computed from the row is None.

    Returns:
        `repetition`, the share of its token 8-grams that occurred earlier in it; `rare`, the share of its sampled
        tokens whose log-prob is below ln 0.01; `shingles`, 8 minima of 32-bit hashes of its 5-grams (minhash): the
        share that two answers have in common estimates how many 5-grams they share. All exclude an environment's text.
    """
    tokens = _read_array(row.get("tokens"), np.int64)
    logps = _read_array(row.get("logps"), np.float64)
    mask = _read_array(row.get("sampled_mask"), np.int64)
    if tokens is None:
        return {"repetition": None, "rare": None, "shingles": None}
    trained = _read_array(row.get("loss_mask"), np.int64)
    mixed = _mix(_drop_replies(tokens, mask, trained))
    return {
        "repetition": _measure_repetition(mixed),
        "rare": None if logps is None or len(logps) != len(tokens) else _measure_rare(logps, mask),
        "shingles": _hash_content(mixed),
    }


def _drop_replies(tokens: NDArray[np.int64], sampled: Any, trained: Any) -> NDArray[np.int64]:
    """Remove the tokens of an environment, which are neither sampled nor trained."""
    if sampled is None or trained is None or not len(sampled) == len(trained) == len(tokens):
        return tokens
    own: NDArray[np.int64] = tokens[(sampled != 0) | (trained != 0)]
    return own


def _measure_repetition(mixed: Hashes) -> float:
    grams = np.sort(_hash_grams(mixed, REPEATED_GRAM))
    return (
        round(_compute_share(grams[1:] == grams[:-1]) * (len(grams) - 1) / len(grams), DIGITS)
        if len(grams) > 1
        else 0.0
    )


def _measure_rare(logps: NDArray[np.float64], mask: NDArray[np.int64] | None) -> float | None:
    if mask is not None and len(mask) == len(logps):
        logps = logps[mask != 0]
    return round(_compute_share(logps < RARE_LOGP), DIGITS) if len(logps) else None


def _compute_share(chosen: NDArray[np.bool_]) -> float:
    return int(np.count_nonzero(chosen)) / len(chosen)


def _hash_content(mixed: Hashes) -> list[int]:
    """Return the minhash of an answer; an answer shorter than an n-gram counts as one n-gram."""
    if not len(mixed):
        return []
    grams = _hash_grams(mixed, min(CONTENT_GRAM, len(mixed)))
    minima = np.empty(len(SHINGLES), np.uint64)
    together = len(SHINGLES) if len(grams) <= MANY_GRAMS else 1
    for number in range(0, len(SHINGLES), together):
        part = slice(number, number + together)
        minima[part] = (grams * SHINGLES[part] >> np.uint64(32)).min(1)
    hashes: list[int] = minima.tolist()
    return hashes


def _hash_grams(mixed: Hashes, length: int) -> Hashes:
    """Hash all n-grams of `length` tokens."""
    if len(mixed) < length:
        return np.zeros(0, np.uint64)
    hashes = np.convolve(mixed, POWERS[:length], "valid")  # modulo 2^64
    # The upper bits depend on all tokens; mix them into the lower ones.
    return hashes ^ (hashes >> np.uint64(29))


def _mix(tokens: NDArray[np.int64]) -> Hashes:
    """Spread token ids over 64 bits, as SplitMix64 does."""
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(MIX[0])
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(MIX[1])
    return mixed ^ (mixed >> np.uint64(31))


def _read_array(values: Any, dtype: Any) -> Any:
    """Return a list of numbers as an array; None if it is not a list of numbers."""
    if not isinstance(values, list):
        return None
    try:
        array = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.ndim == 1 else None
