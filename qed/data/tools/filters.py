"""Filter problems: drop and count duplicates, incorrect solutions and long problems, and draw a subset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qed.config.settings import DataSettings
from qed.data.questions import normalize_question
from qed.data.selection import compute_percentile_length, select_problems, split_validation
from qed.data.sources.explain import format_reasons
from qed.data.tools.prompting import PromptView
from qed.errors import DataError, UsageError
from qed.types import Problem


@dataclass(frozen=True)
class Filters:
    """Filters of the data commands; fields that also exist for training have the same meaning.

    Attributes:
        dedupe: drop duplicate `rows` or `questions`, keeping the first; empty keeps all.
        correct_only: keep only problems whose worked solution is correct.
        max_prompt_percentile: percentile of the prompts' lengths, in tokens with a model, otherwise in characters.
        max_tokens: limit of prompt and demonstration together; 0 has no limit.
        max_characters: limit of question and demonstration together; 0 has no limit.
        unique_examples: number of problems drawn with the seed; 0 uses all.
        validation_split: fraction to hold out.
        seed: random seed.
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
        """Raise on invalid values."""
        for name, valid, condition in (
            ("max-prompt-percentile", 0 < self.max_prompt_percentile <= 100, "lie in (0, 100]"),
            ("max-tokens", self.max_tokens >= 0, "not be negative"),
            ("max-characters", self.max_characters >= 0, "not be negative"),
            ("unique-train-examples", self.unique_examples >= 0, "not be negative"),
            ("validation-split", 0 <= self.validation_split < 1, "lie in [0, 1)"),
        ):
            if not valid:
                raise UsageError(f"--{name} must {condition}.")


def filter_problems(
    problems: Sequence[Problem], filters: Filters, view: PromptView, left_out: Counter[str]
) -> list[Problem]:
    """Return the problems that pass the filters, before any subset is drawn, and count the others by reason.

    Raises:
        DataError: no problem is left.
    """
    kept = _drop_duplicates(problems, filters.dedupe, left_out)
    if filters.correct_only:
        kept = select_problems(kept, DataSettings(correct_only=True), filters.seed, left_out)
    kept = _drop_long(kept, filters, view, left_out)
    if not kept:
        raise DataError(f"No problem is left of {len(problems):,}: {format_reasons(left_out)}.")
    return kept


def split_problems(
    problems: Sequence[Problem], filters: Filters, left_out: Counter[str]
) -> tuple[list[Problem], list[Problem]]:
    """Split problems into a training and a validation part without common questions.

    Raises:
        DataError: no problem is left for training.
    """
    kept, validation, _ = split_validation(problems, filters.validation_split, len(problems), filters.seed)
    if not kept:
        raise DataError(f"The validation part takes all of {len(problems):,} problems, and leaves none for training.")
    data = DataSettings(unique_examples=filters.unique_examples)
    return select_problems(kept, data, filters.seed, left_out), validation


def _drop_duplicates(problems: Sequence[Problem], dedupe: str, left_out: Counter[str]) -> list[Problem]:
    if not dedupe:
        return list(problems)
    rows: dict[str, Problem] = {}
    for problem in problems:
        rows.setdefault(problem.id, problem)
    left_out["duplicate rows"] += len(problems) - len(rows)
    if dedupe == "rows":
        return list(rows.values())
    first: dict[str, Problem] = {}
    for problem in rows.values():
        same = first.setdefault(normalize_question(problem.question), problem)
        if same is not problem:
            other = " with another answer" if same.answer != problem.answer else ""
            left_out[f"duplicate questions{other}"] += 1
    return list(first.values())


def _drop_long(problems: list[Problem], filters: Filters, view: PromptView, left_out: Counter[str]) -> list[Problem]:
    """Drop problems that exceed one of the three limits; the percentile is applied first."""
    kept = problems
    if filters.max_prompt_percentile < 100 and kept:
        lengths = [view.measure_lengths(problem, None)[0] for problem in kept]
        limit = compute_percentile_length(lengths, filters.max_prompt_percentile)
        reason = f"with a prompt beyond the {filters.max_prompt_percentile:g}th percentile, {limit} {view.unit}"
        kept = _keep_up_to(kept, lengths, limit, reason, left_out)
    if filters.max_tokens:
        lengths = [sum(view.measure_lengths(problem, view.demonstration(problem))) for problem in kept]
        reason = f"with more than {filters.max_tokens} {view.unit} in prompt and answer"
        kept = _keep_up_to(kept, lengths, filters.max_tokens, reason, left_out)
    if filters.max_characters:
        lengths = [len(problem.question) + len(view.demonstration(problem) or "") for problem in kept]
        reason = f"with more than {filters.max_characters} characters in question and answer"
        kept = _keep_up_to(kept, lengths, filters.max_characters, reason, left_out)
    return kept


def _keep_up_to(
    problems: list[Problem], lengths: list[int], limit: int, reason: str, left_out: Counter[str]
) -> list[Problem]:
    kept = [problem for problem, length in zip(problems, lengths, strict=True) if length <= limit]
    left_out[reason] += len(problems) - len(kept)
    return kept
