r"""Five parts for <reasoning> and <answer> blocks on their own lines; 4.0 at most. The widely copied GSM8K recipe.

correct 2.0: the extracted text equals the gold answer, character for character. integer 0.5: it consists of digits (so
-3 and 2.5 do not count, and ² does). strict 0.5: the whole text is a reasoning block, a newline, an answer block and a
newline. soft 0.5: the text begins with a reasoning block, whitespace and an answer block. tags: 0.125 for each of the
four tags with its newlines that occurs exactly once, less 0.001 for each character after `\n</answer>\n`, and again for
each after `\n</answer>` except the first. So without the last newline the third tag loses the length of the whole text
and the fourth gains 0.001. Without tags the whole text is the extracted answer, so a bare correct number scores.

The rules are those of W. Brown's GSM8K GRPO demo, quirks included. Copies of it differ in whether a block may contain
newlines: `dotall`. A wrong integer can earn more than a right `42.0`; `robust` rewards what qed's grader finds right,
reads the text before the next turn, requires a tag around the answer, and rewards tags without their newlines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qed.grading.extract import read_tag
from qed.grading.extraction.marks import cut_at_turn
from qed.rewards.verdicts import judge_answer
from qed.types import Grade, Rollout

REASONING, REASONING_END = "<reasoning>", "</reasoning>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
STRICT_BEGIN = f"{REASONING}\n"
STRICT_MIDDLE = f"\n{REASONING_END}\n{ANSWER}\n"
STRICT_END = f"\n{ANSWER_END}\n"
TAG_REWARD = 0.125
CHARACTER_PENALTY = 0.001


@dataclass(frozen=True)
class Gsm8kXml:
    """Reward = the sum of the five parts."""

    dotall: bool = True
    """Whether a block may contain newlines. If false, as in the original, strict and soft need single-line blocks."""

    robust: bool = False
    """Reward every right answer more than any wrong one of the same format."""

    def __call__(self, rollout: Rollout) -> Grade:
        if self.robust:
            return self._grade_answer(rollout)
        text = rollout.text
        extracted = text.rpartition(ANSWER)[2].partition(ANSWER_END)[0].strip()
        correct = bool(extracted) and extracted == normalize_gold(rollout.problem.answer)
        soft = matches_soft(text, self.dotall)
        parts = {
            "correct": 2.0 * correct,
            "integer": 0.5 * extracted.isdigit(),
            "strict": 0.5 * matches_strict(text, self.dotall),
            "soft": 0.5 * soft,
            "tags": score_tags(text),
        }
        reason = "the same string" if correct else "another string"
        return Grade(sum(parts.values()), correct, soft, extracted or None, parts, "string", reason)

    def _grade_answer(self, rollout: Rollout) -> Grade:
        """Grade the last answer block before the next turn by its meaning."""
        text = cut_at_turn(rollout.text)
        _, opened, last = text.rpartition(ANSWER)
        content = last.partition(ANSWER_END)[0].strip() if opened else ""
        extracted = read_tag(content)
        verdict = judge_answer(normalize_gold(rollout.problem.answer), extracted or None)
        soft = matches_soft(text, self.dotall)
        parts = {
            "correct": 2.0 * verdict.correct,
            "integer": 0.5 * (verdict.correct or content.removeprefix("-").isdecimal()),
            "strict": 0.5 * matches_strict(text, self.dotall),
            "soft": 0.5 * soft,
            "tags": _score_tags_alone(text),
        }
        return Grade(sum(parts.values()), verdict.correct, soft, extracted or None, parts, verdict.tier, verdict.reason)


def normalize_gold(answer: str) -> str:
    """Return the gold answer: the text after ####, without commas and dollar signs."""
    return answer.rpartition("####")[2].replace(",", "").replace("$", "").strip()


def matches_strict(text: str, dotall: bool) -> bool:
    """Return whether the text is the two blocks on their own lines; one extra newline at the end is allowed."""
    end = len(text) - len(STRICT_END) - text.endswith(STRICT_END + "\n")
    if not text.startswith(STRICT_BEGIN) or not text.startswith(STRICT_END, max(0, end)):
        return False
    start = len(STRICT_BEGIN)
    middle = text.find(STRICT_MIDDLE, start) if dotall else text.find("\n", start)
    inner = middle + len(STRICT_MIDDLE)
    if middle < 0 or not text.startswith(STRICT_MIDDLE, middle) or inner > end:
        return False
    return dotall or text.find("\n", inner) == end


def matches_soft(text: str, dotall: bool) -> bool:
    """Return whether the text begins with a reasoning block, whitespace and an answer block."""
    if not text.startswith(REASONING):
        return False
    limit = len(text) if dotall else _find_line_end(text, len(REASONING))
    searched = 0  # no answer that begins before this position is closed
    for start in _find_answers(text, limit):
        if start >= searched:
            searched = len(text) if dotall else _find_line_end(text, start)
            if text.find(ANSWER_END, start, searched) >= 0:
                return True
    return False


def _find_answers(text: str, limit: int) -> Iterator[int]:
    """Yield the start of each answer that follows the end of a reasoning block, which must close before the limit."""
    close = text.find(REASONING_END, len(REASONING), limit)
    while close >= 0:
        start = close + len(REASONING_END)
        while start < len(text) and text[start].isspace():
            start += 1
        if text.startswith(ANSWER, start):
            yield start + len(ANSWER)
        close = text.find(REASONING_END, close + 1, limit)


def _find_line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return end if end >= 0 else len(text)


def score_tags(text: str) -> float:
    """Score the four tags minus the penalty for text after the last; negative if that text is long."""
    score = TAG_REWARD * (text.count(STRICT_BEGIN) == 1) + TAG_REWARD * (text.count(f"\n{REASONING_END}\n") == 1)
    if text.count(f"\n{ANSWER}\n") == 1:
        # Two end tags can share a newline. Splitting from the left, as the recipe does, then ignores the second.
        score += TAG_REWARD - CHARACTER_PENALTY * len(text.split(STRICT_END)[-1])
    if text.count(f"\n{ANSWER_END}") == 1:
        score += TAG_REWARD - CHARACTER_PENALTY * (len(text.rpartition(f"\n{ANSWER_END}")[2]) - 1)
    return score


def _score_tags_alone(text: str) -> float:
    """Score the four tags without their newlines, minus the penalty for text after the last; at least 0."""
    score = TAG_REWARD * sum(text.count(tag) == 1 for tag in (REASONING, REASONING_END, ANSWER, ANSWER_END))
    behind = text.rpartition(ANSWER_END)[2] if ANSWER_END in text else ""
    return max(0.0, score - CHARACTER_PENALTY * len(behind.strip()))


reward = Gsm8kXml()
