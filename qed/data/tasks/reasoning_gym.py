"""Reasoning Gym: problems made by procedure, named after its generators, such as `reasoning_gym:leg_counting`.

Needs the package `reasoning-gym` (Stojanovski et al. 2025, arXiv 2505.24760). `-test` behind the name gives other
problems of the same kind.
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
    """The problems of a generator: 8,000 to train on, or 500 to test with where `-test` stands behind its name."""
    gym = _import_package()
    name, _, tail = split.partition("-")
    kinds = sorted(gym.factory.DATASETS)
    if name not in kinds or tail not in ("", *COUNT):
        raise UsageError(
            f"reasoning_gym has no generator '{split}'.{suggest_nearest(name, kinds)} "
            "Name one of its package with --tasks reasoning_gym:leg_counting, and reasoning_gym:leg_counting-test."
        )
    part = tail or "train"
    made = gym.create_dataset(name, size=COUNT[part], seed=derive_seed("reasoning_gym", part) % 2**31)
    return [_build_problem(entry, name) for entry in made]


def _build_problem(entry: dict[str, Any], name: str) -> Problem:
    question, answer = str(entry["question"]), str(entry["answer"])
    address = derive_seed(question, answer)
    return Problem(f"{name}-{address:016x}", question, answer, meta={"source": name})


def _import_package() -> Any:
    try:
        import reasoning_gym  # noqa: PLC0415 -- an extra, which may be absent
    except ImportError as error:
        raise UsageError(
            "The task reasoning_gym needs the package reasoning-gym: pip install 'qed[reasoning-gym]'."
        ) from error
    return reasoning_gym
