"""Grade one answer from Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from qed.errors import UsageError, suggest_nearest
from qed.evaluation.answer_lists import convert_gold, convert_to_text
from qed.evaluation.grade_files import extract_gold
from qed.grading.equal import equal
from qed.grading.extract import find_final_answer
from qed.rewards.verdicts import judge_found

Mode = Literal["strict", "flexible", "lenient"]


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is correct, the final answer that was compared (None if none was found), and why."""

    correct: bool
    extracted: str | None
    reason: str

    def __bool__(self) -> bool:
        return self.correct


def grade(gold: str | float, answer: str | float | None, extract: Mode = "flexible") -> Verdict:
    r"""Compare an answer with the gold answer, mathematically: `grade("1/2", r"so it is \boxed{0.5}").correct`.

    No answer text makes it raise, and the work is bounded.

    Args:
        gold: the correct answer, or a worked solution with the answer after `####`.
        answer: an answer, or a whole response, whose final answer is compared; None, NaN and pandas.NA count
            as no answer, and bytes are read as UTF-8.
        extract: where a final answer may be. `strict`: in a box, in a tag, or after `####`; `flexible`: also in words;
            `lenient`: also in a box or tag that is never closed.

    Raises:
        qed.errors.UsageError: there is no such extraction mode.
    """
    if extract not in get_args(Mode):
        modes = get_args(Mode)
        raise UsageError(
            f"extract must be one of {', '.join(modes)}, not '{extract}'.{suggest_nearest(str(extract), modes)}"
        )
    expected, text = extract_gold(convert_gold(gold)), convert_to_text(answer)
    whole = equal(expected, text)
    if whole.correct:
        return Verdict(True, text.strip(), whole.reason)
    verdict, found = judge_found(expected, find_final_answer(text, extract))
    return Verdict(verdict.correct, found, verdict.reason)
