"""Four parts for tagged working out and a tagged solution: exact format, approximate format, answer, numbers.

Three presets: `pipeline` (-6.5 to 12.5), `notebook` (Unsloth's Qwen3-4B GRPO notebook, up to 13) and `gsm8k` (its older
GSM8K notebook, up to 9.5). exact: the end of the working out, then a non-empty solution, closed at the end of a line.
approximate: a bonus for each tag that occurs exactly once, and a penalty for each that does not. answer: the solution
of the exact format, compared with the gold answer as text, then stripped, then by their ratio. numbers: the first
number after the opening of the solution, compared as a number. The text comparisons are those of the notebooks;
`correct` is the verdict of qed's grader on the solution of the exact format.

As in the notebooks, a near miss can earn more than a right answer written in another way, and the parts may read
different solutions of one text. `robust` reads one solution, and rewards its answer and number by qed's grader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from qed.grading.equal import Verdict
from qed.grading.extract import read_tag
from qed.grading.extraction.marks import cut_at_turn
from qed.rewards.verdicts import NO_FORMAT, judge_answer
from qed.types import Grade, Rollout

NUMBER = re.compile(r"-?[\d.,]+")


class Tags(NamedTuple):
    """The four tags in the order of the format."""

    reasoning_start: str
    reasoning_end: str
    solution_start: str
    solution_end: str


class Scores(NamedTuple):
    """The scores of a preset; `counted` names the tags that the approximate format counts."""

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
THREE = ("reasoning_end", "solution_start", "solution_end")  # the prompt already opens the working out
PRESETS = {
    "pipeline": Scores(
        WORKING_OUT, THREE, 3.0, 0.5, -1.0,
        equal=5.0, stripped=3.5, within_10=2.0, within_20=1.5, none=-2.0, other=-2.0, unparsable=-2.0,
        number_equal=3.0, number_other=-1.5, number_none=-1.5,
    ),
    "notebook": Scores(
        WORKING_OUT, THREE, 3.0, 0.5, -1.0,
        equal=5.0, stripped=3.5, within_10=2.0, within_20=1.5, none=-2.0, other=-2.5, unparsable=-4.5,
        number_equal=3.5, number_other=-1.5, number_none=-2.5,
    ),
    "gsm8k": Scores(
        Tags("<reasoning>", "</reasoning>", "<answer>", "</answer>"), Tags._fields, 3.0, 0.5, -1.0,
        equal=3.0, stripped=1.5, within_10=1.0, within_20=0.5, none=0.0, other=-1.5, unparsable=-1.5,
        number_equal=1.5, number_other=-0.5, number_none=0.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class WorkingOut:
    """Reward = the sum of the four parts."""

    preset: Literal["pipeline", "notebook", "gsm8k"] = "pipeline"
    """The scores: qed's own, or those of one of the two notebooks."""

    reasoning_start: str = ""
    """The tag that opens the working out; empty: the preset's tag."""

    reasoning_end: str = ""
    """The tag that closes the working out; empty: the preset's tag."""

    solution_start: str = ""
    """The tag that opens the solution; empty: the preset's tag."""

    solution_end: str = ""
    """The tag that closes the solution; empty: the preset's tag."""

    end_token: str = ""
    """The end token as text, if answers still contain it; it may follow the solution."""

    typo: bool = False
    """Count the solution's opening tag with its last letter doubled, `<answerr>`, as the older notebook does."""

    robust: bool = False
    """Reward all right answers equally and more than wrong ones; read only the last solution before the next turn."""

    def __call__(self, rollout: Rollout) -> Grade:
        text, gold, scores, tags = rollout.text, rollout.problem.answer, PRESETS[self.preset], self.tags
        if self.robust:
            return self._grade_last(rollout)
        solution = find_solution(text, tags, self.end_token)
        parts = {
            **self._score_format(text, solution),
            "answer": score_answer(solution, gold, scores),
            "numbers": score_number(text.partition(tags.solution_start)[2], gold, scores),
        }
        verdict = NO_FORMAT if solution is None else judge_answer(gold, solution)
        return self._build_grade(parts, solution, verdict)

    def _grade_last(self, rollout: Rollout) -> Grade:
        """Grade the last solution of the text before the next turn."""
        gold, scores, tags = rollout.problem.answer, PRESETS[self.preset], self.tags
        text = cut_at_turn(rollout.text)
        _, opened, last = text.rpartition(tags.solution_start)
        thought = opened and tags.reasoning_end in text.removesuffix(opened + last)
        solution = find_solution(f"{tags.reasoning_end}{opened}{last}", tags, self.end_token) if thought else None
        read = None if solution is None else read_tag(solution)
        verdict = NO_FORMAT if read is None else judge_answer(gold, read)
        given = last.partition(tags.solution_end)[0] if solution is None and opened else solution
        right = verdict.correct or (given is not None and judge_answer(gold, read_tag(given)).correct)
        number = score_number(given or "", gold, scores)
        number = scores.number_equal if right else min(number, scores.number_other)
        # An answer that is equal as text but wrong counts at most as a near miss.
        answer = scores.equal if verdict.correct else min(score_answer(solution, gold, scores), scores.within_10)
        parts = {**self._score_format(text, solution), "answer": answer, "numbers": number}
        return self._build_grade(parts, read, verdict)

    def _score_format(self, text: str, solution: str | None) -> dict[str, float]:
        scores = PRESETS[self.preset]
        counts = [text.count(self._get_counted_tag(name)) for name in scores.counted]
        return {
            "exact": scores.exact if solution is not None else 0.0,
            "approximate": sum(scores.tag_once if count == 1 else scores.tag_else for count in counts),
        }

    def _build_grade(self, parts: dict[str, float], solution: str | None, verdict: Verdict) -> Grade:
        extracted = None if solution is None else solution.strip()
        reward = sum(parts.values())
        return Grade(reward, verdict.correct, solution is not None, extracted, parts, verdict.tier, verdict.reason)

    @property
    def tags(self) -> Tags:
        """The tags of the preset, replaced by those that are set."""
        preset = PRESETS[self.preset].tags
        return Tags(*(getattr(self, name) or getattr(preset, name) for name in Tags._fields))

    def _get_counted_tag(self, name: str) -> str:
        tag = str(getattr(self.tags, name))
        return f"{tag[:-1]}{tag[-2:]}" if self.typo and name == "solution_start" else tag


