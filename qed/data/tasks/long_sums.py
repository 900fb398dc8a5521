"""Generated sums of many numbers, which a calculator makes easy: the task for trying an environment with a tool.

All questions are distinct, also between the splits. Half of the demonstrations call the calculator, the others write
the answer directly, so that a policy trained on them can still improve by learning to call it. Without
`--environment calculator` nothing answers a call; the split `train-plain` has no demonstrations with calls.
"""

from __future__ import annotations

import random

from qed.data.tasks.checking import require_split
from qed.environments.tags import make_tags
from qed.randomness import derive_seed
from qed.types import Problem

SPLITS = ("train", "test", "train-plain")
PROMPT = "think_answer"
COUNT = {"train": 4000, "test": 500}
TERMS = (3, 5)  # the minimum and maximum number of terms
NUMBERS = (11, 99)
CALLING = 1 / 2  # the share of demonstrations that call the calculator


def load(split: str) -> list[Problem]:
    """Load the problems of a split: `train`, `test`, or `train-plain`, which has no demonstration with a call."""
    require_split("long_sums", split, SPLITS)
    name, _, plain = split.partition("-")
    source = random.Random(derive_seed("long_sums"))
    drawn: dict[str, Problem] = {}
    while len(drawn) < sum(COUNT.values()):
        problem = _build_problem(source, calling=not plain)
        drawn.setdefault(problem.question, problem)
    problems = list(drawn.values())
    # The test problems come first, so the splits cannot overlap.
    return problems[: COUNT["test"]] if name == "test" else problems[COUNT["test"] :]


def _build_problem(source: random.Random, calling: bool) -> Problem:
    numbers = [source.randint(*NUMBERS) for _ in range(source.randint(*TERMS))]
    total, terms = sum(numbers), "+".join(map(str, numbers))
    call = source.random() < CALLING and calling
    opened, closed = make_tags("result")
    question = f"What is {terms.replace('+', ' + ')}?"
    return Problem(
        id=f"long_sums-{derive_seed(question):016x}",
        question=question,
        answer=str(total),
        solution=f"<calculator>{terms}</calculator>{opened}{total}{closed}" if call else "",
        meta={"level": len(numbers), "source": "long_sums", **({} if call else {"without_steps": True})},
    )
