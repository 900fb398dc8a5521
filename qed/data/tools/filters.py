"""Which problems are kept: those that differ, that are right, that fit, that are drawn. What is left out is counted."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qed.config.settings import DataSettings
from qed.data.selection import compute_percentile_length, select_problems, split_validation
from qed.data.tools.prompting import PromptView
from qed.errors import DataError, UsageError
from qed.types import Problem

SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Filters:
    """What to leave out; the fields that training has too mean what they mean there.

    Attributes:
        dedupe: `rows` that stand twice, or `questions`, the first row of each; empty keeps all.
        correct_only: only problems whose worked solution is right.
        max_prompt_percentile: of the prompts' lengths, in tokens where a model is named, else in characters.
        max_tokens: of prompt and demonstration together.
        max_characters: of question and demonstration together.
        unique_examples: so many, drawn by the seed; 0 takes all.
        validation_split: the share that is held back.
        seed: of the draws.
    """

    dedupe: str = ""
    correct_only: bool = False
    max_prompt_percentile: float = 100.0
    max_tokens: int = 0
    max_characters: int = 0
    unique_examples: int = 0
    validation_split: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that nobody can mean."""
        for name, right, wanted in (
            ("max-prompt-percentile", 0 < self.max_prompt_percentile <= 100, "lie in (0, 100]"),
            ("max-tokens", self.max_tokens >= 0, "not be negative"),
            ("max-characters", self.max_characters >= 0, "not be negative"),
            ("unique-train-examples", self.unique_examples >= 0, "not be negative"),
            ("validation-split", 0 <= self.validation_split < 1, "lie in [0, 1)"),
        ):
            if not right:
                raise UsageError(f"--{name} must {wanted}.")


def normalize_question(question: str) -> str:
    """A question by which two of them are told to be the same: whatever their capitals, spaces and last signs.

    Signs within it stay, because 2 + 3 and 2 - 3 are two questions.
    """
    return SPACES.sub(" ", unicodedata.normalize("NFKC", question)).strip(" .?!:").casefold()


def filter_problems(
    problems: Sequence[Problem], filters: Filters, asking: PromptView, left_out: Counter[str]
) -> list[Problem]:
    """The problems that are kept, before any are drawn; the others are counted by their reason.

    Raises:
        DataError: none is left.
    """
    kept = _drop_duplicates(problems, filters.dedupe, left_out)
    if filters.correct_only:
        kept = select_problems(kept, DataSettings(correct_only=True), filters.seed, left_out)
    kept = _drop_long(kept, filters, asking, left_out)
    if not kept:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
        raise DataError(f"No problem is left of {len(problems):,}: {reasons}.")
    return kept


def split_problems(
    problems: Sequence[Problem], filters: Filters, left_out: Counter[str]
) -> tuple[list[Problem], list[Problem]]:
    """The problems to train on and those held back for validation; no question is in both.

    Raises:
        DataError: none is left to train on.
    """
    kept, validation = split_validation(problems, filters.validation_split, len(problems), filters.seed)
    if not kept:
        raise DataError(f"The validation part takes all of {len(problems):,} problems, and leaves none to train on.")
    data = DataSettings(unique_examples=filters.unique_examples)
    return select_problems(kept, data, filters.seed, left_out), validation


def _drop_duplicates(problems: Sequence[Problem], dedupe: str, left_out: Counter[str]) -> list[Problem]:
    if not dedupe:
        return list(problems)
    kept = list({problem.id: problem for problem in reversed(problems)}.values())[::-1]
    left_out["rows that stand twice"] += len(problems) - len(kept)
    if dedupe == "rows":
        return kept
    first: dict[str, Problem] = {}
    for problem in kept:
        same = first.setdefault(normalize_question(problem.question), problem)
        if same is not problem:
            other = " with another answer" if same.answer != problem.answer else ""
            left_out[f"questions that stand twice{other}"] += 1
    return list(first.values())


def _drop_long(problems: list[Problem], filters: Filters, asking: PromptView, left_out: Counter[str]) -> list[Problem]:
    """Problems that are no longer than the three bounds, of which the percentile is taken first."""
    kept = problems
    if filters.max_prompt_percentile < 100 and kept:
        lengths = [asking.measure_lengths(problem)[0] for problem in kept]
        longest = compute_percentile_length(lengths, filters.max_prompt_percentile)
        reason = f"with a prompt beyond the {filters.max_prompt_percentile:g}th percentile, {longest} {asking.unit}"
        kept = _keep_up_to(kept, lengths, longest, reason, left_out)
    if filters.max_tokens:
        lengths = [sum(asking.measure_lengths(problem)) for problem in kept]
        reason = f"with more than {filters.max_tokens} {asking.unit} in prompt and answer"
        kept = _keep_up_to(kept, lengths, filters.max_tokens, reason, left_out)
    if filters.max_characters:
        lengths = [len(problem.question) + len(asking.demonstration(problem) or "") for problem in kept]
        reason = f"with more than {filters.max_characters} characters in question and answer"
        kept = _keep_up_to(kept, lengths, filters.max_characters, reason, left_out)
    return kept


def _keep_up_to(
    problems: list[Problem], lengths: list[int], longest: int, reason: str, left_out: Counter[str]
) -> list[Problem]:
    kept = [problem for problem, length in zip(problems, lengths, strict=True) if length <= longest]
    left_out[reason] += len(problems) - len(kept)
    return kept