def find_solution(text: str, tags: Tags, end_token: str = "") -> str | None:
    """Return the solution of the exact format; None if the format does not hold or the solution is empty.

    It goes from the first opening of a solution after the first end of the working out to the first closing tag at the
    end of a line, followed on that line by at most whitespace and the end token. Text on later lines is allowed.
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


def _ends_line(text: str, position: int, end_token: str) -> bool:
    after = _skip_space(text, position)
    if after == len(text) or "\n" in text[position:after]:
        return True
    if not end_token or not text.startswith(end_token, after):
        return False
    position = after + len(end_token)
    after = _skip_space(text, position)
    return after == len(text) or "\n" in text[position:after]


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def score_answer(solution: str | None, gold: str, scores: Scores) -> float:
    """Score the solution of the exact format: as text, stripped, or by its ratio to the gold answer."""
    if solution is None:
        return scores.none
    if solution == gold:
        return scores.equal
    if solution.strip() == gold.strip():
        return scores.stripped
    try:
        ratio = float(solution) / float(gold)
    except (ValueError, ZeroDivisionError):
        return scores.unparsable
    if 0.9 <= ratio <= 1.1:
        return scores.within_10
    return scores.within_20 if 0.8 <= ratio <= 1.2 else scores.other


def score_number(tail: str, gold: str, scores: Scores) -> float:
    """Score the first number after the opening of the solution; a number is a run of digits, periods and commas."""
    match = NUMBER.search(tail)
    if match is None:
        return scores.number_none
    try:
        equal = float(match.group().replace(",", "")) == float(gold.strip())
    except ValueError:
        return scores.number_unparsable
    return scores.number_equal if equal else scores.number_other


reward = WorkingOut()
