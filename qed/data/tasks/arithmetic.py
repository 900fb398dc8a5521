"""Generated two-step word problems with worked solutions: the default task, which needs no download.

Levels 1, 2 and 3 use numbers up to 9, 20 and 99: `arithmetic:train-level2`. All questions are distinct, also between
the splits. Most demonstrations deliberately give the answer without the steps, so that a policy trained on them can
still improve by RL.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from qed.data.tasks.checking import require_split
from qed.randomness import derive_seed
from qed.types import Problem

SPLITS = ("train", "test")
PROMPT = "think_answer"
SMALLEST = 2
LARGEST = {1: 9, 2: 20, 3: 99}
COUNT = {"train": 8000, "test": 1000}
# Shares of the demonstrations with steps, and with only the formatted answer; the rest have the bare answer.
WITH_STEPS, FORMAT_ONLY = 0.35, 0.50

NAMES = "Ada Bo Cara Dev Elif Finn Goro Hedy Ines Jun Kofi Lena Milo Nia Oskar Pilar Rui Sana Tomas Uma".split()  # noqa: SIM905
THINGS = ("apples", "books", "buttons", "candles", "coins", "feathers", "marbles", "pencils", "shells", "stickers")
GAINS = ("buys {} more", "finds {} more", "is given {} more")
LOSSES = ("gives away {}", "loses {}", "sells {}")


def load(split: str) -> list[Problem]:
    """Load the problems of a split, `train` or `test`, with the suffix `-level2` or `-level3` for larger numbers."""
    return [_add_demonstration(problem, style) for problem, style in _draw_problems(split)]


def load_worked(split: str) -> list[Problem]:
    """Load the same problems, each with its steps."""
    return [problem for problem, _ in _draw_problems(split)]


def _draw_problems(split: str) -> list[tuple[Problem, float]]:
    name, _, level = split.partition("-level")
    names = [f"{base}{tail}" for base in SPLITS for tail in ("", "-level1", "-level2", "-level3")]
    require_split("arithmetic", split, names)
    # Both splits come from one stream of distinct questions, the test problems first, so they cannot overlap.
    indices = range(COUNT["test"]) if name == "test" else range(COUNT["test"], COUNT["test"] + COUNT["train"])
    return list(_draw_first(int(level or 1), indices.stop)[indices.start :])


@lru_cache(4)  # a run loads both splits
def _draw_first(level: int, count: int) -> tuple[tuple[Problem, float], ...]:
    return tuple(islice(_draw_distinct(level), count))


def _draw_distinct(level: int) -> Iterator[tuple[Problem, float]]:
    """Yield distinct problems endlessly, each with the random number that decides its kind of demonstration."""
    source = random.Random(derive_seed("arithmetic", level))
    seen: set[str] = set()
    while True:
        problem, style = _build_problem(source, level)
        if problem.question not in seen:
            seen.add(problem.question)
            yield problem, style


def _add_demonstration(problem: Problem, style: float) -> Problem:
    """Return a problem with the demonstration of its style: steps, only the formatted answer, or the bare answer."""
    if style < WITH_STEPS:
        return problem
    bare = {"completion": problem.answer} if style >= WITH_STEPS + FORMAT_ONLY else {"without_steps": True}
    return replace(problem, solution="", meta={**problem.meta, **bare})


def _build_problem(source: random.Random, level: int) -> tuple[Problem, float]:
    name, thing = source.choice(NAMES), source.choice(THINGS)
    total = source.randint(SMALLEST, LARGEST[level])
    question = f"{name} has {total} {thing}. {name} "
    steps, changes = [], []
    for _ in range(2):
        # Gains and losses are equally frequent if the total allows a loss.
        gains = total < SMALLEST or source.random() < 0.5
        amount = source.randint(SMALLEST, LARGEST[level] if gains else min(LARGEST[level], total))
        changes.append(source.choice(GAINS if gains else LOSSES).format(amount))
        after = total + amount if gains else total - amount
        steps.append(f"{total}{'+' if gains else '-'}{amount}={after}")
        total = after
    question += f"{changes[0]}, then {changes[1]}. How many {thing} does {name} have now?"
    problem = Problem(
        id=f"arithmetic-{derive_seed(question):016x}",
        question=question,
        answer=str(total),
        solution=", ".join(steps),
        meta={"level": level, "source": "arithmetic"},
    )
    return problem, source.random()
