"""The problems of the laboratory as a task: `laboratory_parts/tasks.py:TASK-PART`.

All problems come from `arithmetic`, and the parts share none. TASK is one of three:

- `withheld`: the start answers "unknown" and earns nothing; 64 of 512 problems have a demonstration.
- `little`: the start was trained briefly, mostly on answers without steps; 64 of 512 problems have a demonstration.
- `foreign`: the start of `little`; the demonstrations are in words that it has never seen, and a quarter of them
  has a wrong step before the right answer, which no check of the final answer notices.

PART is `base` (what the start was trained on), `teacher` (what the teacher was trained on, from that start), `train`,
`validation`, `test`, or `other`: another task, which the start can partly solve and a method may forget.
"""

from __future__ import annotations

import random
from dataclasses import replace

from qed.data.tasks import arithmetic, withheld
from qed.errors import UsageError
from qed.randomness import derive_seed
from qed.types import Problem

PROMPT = "think_answer"
TASKS = ("withheld", "little", "foreign")
PARTS = ("base", "teacher", "train", "validation", "test", "other")
SPLITS = tuple(f"{task}-{part}" for task in TASKS for part in PARTS)
TRAIN, SHOWN = 512, 64  # problems to train on, and how many of them have a demonstration
TEST, VALIDATION, OTHER = 400, 300, 200
NOISE = 0.25  # share of the foreign demonstrations with a wrong step
ONE_STEP, LARGEST = 800, 9  # one-step problems that the start was trained on, and their largest number


def load(split: str) -> list[Problem]:
    """Load a part of a task."""
    task, _, part = split.partition("-")
    if split not in SPLITS:
        raise UsageError(f"The laboratory has no split '{split}'. There are: {', '.join(SPLITS)}.")
    if part in ("test", "validation"):
        problems = arithmetic.load_worked("test")
        return problems[:TEST] if part == "test" else problems[TEST : TEST + VALIDATION]
    if part == "other":
        return withheld.load("cued")[-OTHER:] if task == "withheld" else draw_one_step()[:OTHER]
    if part == "base":
        known = arithmetic.load("train")[: withheld.BASE]
        return withheld.load("base") if task == "withheld" else [*known, *draw_one_step()[OTHER:]]
    problems = arithmetic.load_worked("train")[withheld.BASE :]
    write = translate if task == "foreign" else keep
    if part == "teacher":
        return [write(problem) for problem in problems[TRAIN:]]
    shown = TRAIN if task == "foreign" else SHOWN
    bare = [replace(each, solution="", meta={**each.meta, "completion": None}) for each in problems[shown:TRAIN]]
    return [*map(write, problems[:shown]), *bare]


def keep(problem: Problem) -> Problem:
    """Return a problem with its demonstration unchanged."""
    return problem


def translate(problem: Problem) -> Problem:
    """Return a problem whose demonstration is in words, with a wrong intermediate result in a quarter of them."""
    source = random.Random(derive_seed("foreign", problem.id))
    (first, result), (second, end) = (step.split("=") for step in problem.solution.split(", "))
    errors = [error for error in (-2, -1, 1, 2) if int(result) + error >= 0]
    wrong = int(result) + (source.choice(errors) if source.random() < NOISE else 0)
    second = f"{wrong}{second.removeprefix(result)}"
    return replace(problem, solution=f"{first} is {wrong}, then {second} is {end}")


def draw_one_step() -> list[Problem]:
    """Draw distinct problems with one change, worded differently from those of `arithmetic`."""
    source = random.Random(derive_seed("one step"))
    found: dict[str, Problem] = {}
    while len(found) < OTHER + ONE_STEP:
        first, amount = (source.randint(arithmetic.SMALLEST, LARGEST) for _ in range(2))
        sign, verb = source.choice((("+", "add"), ("-", "take")))
        after = first + amount if sign == "+" else first - amount
        question = f"A box holds {first} {source.choice(arithmetic.THINGS)}, {verb} {amount}: how many?"
        if after >= 0 and question not in found:
            step = f"{first}{sign}{amount}={after}"
            found[question] = Problem(f"one-step-{derive_seed(question):016x}", question, str(after), step)
    return list(found.values())
