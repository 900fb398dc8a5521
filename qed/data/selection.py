"""Which training problems a run takes: distinct ones, so many, those whose worked solution is right, those that fit.

Every problem left out is counted under its reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from qed.config.settings import DataSettings
from qed.errors import DataError
from qed.grading.equal import equal
from qed.grading.extract import extract_final_answer
from qed.randomness import shuffle_indices
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Problem, Rollout


def select_problems(
    problems: Sequence[Problem], data: DataSettings, seed: int, left_out: Counter[str]
) -> list[Problem]:
    """The problems that the settings ask for, in their order.

    Raises:
        DataError: none is left.
    """
    kept = list(problems)
    if data.correct_only:
        kept = [problem for problem in kept if has_right_solution(problem)]
        left_out["problems whose worked solution is missing or wrong"] += len(problems) - len(kept)
    if 0 < data.unique_examples < len(kept):
        # A part drawn by the seed, so that 128 of them are among the 256 of the same seed.
        chosen = set(shuffle_indices(len(kept), seed, "unique examples")[: data.unique_examples])
        left_out["problems beyond data.unique_examples"] += len(kept) - len(chosen)
        kept = [problem for number, problem in enumerate(kept) if number in chosen]
    if not kept:
        raise DataError("No training problem is left: data.correct_only found no worked solution that is right.")
    return kept


def has_right_solution(problem: Problem) -> bool:
    """Whether a problem's demonstration ends in the right answer.

    A solution that states no answer of its own is right: the prompt writes the known answer behind it.
    """
    completion = problem.meta.get("completion") or ""
    if completion:
        return grade_by_final_answer(Rollout(problem, (), (), (), completion, "stop")).correct
    stated = extract_final_answer(problem.solution, "strict")
    return bool(problem.solution) and (stated is None or equal(problem.answer, stated.answer).correct)


def split_validation(
    problems: Sequence[Problem], share: float, most: int, seed: int
) -> tuple[list[Problem], list[Problem]]:
    """The training problems, and a part of them held back for validation: problems with an answer or a preference,
    drawn by the seed.

    All rows that ask the same question go together, so that nothing validated on is trained on.
    """
    if not share:
        return list(problems), []
    answered = list(
        {problem.question: problem for problem in problems if problem.answer or problem.is_preference}.values()
    )
    count = min(most, math.ceil(share * len(answered)))
    drawn = [answered[index] for index in shuffle_indices(len(answered), seed, "validation")[:count]]
    asked = {problem.question for problem in drawn}
    return [problem for problem in problems if problem.question not in asked], drawn


def compute_percentile_length(lengths: Sequence[int], percentile: float) -> int:
    """The length of the prompt at a percentile: the longest that is kept."""
    ordered = sorted(lengths)
    return ordered[max(0, math.ceil(percentile / 100 * len(ordered)) - 1)]
