"""What docs/grading.md shows is what the grader does: its tables and its commands, line by line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qed.grading import bounds
from qed.grading.equal import equal
from qed.grading.extract import MODES, extract_final_answer
from qed.grading.policy import MATH, Policy

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "grading.md").read_text(encoding="utf-8")
CODE = re.compile(r"^`(.*)`$")


def table(*header: str) -> Iterator[tuple[str, ...]]:
    """The rows of every table with this header, code spans without their signs."""
    inside = False
    for line in PAGE.splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split(" | "))
        if cells == header:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|--"):
            yield tuple(CODE.sub(r"\1", cell) for cell in cells)


@pytest.mark.parametrize(("response", "strict", "flexible", "lenient"), list(table("response", *MODES)))
def test_how_an_answer_is_found(response: str, strict: str, flexible: str, lenient: str) -> None:
    for mode, said in zip(MODES, (strict, flexible, lenient), strict=True):
        found = extract_final_answer(response, mode)
        assert (found.answer if found else "–") == said, mode


@pytest.mark.parametrize(("gold", "answer", "right", "tier"), list(table("gold", "answer", "right", "tier")))
def test_how_two_answers_are_compared(gold: str, answer: str, right: str, tier: str) -> None:
    verdict = equal(gold, answer.strip("`"))
    assert ("yes" if verdict.correct else "no", verdict.tier) == (right, tier)


SWITCHES = list(table("switch", "default", "gold", "answer", "on", "off"))


@pytest.mark.parametrize(("switch", "default", "gold", "answer", "on", "off"), SWITCHES)
def test_conventions(switch: str, default: str, gold: str, answer: str, on: str, off: str) -> None:
    assert getattr(MATH, switch) == (default == "on")
    for value, said in ((True, on), (False, off)):
        assert ("right" if equal(gold, answer, Policy(**{switch: value})).correct else "wrong") == said, value


def test_every_convention_stands_in_the_table() -> None:
    assert {row[0] for row in SWITCHES} == set(Policy.__dataclass_fields__)


def test_bounds() -> None:
    said = [int(row[1].replace(",", "")) for row in table("bound", "")]
    names = "MAX_ANSWER_CHARS MAX_TOKENS MAX_DEPTH MAX_ITEMS MAX_BITS MAX_FACTORIAL MAX_SIGNS MAX_STEPS"
    assert said == [getattr(bounds, name) for name in names.split()]


ROWS = r"""{"gold": "12", "prediction": "so \\boxed{12}"}
{"gold": "\\frac12", "prediction": "The answer is 0.5."}
{"gold": "12", "prediction": "\\boxed{13}"}
{"gold": "12", "prediction": "I do not know."}"""


@pytest.mark.parametrize("shown", re.findall(r"```console\n\$ qed (.*?)```", PAGE, re.DOTALL))
def test_commands(
    shown: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.jsonl").write_text(ROWS)
    command, _, output = shown.partition("\n")
    code, out, _ = run(*shlex.split(command))
    assert code == 0
    assert lines(out) == lines(output)


def lines(text: str) -> list[str]:
    """What a run says, without its speed and what only fills the page."""
    return [re.sub(r", [\d,]+ a second", "", line.rstrip()) for line in text.splitlines() if line.strip()]
