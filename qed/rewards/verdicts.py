"""What several rewards ask of an answer: whether it is right, and in which class of format × answer it falls."""

from __future__ import annotations

from qed.grading.equal import Verdict, equal
from qed.grading.extract import extract_final_answer
from qed.types import Grade, Rollout

NO_ANSWER = Verdict(False, "extract", "no answer found")
NO_FORMAT = Verdict(False, "format", "the format does not hold")
CLASSES = ("fmt1_ans1", "fmt1_ans0", "fmt0_ans1", "fmt0_ans0")


def judge_answer(gold: str, answer: str | None) -> Verdict:
    """Whether an answer is right; none at all is wrong."""
    return NO_ANSWER if answer is None else equal(gold, answer)


def grade_by_final_answer(rollout: Rollout, mode: str = "flexible") -> Grade:
    """1 when the final answer of the text is right, wherever it stands; the format holds when there is one."""
    found = extract_final_answer(rollout.text, mode)
    answer = found.answer if found else None
    verdict = judge_answer(rollout.problem.answer, answer)
    return Grade(
        float(verdict.correct),
        verdict.correct,
        answer is not None,
        answer,
        {"correct": float(verdict.correct)},
        verdict.tier,
        verdict.reason,
    )


def is_lenient_correct(rollout: Rollout) -> bool:
    """Whether the right answer is there at all, even in a box or a tag that never closes."""
    return grade_by_final_answer(rollout, "lenient").correct


def classify(grade: Grade, rollout: Rollout) -> str:
    """The class of an answer: whether its format holds (`fmt1`) and whether its answer is right (`ans1`).

    Most rewards never call an ill-formatted answer right. Here it is looked for by the lenient extractor, so that a
    model that cannot solve a problem is told from one that only cannot keep the format.
    """
    correct = grade.correct or (not grade.format_ok and is_lenient_correct(rollout))
    return f"fmt{int(grade.format_ok)}_ans{int(correct)}"
