"""Limit the prompts of training problems to a number of tokens: drop long ones, or truncate their questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from qed.console.live import Console
from qed.data.prompts.base import PromptTemplate
from qed.errors import DataError
from qed.runs.run import Run
from qed.types import Problem

UNFINISHED = "\ufffd"  # what a decoder returns for a partial character
ATTEMPTS = 4  # a truncated text may have more tokens than were kept, because its edge is tokenised differently


def shorten_prompts(
    problems: Sequence[Problem],
    template: PromptTemplate,
    limit: int,
    side: Literal["drop", "left", "right"],
    run: Run,
    console: Console,
) -> list[Problem]:
    """Return the training problems with prompts of at most `limit` tokens; report what was dropped or truncated.

    Tokens are removed from one side of the question. The prompt around it is kept, so that its instruction and the tags
    that it opens are never lost.

    Raises:
        DataError: no problem is left.
    """
    lengths = template.lengths(problems)
    kept: list[Problem] = []
    cut = 0
    for problem, length in zip(problems, lengths, strict=True):
        shorter = problem if length <= limit else _shorten(problem, template, limit, side)
        cut += shorter is not None and shorter is not problem
        kept += [] if shorter is None else [shorter]
    left_out = len(problems) - len(kept)
    if left_out or cut:
        run.event("prompts_above_limit", left_out=left_out, cut=cut, limit=limit)
        console.say(
            f"data.max_prompt_tokens={limit}: of {len(problems)} training problems, {left_out} are left out and the "
            f"questions of {cut} are cut on the {side}."
            if cut
            else f"Left out {left_out} of {len(problems)} training problems: the prompt is longer than "
            f"data.max_prompt_tokens={limit}."
        )
    if not kept:
        raise DataError(
            f"No training problem is left: every prompt is longer than data.max_prompt_tokens={limit}; the shortest "
            f"has {min(lengths)} tokens."
        )
    return kept


def _shorten(problem: Problem, template: PromptTemplate, limit: int, side: str) -> Problem | None:
    """Return the problem with as much of its question as fits; None if it is to be dropped, or nothing fits."""
    if side == "drop":
        return None
    tokens = template.tokenizer(problem.question, add_special_tokens=False)["input_ids"]
    for _ in range(ATTEMPTS):
        excess = len(template.tokens(template.prompt(problem))) - limit
        if excess <= 0:
            return problem
        tokens = tokens[excess:] if side == "left" else tokens[:-excess]
        text = template.tokenizer.decode(tokens, skip_special_tokens=False)
        # A character may have several tokens; a truncated character is removed.
        text = text.lstrip(UNFINISHED) if side == "left" else text.rstrip(UNFINISHED)
        if not text:
            return None
        problem = replace(problem, question=text)
    return None
