"""Reasoning Gym: procedurally generated problems, named by generator, such as `reasoning_gym:leg_counting`.

Needs the package `reasoning-gym` (Stojanovski et al. 2025, arXiv 2505.24760). The suffix `-test` gives other problems
of the same generator.
"""

from __future__ import annotations

from typing import Any

from qed.errors import UsageError, suggest_nearest
from qed.randomness import derive_seed
from qed.types import Problem

SPLITS = ()
PROMPT = "r1_zero"
COUNT = {"train": 8000, "test": 500}


def load(split: str) -> list[Problem]:
    """Generate the problems of a generator: 8,000 for training, or 500 for testing if the name ends in `-test`."""
    gym = _import_package()
    name, _, tail = split.partition("-")
    generators = sorted(gym.factory.DATASETS)
    if name not in generators or tail not in ("", *COUNT):
        raise UsageError(
            f"reasoning_gym has no generator '{split}'.{suggest_nearest(name, generators)} "
            "Name one of the package, such as --tasks reasoning_gym:leg_counting, or reasoning_gym:leg_counting-test."
        )
    part = tail or "train"
    entries = gym.create_dataset(name, size=COUNT[part], seed=derive_seed("reasoning_gym", part) % 2**31)
    return [_build_problem(entry, name) for entry in entries]


def _build_problem(entry: dict[str, Any], name: str) -> Problem:
    question, answer = str(entry["question"]), str(entry["answer"])
    address = derive_seed(question, answer)
    return Problem(f"{name}-{address:016x}", question, answer, meta={"source": name})


def _import_package() -> Any:
    try:
        import reasoning_gym  # noqa: PLC0415 -- an optional dependency
    except ImportError as error:
        raise UsageError(
            "The task reasoning_gym needs the package reasoning-gym: pip install 'qed[reasoning-gym]'."
        ) from error
    return reasoning_gym
