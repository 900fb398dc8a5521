"""Which answer each reward reads: in its tag, before the next turn, of a sentence, of several letters."""

from __future__ import annotations

import pytest

from qed.rewards import base
from qed.types import Grade, Problem, Rollout


def graded(entry: str, text: str, *options: str, gold: str = "12", **meta: object) -> Grade:
    rollout = Rollout(Problem("p", "?", gold, meta=meta), (), (), (), text, "stop")
    return base.load_reward([entry], options, max_tokens=100).grade([rollout])[0]


def paid(entry: str, text: str, *options: str) -> tuple[float, bool, bool]:
    grade = graded(entry, text, *options)
    return grade.reward, grade.correct, grade.format_ok


@pytest.mark.parametrize("grader", ["fast", "slow"])
def test_the_reference_of_question_only_reads_the_whole_text(grader: str) -> None:
    text = "\\boxed{13} <|im_end|> user \\boxed{12}"
    assert paid("question_only", text, f"question_only.grader={grader}") == (1.0, True, True)


@pytest.mark.parametrize(
    "text",
    [
        "</think> <answer></answer> #### 12",
        "</think> <answer> </answer> \\boxed{12}",
        "\\boxed{12} </think> <answer></answer>",
        "</think> <answer>13</answer> <answer></answer> \\boxed{12}",
        "</answer></think> <answer>12",
    ],
)
def test_r1_zero_wants_the_answer_in_its_tag(text: str) -> None:
    assert paid("r1_zero", text) == (0.0, False, True)


SENTENCES = (
    "Therefore, the answer is 12.",
    "Thus, she has $\\boxed{12}$ left.",
    "Natalia sold 12 clips altogether.",
    "Therefore, \\[\\boxed{12}\\]",
)


def test_a_sentence_in_the_tags_is_read_as_by_accuracy() -> None:
    formats = (
        ("think_answer", "<think>x</think><answer>{}</answer>", 1.1, 0.1),
        ("r1_zero", "x</think> <answer>{}</answer>", 1.0, 0.0),
        ("gsm8k_xml", "<reasoning>\nx\n</reasoning>\n<answer>\n{}\n</answer>\n", 4.0, 1.5),
        ("working_out", "<start_working_out>x<end_working_out><SOLUTION>{}</SOLUTION>", 12.5, 1.0),
    )
    for name, form, right, wrong in formats:
        robust = [f"{name}.robust=true"] if name in ("gsm8k_xml", "working_out") else []
        for sentence in SENTENCES:
            text = form.format(sentence)
            assert graded(name, text, *robust).reward == right, text
            assert graded(name, text, *robust, gold="13").reward == wrong, text
        for sentence in ("The answer is not 12.", "The answer is 12 or perhaps 13."):
            assert not graded(name, form.format(sentence), *robust).correct


@pytest.mark.parametrize(
    ("text", "gold", "correct"),
    [
        ("The answer is (C).", "C", True),
        ("Answer: C", "C", True),
        ("\\boxed{\\text{C}}", "C", True),
        ("\\boxed{C) Paris}", "C", True),
        ("<answer>option C</answer>", "C", True),
        ("<answer>paris</answer>", "C", True),  # the words of the choice
        ("<answer>C</answer>", "Paris", True),  # the gold as words
        ("The answer is (B).", "C", False),
        ("<answer>Cats</answer>", "C", False),  # a word is no letter
        ("It may be any.", "C", False),
        ("\\boxed{The correct option is C}", "C", True),
        ("\\boxed{\\textbf{(C)}~\\text{Paris}}", "C", True),
        ("\\boxed{C) x = 3}", "C", True),
        ("<answer>C, Paris</answer>", "C", True),
        ("\\boxed{(C), since x is odd}", "C", True),
        ("\\boxed{C) Both A and B}", "C", True),
        ("\\boxed{C - Paris}", "C", True),
        ("\\boxed{C (the capital)}", "C", True),
        ("\\boxed{C - wrong}", "C", False),
        ("\\boxed{C (or Bern)}", "C", False),
        ("\\boxed{C - D}", "C", False),
        ("\\boxed{B, C}", "B", False),  # several letters are no choice
        ("\\boxed{b, c}", "B", False),
        ("\\boxed{(B) or (C)}", "B", False),
        ("\\boxed{B}, \\boxed{C}", "B", False),
        ("\\boxed{B, C, D, A}", "B", False),
        ("\\boxed{B, B, C}", "B", False),
        ("\\boxed{A) Rome B) Bern C) Paris}", "A", False),
        ("Answer: B, C", "B", False),
        ("\\boxed{(B) is wrong}", "B", False),
        ("\\boxed{B. It is C}", "B", False),
    ],
)
def test_multiple_choice(text: str, gold: str, correct: bool) -> None:
    grade = graded("multiple_choice", text, gold=gold, choices=["Rome", "Bern", "Paris", "Oslo"])
    assert (grade.reward, grade.correct) == (float(correct), correct)


@pytest.mark.parametrize(
    ("answer", "choices", "letter"),
    [
        ("B, C", ["A, B", "B, C", "A, C"], "B"),  # a choice of letters, by its words
        ("A and C", ["A and B", "B and C", "A and C"], "C"),
        ("C) (A) and (B)", ["Rome", "Bern", "(A) and (B)"], "C"),
        ("B) is wrong", ["is right", "is wrong"], "B"),
        ("B) Vitamin C. It is", ["Vitamin A", "Vitamin C. It is"], "B"),
        ("B, C", ["Rome", "Bern", "Paris"], None),
    ],
)
def test_the_text_of_a_choice_may_name_letters(answer: str, choices: list[str], letter: str | None) -> None:
    grade = graded("multiple_choice", f"\\boxed{{{answer}}}", gold="B", choices=choices)
    assert grade.extracted == letter
