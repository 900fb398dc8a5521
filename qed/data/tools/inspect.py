"""Inspect data: schemas, columns, lengths, answers that the grader cannot read, and samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from qed.data.prompts.demonstrations import (
    Demonstration,
    find_trouble,
    list_demonstrations,
    list_traces,
    write_demonstration,
)
from qed.data.selection import compute_percentile_length
from qed.data.sources import schemas
from qed.data.sources.finished import recognize_prompt
from qed.data.tools.load import Data
from qed.data.tools.prompting import PromptView
from qed.grading.reading import read_answer
from qed.types import Problem

PERCENTILES = (50, 90, 99)
MAX_EXAMPLES = 5  # unreadable answers to show
MAX_GROUPS = 12  # subjects, levels and sources to show
GROUPS = ("subject", "level", "source")


def explain_unreadable(answer: str) -> str:
    """Return why the grader cannot read an answer as a value or a choice, or an empty string if it can.

    A response matches such an answer only if its text is equal, or if math-verify can compare them.
    """
    reading = read_answer(answer)
    return "" if reading.values or reading.choice else reading.trouble or "nothing to read"


def inspect_data(data: Data, view: PromptView) -> dict[str, Any]:
    """Compute the figures of a task or file."""
    problems = data.problems
    answered = [problem for problem in problems if problem.answer]
    broken = {problem.answer: reason for problem in answered if (reason := explain_unreadable(problem.answer))}
    made = [write_demonstration(view.leaf, problem) for problem in problems]
    lengths = [
        view.measure_lengths(problem, own.text or view.demonstration(problem))
        for problem, own in zip(problems, made, strict=True)
    ]
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
        **_count_demonstrations(problems, made, view),
        "unreadable_answers": sum(problem.answer in broken for problem in answered),
        "unreadable_examples": dict(list(broken.items())[:MAX_EXAMPLES]),
        "unit": view.unit,
        "lengths": {
            "question, characters": compute_percentiles([len(problem.question) for problem in problems]),
            "solution, characters": compute_percentiles(
                [len(problem.solution) for problem in problems if problem.solution]
            ),
            **_describe_lengths(lengths, shown, view.unit),
        },
        **{f"{name}s": _count_values(problems, name) for name in GROUPS},
    }


def _count_demonstrations(
    problems: Sequence[Problem], made: Sequence[Demonstration], view: PromptView
) -> dict[str, Any]:
    """Count the demonstrations, those that the prompt rebuilt from their parts, and those that do not teach its format.

    Also count the prompts that are already rendered in the data, by what rendered them.
    """
    troubles = Counter(find_trouble(view.leaf, problem, own) for problem, own in zip(problems, made, strict=True))
    several = Counter(len(list_demonstrations(view.leaf, each)) for each in problems if list_traces(each))
    rendered = [recognize_prompt(text) for problem in problems if (text := problem.meta.get("rendered"))]
    return {
        "demonstrations": sum(each.text is not None for each in made),
        "demonstrations_verbatim": sum(each.text is not None and not each.built for each in made),
        # Problems by their number of distinct demonstrations, if the data lists several.
        "demonstrations_per_problem": {str(number): count for number, count in sorted(several.items())},
        "demonstrations_in_trouble": {reason: count for reason, count in troubles.most_common() if reason},
        "rendered_prompts": dict(Counter(each.rendered_by for each in rendered if each).most_common()),
    }


def _describe_lengths(
    lengths: Sequence[tuple[int, int]], shown: Sequence[tuple[int, int]], unit: str
) -> dict[str, dict[str, float]]:
    """Summarize the lengths of prompts and answers; without a tokenizer, only of the demonstrations."""
    answers = {f"answer, {unit}": compute_percentiles([answer for _, answer in shown])}
    if unit == "characters":
        return answers
    return {
        f"prompt, {unit}": compute_percentiles([prompt for prompt, _ in lengths]),
        **answers,
        f"prompt + answer, {unit}": compute_percentiles([prompt + answer for prompt, answer in shown]),
    }


def compute_percentiles(lengths: Sequence[int]) -> dict[str, float]:
    """Compute number, mean, minimum, maximum and percentiles (lengths that so many percent do not exceed) of lengths.

    Return an empty dict without lengths.
    """
    if not lengths:
        return {}
    percentiles = {f"p{percentile}": compute_percentile_length(lengths, percentile) for percentile in PERCENTILES}
    mean = round(sum(lengths) / len(lengths), 1)
    return {"n": len(lengths), "mean": mean, "min": min(lengths), **percentiles, "max": max(lengths)}


def _count_values(problems: Sequence[Problem], name: str) -> dict[str, int]:
    return dict(Counter(str(problem.meta[name]) for problem in problems if name in problem.meta).most_common())


def pick_samples(problems: Sequence[Problem]) -> list[Problem]:
    """Pick the first, the middle and the last problem."""
    last = len(problems) - 1
    return [problems[index] for index in sorted({0, last // 2, last})]
