"""Whether two answers are the same: pairs with their reasons, laws that hold for any text, and the labelled cases."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from answer_pairs import DIFFERENT, SAME, pairs
from hostile_grader import grade
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.grading import symbolic
from qed.grading.equal import Verdict, equal
from qed.grading.policy import MATH, Policy
from qed.grading.symbolic import LIMITS

HOSTILE = {"adversarial_hang", "injection"}
PARSER = Policy(symbolic=False)
NEVER_PAID = {"fp_trap", "degenerate", "real_response"}


@pytest.mark.parametrize(("gold", "answer"), list(pairs(SAME)))
def test_the_same(gold: str, answer: str) -> None:
    assert equal(gold, answer).correct
    assert equal(answer, gold).correct


@pytest.mark.parametrize(("gold", "answer"), list(pairs(DIFFERENT)))
def test_different(gold: str, answer: str) -> None:
    assert not equal(gold, answer).correct
    assert not equal(answer, gold).correct


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("12", "12", True),
        ("12", " 12. ", True),  # spaces and a final full stop say nothing
        ("1234", "1,234", True),  # commas between thousands
        ("1,2", "12", False),  # a list of two is no number
        ("0.5", "1/2", True),  # exact rational numbers
        ("0.5", ".50", True),
        ("-3", "- 3", True),
        ("3", "-3", False),
        ("$15", "15", True),
        ("12", "12x", False),
        ("12", "1e1", False),
        ("2", "²", False),  # str.isdigit would say yes
        ("1/0", "1/0", True),  # the same text is the same answer
        ("1/0", "2/0", False),
        ("x+1", "x + 1", True),
        ("", "", False),  # nothing is no answer
        ("12", "--12", False),
        ("1", "9" * 5000, False),
    ],
)
def test_plain_answers(gold: str, answer: str, same: bool) -> None:
    assert equal(gold, answer).correct is same
    assert equal(answer, gold).correct is same


@pytest.mark.parametrize(
    ("policy", "gold", "answer", "by_default"),
    [
        (Policy(percent_sign_optional=False), "20", r"20\%", True),
        (Policy(ordered_lists=True), "1, 2", "2, 1", True),
        (Policy(convert_units=False), r"3\text{ hours}", r"180\text{ minutes}", True),
        (Policy(bare_list_as_tuple=False), "(2,4)", "2, 4", True),
        (Policy(interval_as_inequality=False), "(2,4)", "2<x<4", True),
        (Policy(number_words=False), "6", r"\text{six}", True),
        (Policy(half_day_optional=False), "7:45", "7:45 a.m.", True),
        (Policy(base_optional=False), "52_8", "52", True),
        (Policy(rounded_gold=True), "33.3", r"\frac{100}{3}", False),
    ],
)
def test_each_switch_changes_a_verdict(policy: Policy, gold: str, answer: str, by_default: bool) -> None:
    assert equal(gold, answer, MATH).correct is by_default
    assert equal(gold, answer, policy).correct is not by_default


@pytest.mark.parametrize(
    ("gold", "answer", "tier"),
    [
        ("5", "5", "string"),
        (r"\frac{1}{2}", r"\dfrac{1}{2}", "string"),
        ("B", r"\text{(B)}", "string"),
        ("5", "x=5", "typed"),
        ("5", "6", "typed"),
        ("5", r"\frobnicate{5}", "unknown"),  # left to a symbolic grader
        ("5", "2^{10^{10}}", "bound"),
        ("5", "(" * 60 + "5" + ")" * 60, "bound"),
        ("5", "5" * 4_001, "bound"),
        ("5", r"1\pm1\pm1\pm1\pm1", "bound"),
        ("5", "100000!", "bound"),
    ],
)
def test_the_tier_that_decided(gold: str, answer: str, tier: str) -> None:
    verdict = equal(gold, answer)
    assert verdict.tier == tier
    assert verdict.reason


def test_a_verdict_is_true_when_it_is_correct() -> None:
    assert equal("1", "1")
    assert not equal("1", "2")
    assert equal("1", "1") == Verdict(True, "string", "the same string")


ANSWERS = st.sampled_from([gold for gold, _ in pairs(SAME)])


@given(st.text(max_size=60), st.text(max_size=60))
def test_equality_is_symmetric_and_takes_any_text(one: str, other: str) -> None:
    assert equal(one, other).correct == equal(other, one).correct


PIECES = st.sampled_from(
    [
        *"0123456789xyabe+-*/^_=<>()[]{}|,;:!%$&. ",
        *("\\frac", "\\sqrt", "\\pm", "\\cup", "\\text{", "\\{", "\\}", "\\%", "\\pi", "\\infty", "\\sin"),
        *("\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", " and ", " or ", "\ud800", "\0", "²"),
    ]
)


@settings(max_examples=400)
@given(st.lists(PIECES, max_size=40).map("".join), ANSWERS)
def test_nearly_mathematics_never_raises(text: str, gold: str) -> None:
    assert equal(gold, text, PARSER).correct == equal(text, gold, PARSER).correct
    assert equal(text, text, PARSER).correct == bool(text.strip())


@given(ANSWERS)
def test_an_answer_is_itself_under_cosmetic_edits(gold: str) -> None:
    assert equal(gold, gold)
    assert equal(gold, f"  {gold} ")
    assert equal(gold, gold.replace("\\frac", "\\dfrac"))
    assert equal(gold, gold.replace("(", "\\left(").replace(")", "\\right)"))
    if "$" not in gold and "**" not in gold:
        assert equal(gold, f"${gold}$")


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**4))
def test_equal_numbers_are_equal_however_written(numerator: int, denominator: int) -> None:
    assert equal(f"{numerator}/{denominator}", f"{3 * numerator}/{3 * denominator}")
    assert equal(f"\\frac{{{numerator}}}{{{denominator}}}", f"{numerator}/{denominator}")
    assert equal(str(numerator), f"{numerator:,}")
    assert not equal(str(numerator), str(numerator + 1))


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 50))
def test_a_polynomial_is_its_factors(one: int, other: int, scale: int) -> None:
    factors = f"{scale}(x-({one}))(x-({other}))"
    expanded = f"{scale}x^2+({-scale * (one + other)})x+({scale * one * other})"
    assert equal(factors, expanded)
    assert not equal(factors, f"{expanded}+1")


LONG = [
    "(x+1)^{999}" * 50,
    "+".join(f"\\sin(x_{{{index}}})" for index in range(200)),
    "2^{39000}" + "+2^{39000}" * 200,
    "\\frac{3000!}{" * 20 + "1" + "}" * 20,
    "e^{e^{e^{e^{e}}}}",
    ",".join(f"(\\pm1,\\sqrt{{{index}}})" for index in range(60)),
    "\\cup".join(f"({index},{index}.5)" for index in range(99)),
    "1e4000" + "+1e4000" * 150,
    "\\frac12" * 500,
    "√" * 1000,
    "-" * 2000 + "1",
    "\\sin(10^{12000})",
    "\\lcm(" + ",".join(str(10**30 + index) for index in range(90)) + ")",
    "\ufdfa" * 3999,
    "+".join("x" * 300) + "=300x" * 250,
    "a" * 1_000_000,
]


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
@pytest.mark.parametrize("gold", ["5", "x", "\\sqrt2", "(0,1)\\cup(2,3)"])
def test_long_answers_cost_little(gold: str, text: str) -> None:
    started = time.process_time()
    assert not equal(gold, text)
    assert not equal(text, gold)
    assert time.process_time() - started < 2  # 0.13 s at most, of processor time


def test_threads_give_the_same_verdicts() -> None:
    """mpmath's contexts are not shared: eight threads at once say what one says."""
    table = [*pairs(SAME), *pairs(DIFFERENT)][::7]
    alone = [equal(*pair) for pair in table]
    found: list[list[Verdict]] = []
    threads = [threading.Thread(target=lambda: found.append([equal(*pair) for pair in table])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 8


def labelled(shared: Path, name: str) -> list[dict[str, Any]]:
    with gzip.open(shared / "grading" / name, "rt", encoding="utf-8") as lines:
        return [case for case in map(json.loads, lines) if not case["debatable"]]


def test_ordinary_labelled_cases(shared: Path) -> None:
    cases = [case for case in labelled(shared, "dev.jsonl.gz") if case["category"] not in HOSTILE]
    wrong = [case for case in cases if grade(case) != case["expected"]]
    paid = Counter(case["category"] for case in wrong if not case["expected"])
    assert len(wrong) <= 0.01 * len(cases), wrong
    assert sum(paid.values()) <= 0.003 * sum(not case["expected"] for case in cases)
    assert not NEVER_PAID & set(paid)


def test_realistic_responses(shared: Path) -> None:
    cases = labelled(shared, "realistic.jsonl.gz")
    wrong = [case for case in cases if grade(case) != case["expected"]]
    assert len(wrong) <= 0.002 * len(cases), wrong
    assert all(case["expected"] for case in wrong)


def test_what_the_parser_cannot_compute_goes_to_the_symbolic_tier() -> None:
    for gold, answer, correct in (
        ("55", "\\sum_{k=1}^{10} k", True),
        ("54", "\\sum_{k=1}^{10} k", False),
        ("\\frac12", "\\int_0^1 x dx", True),
        ("720", "\\prod_{k=1}^{6} k", True),
    ):
        verdict = equal(gold, answer)
        assert (verdict.correct, verdict.tier) == (correct, "symbolic")
        assert equal(gold, answer, PARSER).tier == "unknown"
    verdict = equal("5", "\\sum_{k=1}^{10^9} \\sin k")
    assert (verdict.correct, verdict.tier) == (False, "timeout")


@pytest.mark.parametrize("answer", ["\\5", "1\\2", "\\\\\\5", "\\", "\\$", "\\ ", "\\{\\}", "-\\;"])
def test_what_has_no_value_asks_no_process(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained model writes such answers, and loading math-verify takes longer than reading all of them."""
    monkeypatch.setattr(symbolic, "are_equal", lambda *pair: pytest.fail(f"asked about {pair}"))
    assert not equal("16", answer).correct
    assert not equal(answer, "16").correct


def test_hostile_labelled_cases(shared: Path, tmp_path: Path) -> None:
    """Nothing runs, nothing is paid, nothing takes long: in a process that can be killed, in an empty folder."""
    cases = [case for case in labelled(shared, "dev.jsonl.gz") if case["category"] in HOSTILE]
    home = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("hostile_grader.py")],
        input="\n".join(map(json.dumps, cases)),
        cwd=tmp_path,
        env={"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(cases)
    for case, (correct, seconds, ran) in zip(cases, results, strict=True):
        assert correct == case["expected"], case["prediction"][:100]
        assert seconds < LIMITS.wall + 2, case["prediction"][:100]
        assert ran == [], case["prediction"][:100]
    assert list(tmp_path.iterdir()) == []


FIRST_QUESTION = """
import json, sys
from qed.grading.symbolic import prepare
_, is_same = prepare()
known = set(sys.modules)
found = [is_same(pair) for pair in json.load(sys.stdin)]
print(json.dumps([found, sorted(set(sys.modules) - known)]))
"""


def test_a_child_of_the_last_tier_imports_nothing() -> None:
    """Each question has a child of its own, and what a child imports counts as time of its question."""
    asked = [
        (r"\binom{m}{3}", r"\frac{m(m-1)(m-2)}{6}"),
        (r"\sum_{j=0}^{n} 2^j", "2^{n+1}-1"),
        (r"\tan a", r"\frac{\sin a}{\cos a}"),
        (r"\int_0^{\pi} \sin x dx", "2"),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
        (r"\frac{a^2-b^2}{a-b}", "a+b"),
    ]
    program = [sys.executable, "-c", FIRST_QUESTION]
    done = subprocess.run(program, input=json.dumps(asked), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[True] * len(asked), []]
