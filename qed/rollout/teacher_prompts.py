"""Builds the prompt that a teacher sees: the problem with its demonstration, in the format of the run's prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qed.data.prompts.base import PromptTemplate
from qed.data.prompts.demonstrations import list_demonstrations
from qed.types import Group, Problem

PLACES = re.compile(r"\{(question|demonstration)\}")


def show_demonstrations(
    groups: Sequence[Group], template: PromptTemplate, wording: str, longest: int, counts: Counter[str]
) -> None:
    """Set, in place, the prompt that shows the teacher a demonstration, for the rollouts of each group.

    Problems without a demonstration, or whose prompt would be too long, keep an empty one and are counted.

    Args:
        groups: groups of a step.
        template: template of the policy's prompts; the teacher's differ only in the question.
        wording: text that replaces the question, with {question} and {demonstration}.
        longest: token limit of a teacher's prompt, so that the longest answer fits after it.
        counts: updated with how demonstrations were used.
    """
    for group in groups:
        text = word_problem(group[0].problem, template, wording) if group else None
        tokens = () if text is None else template.tokens(template.make_prompt(text))
        counts["guidance/without_trace"] += text is None
        counts["guidance/too_long"] += len(tokens) > longest
        if text is not None and len(tokens) <= longest:
            counts["guidance/traces"] += 1
            group[:] = [replace(rollout, teacher_prompt=tokens) for rollout in group]


def word_problem(problem: Problem, template: PromptTemplate, wording: str) -> str | None:
    """Return the text of a problem's prompt with its first demonstration.

    None if it has no demonstration, or if its data has a rendered prompt that does not contain the question.
    """
    written = list_demonstrations(template.leaf, problem)
    if not written:
        return None
    prompt, added = template.write(problem, written[0])
    values = {"question": problem.question, "demonstration": (prompt.opened + added).strip()}
    question = PLACES.sub(lambda place: values[place[1]], wording)
    if "rendered" not in problem.meta:
        return template.prompt(replace(problem, question=question)).text
    before, found, after = prompt.text.rpartition(problem.question)
    return before + question + after if found and problem.question else None
