"""Select the training problems of a run: by the correctness of the worked solution, by number and by prompt length.

Skipped problems are counted by reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from qed.config.settings import DataSettings
from qed.data.prompts.demonstrations import ends_in_other_answer, find_reply
from qed.data.questions import normalize_question
from qed.errors import DataError
from qed.randomness import shuffle_indices
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Problem, Rollout

HELD_OUT_SHARE = 10  # one in this many questions is held out if the training data has no test split


def select_problems(
    problems: Sequence[Problem], data: DataSettings, seed: int, left_out: Counter[str]
) -> list[Problem]:
    """Return the problems that the settings select, in their original order.

    Raises:
        DataError: no problem is left.
    """
    kept = list(problems)
    if data.correct_only:
        kept = [problem for problem in kept if has_right_solution(problem)]
        left_out["problems whose worked solution is missing or wrong"] += len(problems) - len(kept)
    if 0 < data.unique_examples < len(kept):
        # A smaller selection is a subset of a larger one with the same seed: the 128 problems are among the 256.
        chosen = set(shuffle_indices(len(kept), seed, "unique examples")[: data.unique_examples])
        left_out["problems beyond data.unique_examples"] += len(kept) - len(chosen)
        kept = [problem for number, problem in enumerate(kept) if number in chosen]
    if not kept:
        raise DataError("No training problem is left: data.correct_only found no correct worked solution.")
    return kept


def has_right_solution(problem: Problem) -> bool:
    """Return whether a problem's demonstration ends in the correct answer.

    A complete reply is graded as it is. A solution that states no answer, not even in words, counts as correct, because
    the prompt appends the gold answer.
    """
    if reply := find_reply(problem):
        return grade_by_final_answer(Rollout(problem, (), (), (), reply, "stop")).correct
    return bool(problem.solution) and not ends_in_other_answer(problem.solution, problem.answer)


def hold_out(name: str, problems: Sequence[Problem], limit: int, seed: int, offline: bool) -> list[Problem]:
    """Draw held-out problems from the training problems of a task without a test split, at most one per question.

    No row with one of these questions is trained on, so questions of more than a tenth of the rows are drawn last.

    Args:
        name: name of the task.
        problems: problems of the task; only those with an answer are drawn.
        limit: maximum number of problems to draw.
        seed: seed of the draw.
        offline: whether the run samples nothing and may do without held-out problems if too few have an answer.

    Raises:
        DataError: too few problems have an answer.
    """
    answered = [problem for problem in problems if problem.answer]
    questions = [normalize_question(problem.question) for problem in answered]
    rows, few = Counter(questions), len(answered) // HELD_OUT_SHARE
    drawn: dict[str, Problem] = {}
    for index in shuffle_indices(len(answered), seed, "held out"):
        drawn.setdefault(questions[index], answered[index])
    count = min(limit, len(drawn) // HELD_OUT_SHARE or min(few, 1))
    if not answered and not offline:
        raise DataError(
            f"{name}: none of {len(problems):,} problems has an answer, so nothing can be rewarded or evaluated. If a "
            "column has it, name the column: --data.map answer=COLUMN. qed sft can train on solutions alone."
        )
    if count == 0 and not offline:
        raise DataError(
            f"{name}: {len(answered)} problems with an answer are too few to hold some out for evaluation. "
            "Name held-out problems with --evaluation.tasks."
        )
    return [drawn[question] for question in sorted(drawn, key=lambda question: rows[question] > few)[:count]]


def split_validation(
    problems: Sequence[Problem], share: float, limit: int, seed: int, imitates: bool = False
) -> tuple[list[Problem], list[Problem], str]:
    """Split problems into a training and a validation part, whose questions are drawn with the seed.

    Only questions with an answer or a preference are drawn for validation; if there are none and the run only imitates,
    any question is. All rows with the same question, ignoring case, spaces and punctuation, go into the same part, so
    that no validation question is trained on; a question with more than `share` of the rows is drawn last.

    Args:
        problems: problems to split.
        share: fraction of the questions to use for validation.
        limit: maximum number of questions to draw.
        seed: seed of the draw.
        imitates: whether the run only imitates demonstrations.

    Returns:
        the training part, the validation part, and a text that says how many questions were drawn if `limit` is below
        `share`; "" otherwise.
    """
    if not share:
        return list(problems), [], ""
    measured = [problem for problem in problems if problem.answer or problem.is_preference]
    candidates = measured or (problems if imitates else ())
    questions = list(dict.fromkeys(normalize_question(each.question) for each in candidates))
    wanted = math.ceil(share * len(questions))
    count = min(limit, wanted)
    asked = [normalize_question(problem.question) for problem in problems]
    numbers, many = Counter(asked), share * len(asked)
    drawn = sorted(shuffle_indices(len(questions), seed, "validation"), key=lambda at: numbers[questions[at]] > many)
    rows: dict[str, list[Problem]] = {questions[index]: [] for index in drawn[:count]}
    training: list[Problem] = []
    for question, problem in zip(asked, problems, strict=True):
        rows.get(question, training).append(problem)
    told = f"{count:,} of {wanted:,} questions, by evaluation.problems" if count < wanted else ""
    return training, [problem for own in rows.values() for problem in own], told


def keep_measured(validation: Sequence[Problem], imitates: bool, left_out: Counter[str]) -> list[Problem]:
    """Return the validation problems that a run measures, and count the others.

    A question with an answer is asked once, however many rows it has. Preference pairs, and demonstrations without an
    answer, are all measured.
    """
    answered = {normalize_question(problem.question): problem for problem in validation if problem.answer}

    def is_measured(problem: Problem) -> bool:
        asked = answered.get(normalize_question(problem.question))
        return problem.is_preference or (imitates if asked is None else asked is problem)

    kept = [problem for problem in validation if is_measured(problem)]
    left_out["further rows of validation questions, which are measured once"] += len(validation) - len(kept)
    return kept


def compute_percentile_length(lengths: Sequence[int], percentile: float) -> int:
    """Return the length at a percentile: the longest length within it."""
    ordered = sorted(lengths)
    return ordered[max(0, math.ceil(percentile / 100 * len(ordered)) - 1)]
