"""Wrap reward functions written for TRL and verl, to pass them in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qed.rewards.callables import GroupFunction
from qed.rewards.forms.trl import wrap_trl
from qed.rewards.forms.verl import wrap_verl


def trl(function: Callable[..., Any]) -> GroupFunction:
    """Wrap a TRL reward function, for `qed.train(..., reward=qed.rewards.trl(function))`.

    Args:
        function: `f(prompts, completions, **columns) -> list[float | None]`, called once for all answers to a problem,
            with the data columns that it accepts.
    """
    name = _find_name(function)
    return GroupFunction(name, lambda conversational: wrap_trl(name, function, conversational))


def verl(function: Callable[..., Any]) -> GroupFunction:
    """Wrap a verl reward function, for `qed.train(..., reward=qed.rewards.verl(compute_score))`.

    Args:
        function: `compute_score(data_source, solution_str, ground_truth, extra_info=None)`, called once per answer; it
            returns a number, or a dict with `score`.
    """
    name = _find_name(function)
    return GroupFunction(name, lambda _: wrap_verl(name, function))


def _find_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
