"""Four parts for a marked working out and a marked solution: exact format, approximate format, answer, numbers.

Three presets, one path: `pipeline` (-6.5 to 12.5), `notebook` (Unsloth's Qwen3-4B GRPO notebook, up to 13) and `gsm8k`
(its older GSM8K notebook, up to 9.5). exact: the end of the working out, then a solution that is not empty, closed at
the end of a line. approximate: so much for each tag that stands exactly once, and a loss for each that does not.
answer: what the exact format holds, compared with the gold as text, then stripped, then as a ratio. numbers: the first
number behind the opening of the solution, compared as a number. The text comparisons are the notebooks' own; `correct`
is qed's grader on what the exact format holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from qed.rewards.verdicts import NO_FORMAT, judge_answer
from qed.types import Grade, Rollout

NUMBER = re.compile(r"-?[\d.,]+")


class Tags(NamedTuple):
    """The four tags in the order in which they stand."""

    reasoning_start: str
    reasoning_end: str
    solution_start: str
    solution_end: str


class Pay(NamedTuple):
    """What a preset pays; `counted` are the tags that the approximate format looks for."""

    tags: Tags
    counted: tuple[str, ...]
    exact: float
    tag_once: float
    tag_else: float
    equal: float
    stripped: float
    within_10: float
    within_20: float
    none: float
    other: float
    unparsable: float
    number_equal: float
    number_other: float
    number_none: float
    number_unparsable: float = 0.0


WORKING_OUT = Tags("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")
THREE = ("reasoning_end", "solution_start", "solution_end")  # the prompt has opened the working out already
PRESETS = {
    "pipeline": Pay(
        WORKING_OUT, THREE, 3.0, 0.5, -1.0,
        equal=5.0, stripped=3.5, within_10=2.0, within_20=1.5, none=-2.0, other=-2.0, unparsable=-2.0,
        number_equal=3.0, number_other=-1.5, number_none=-1.5,
    ),
    "notebook": Pay(
        WORKING_OUT, THREE, 3.0, 0.5, -1.0,
        equal=5.0, stripped=3.5, within_10=2.0, within_20=1.5, none=-2.0, other=-2.5, unparsable=-4.5,
        number_equal=3.5, number_other=-1.5, number_none=-2.5,
    ),
    "gsm8k": Pay(
        Tags("<reasoning>", "</reasoning>", "<answer>", "</answer>"), Tags._fields, 3.0, 0.5, -1.0,
        equal=3.0, stripped=1.5, within_10=1.0, within_20=0.5, none=0.0, other=-1.5, unparsable=-1.5,
        number_equal=1.5, number_other=-0.5, number_none=0.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class WorkingOut:
    """Reward = the sum of the four parts."""

    preset: Literal["pipeline", "notebook", "gsm8k"] = "pipeline"
    """Whose numbers: the house's, or those of one of the two notebooks."""

    reasoning_start: str = ""
    """The tag that opens the working out; empty: the preset's."""

    reasoning_end: str = ""
    """The tag that closes the working out; empty: the preset's."""

    solution_start: str = ""
    """The tag that opens the solution; empty: the preset's."""

    solution_end: str = ""
    """The tag that closes the solution; empty: the preset's."""

    end_token: str = ""
    """The end token as text, where the answer still has it: it may stand behind the solution."""

    typo: bool = False
    """Look for the opening of the solution with its last letter doubled, `<answerr>`, as the older notebook does."""

    def __call__(self, rollout: Rollout) -> Grade:
        text, gold, pay, tags = rollout.text, rollout.problem.answer, PRESETS[self.preset], self.tags
        held = find_solution(text, tags, self.end_token)
        parts = {
            "exact": pay.exact if held is not None else 0.0,
            "approximate": sum(
                pay.tag_once if text.count(self._looked_for(name)) == 1 else pay.tag_else for name in pay.counted
            ),
            "answer": score_answer(held, gold, pay),
            "numbers": score_number(text.partition(tags.solution_start)[2], gold, pay),
        }
        verdict = NO_FORMAT if held is None else judge_answer(gold, held)
        extracted = None if held is None else held.strip()
        return Grade(
            sum(parts.values()), verdict.correct, held is not None, extracted, parts, verdict.tier, verdict.reason
        )

    @property
    def tags(self) -> Tags:
        """The tags: the preset's, but for those that are set."""
        own, preset = (getattr(self, name) for name in Tags._fields), PRESETS[self.preset].tags
        return Tags(*(mine or theirs for mine, theirs in zip(own, preset, strict=True)))

    def _looked_for(self, name: str) -> str:
        tag = str(getattr(self.tags, name))
        return f"{tag[:-1]}{tag[-2:]}" if self.typo and name == "solution_start" else tag


def find_solution(text: str, tags: Tags, end_token: str = "") -> str | None:
    """What the exact format holds: from the first opening of a solution behind the first end of the working out, up to
    the first closing tag at the end of a line; None where the format does not hold, or nothing stands between.

    At the end of a line means: followed by white space and the end token at most. Text on later lines passes.
    """
    thought = text.find(tags.reasoning_end)
    start = text.find(tags.solution_start, thought + len(tags.reasoning_end)) if thought >= 0 else -1
    if start < 0:
        return None
    start += len(tags.solution_start)
    close = text.find(tags.solution_end, start + 1)
    while close >= 0:
        if _ends_line(text, close + len(tags.solution_end), end_token):
            return text[start:close]
        close = text.find(tags.solution_end, close + 1)
    return None


def _ends_line(text: str, place: int, end_token: str) -> bool:
    after = _skip_space(text, place)
    if after == len(text) or "\n" in text[place:after]:
        return True
    if not end_token or not text.startswith(end_token, after):
        return False
    place = after + len(end_token)
    after = _skip_space(text, place)
    return after == len(text) or "\n" in text[place:after]


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def score_answer(held: str | None, gold: str, pay: Pay) -> float:
    """What the held solution earns: as text, stripped, or by its ratio to the gold."""
    if held is None:
        return pay.none
    if held == gold:
        return pay.equal
    if held.strip() == gold.strip():
        return pay.stripped
    try:
        ratio = float(held) / float(gold)
    except (ValueError, ZeroDivisionError):
        return pay.unparsable
    if 0.9 <= ratio <= 1.1:
        return pay.within_10
    return pay.within_20 if 0.8 <= ratio <= 1.2 else pay.other


def score_number(tail: str, gold: str, pay: Pay) -> float:
    """What the first number behind the opening of the solution earns; digits, points and commas make a number."""
    found = NUMBER.search(tail)
    if found is None:
        return pay.number_none
    try:
        equal = float(found.group().replace(",", "")) == float(gold.strip())
    except ValueError:
        return pay.number_unparsable
    return pay.number_equal if equal else pay.number_other


reward = WorkingOut()
