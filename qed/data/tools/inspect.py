"""What is in data: schemas, columns, lengths, answers that the grader cannot read, and how it would be asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from qed.data.selection import compute_percentile_length
from qed.data.sources import schemas
from qed.data.tools.load import Data
from qed.data.tools.prompting import PromptView
from qed.grading.reading import read_answer
from qed.types import Problem

PERCENTILES = (50, 90, 99)
MOST_NAMED = 5  # unreadable answers that are shown
MOST_COUNTED = 12  # subjects, levels and sources that are shown
GROUPS = ("subject", "level", "source")


def explain_unreadable(answer: str) -> str:
    """Why the grader cannot read an answer as a value or a choice, or an empty text.

    Such an answer is right only where a response has it letter by letter, or where math-verify understands it.
    """
    reading = read_answer(answer)
    return "" if reading.values or reading.choice else reading.trouble or "nothing to read"


def inspect_data(data: Data, asked: PromptView) -> dict[str, Any]:
    """The figures of a task or file."""
    problems = data.problems
    answered = [problem for problem in problems if problem.answer]
    broken = {problem.answer: reason for problem in answered if (reason := explain_unreadable(problem.answer))}
    lengths = [asked.measure_lengths(problem) for problem in problems]
    shown = [(prompt, answer) for prompt, answer in lengths if answer]
    table = data.rows()
    return {
        "name": data.name,
        "split": data.split,
        "schemas": dict(Counter(map(schemas.name_schema, table)).most_common()),
        "rows": len(table) + data.left_out.total() or len(problems),
        "problems": len(problems),
        "distinct_problems": len({problem.id for problem in problems}),
        "distinct_questions": len({problem.question for problem in problems}),
        "left_out": dict(data.left_out),
        "columns": dict(Counter(str(name) for row in table for name, value in row.items() if value is not None)),
        "answers": len(answered),
        "solutions": sum(bool(problem.solution) for problem in problems),
        "demonstrations": sum(asked.demonstration(problem) is not None for problem in problems),
        "unreadable_answers": sum(problem.answer in broken for problem in answered),
        "unreadable_examples": dict(list(broken.items())[:MOST_NAMED]),
        "unit": asked.unit,
        "lengths": {
            "question, characters": compute_percentiles([len(problem.question) for problem in problems]),
            "solution, characters": compute_percentiles(
                [len(problem.solution) for problem in problems if problem.solution]
            ),
            **_describe_lengths(lengths, shown, asked.unit),
        },
        **{f"{name}s": _count_values(problems, name) for name in GROUPS},
    }


def _describe_lengths(
    lengths: Sequence[tuple[int, int]], shown: Sequence[tuple[int, int]], unit: str
) -> dict[str, dict[str, float]]:
    """Lengths as the model meets them; without a tokenizer, of the demonstration alone."""
    answers = {f"answer, {unit}": compute_percentiles([answer for _, answer in shown])}
    if unit == "characters":
        return answers
    return {
        f"prompt, {unit}": compute_percentiles([prompt for prompt, _ in lengths]),
        **answers,
        f"prompt + answer, {unit}": compute_percentiles([prompt + answer for prompt, answer in shown]),
    }


def compute_percentiles(lengths: Sequence[int]) -> dict[str, float]:
    """How lengths are spread: number, least, percentiles (the length that so many percent do not exceed), most, mean.

    Empty where there are none.
    """
    if not lengths:
        return {}
    percentiles = {f"p{percentile}": compute_percentile_length(lengths, percentile) for percentile in PERCENTILES}
    mean = round(sum(lengths) / len(lengths), 1)
    return {"n": len(lengths), "mean": mean, "min": min(lengths), **percentiles, "max": max(lengths)}


def _count_values(problems: Sequence[Problem], name: str) -> dict[str, int]:
    return dict(Counter(str(problem.meta[name]) for problem in problems if name in problem.meta).most_common())


def pick_samples(problems: Sequence[Problem]) -> list[Problem]:
    """Three problems spread over the data: the first, the middle one and the last."""
    last = len(problems) - 1
    return [problems[index] for index in sorted({0, last // 2, last})]
