r"""Five parts for <reasoning> and <answer> blocks on lines of their own; 4.0 at most. The widely copied GSM8K recipe.

correct 2.0: the extracted text is the gold, sign for sign. integer 0.5: it consists of digits (so -3 and 2.5 do not,
and ² does). strict 0.5: the whole text is a reasoning block, a line break, an answer block and a line break. soft 0.5:
it begins with a reasoning block, white space and an answer block. tags: 0.125 for each of four tags with its line
breaks that stands exactly once, less 0.001 for each sign behind `\n</answer>\n`, and again for each behind
`\n</answer>` but the first. So without the last line break the third tag loses the length of the whole text and the
fourth gains 0.001. Without tags the whole text is the extracted one, so a bare right number scores.

The rules are those of W. Brown's GSM8K GRPO demo, quirks included. Copies of it differ in whether a block may hold line
breaks: `dotall`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qed.types import Grade, Rollout

REASONING, REASONING_END = "<reasoning>", "</reasoning>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
STRICT_BEGIN = f"{REASONING}\n"
STRICT_MIDDLE = f"\n{REASONING_END}\n{ANSWER}\n"
STRICT_END = f"\n{ANSWER_END}\n"
TAG_PAY = 0.125
SIGN_PRICE = 0.001


@dataclass(frozen=True)
class Gsm8kXml:
    """Reward = the sum of the five parts."""

    dotall: bool = True
    """Whether a block may hold line breaks. Off, as at first: strict and soft pay for blocks of one line only."""

    def __call__(self, rollout: Rollout) -> Grade:
        text = rollout.text
        extracted = text.rpartition(ANSWER)[2].partition(ANSWER_END)[0].strip()
        correct = bool(extracted) and extracted == normalize_gold(rollout.problem.answer)
        soft = keeps_soft(text, self.dotall)
        parts = {
            "correct": 2.0 * correct,
            "integer": 0.5 * extracted.isdigit(),
            "strict": 0.5 * keeps_strict(text, self.dotall),
            "soft": 0.5 * soft,
            "tags": score_tags(text),
        }
        reason = "the same string" if correct else "another string"
        return Grade(sum(parts.values()), correct, soft, extracted or None, parts, "string", reason)


def normalize_gold(answer: str) -> str:
    """The gold: behind ####, without commas and dollar signs."""
    return answer.rpartition("####")[2].replace(",", "").replace("$", "").strip()


def keeps_strict(text: str, dotall: bool) -> bool:
    """Whether the text is the two blocks on lines of their own; one more line break at the end is overlooked."""
    end = len(text) - len(STRICT_END) - text.endswith(STRICT_END + "\n")
    if not text.startswith(STRICT_BEGIN) or not text.startswith(STRICT_END, max(0, end)):
        return False
    start = len(STRICT_BEGIN)
    middle = text.find(STRICT_MIDDLE, start) if dotall else text.find("\n", start)
    inner = middle + len(STRICT_MIDDLE)
    if middle < 0 or not text.startswith(STRICT_MIDDLE, middle) or inner > end:
        return False
    return dotall or text.find("\n", inner) == end


def keeps_soft(text: str, dotall: bool) -> bool:
    """Whether the text begins with a reasoning block, white space and an answer block."""
    if not text.startswith(REASONING):
        return False
    limit = len(text) if dotall else _find_line_end(text, len(REASONING))
    hopeless = 0  # no answer closes that begins before this place
    for start in _find_answers(text, limit):
        if start >= hopeless:
            hopeless = len(text) if dotall else _find_line_end(text, start)
            if text.find(ANSWER_END, start, hopeless) >= 0:
                return True
    return False


def _find_answers(text: str, limit: int) -> Iterator[int]:
    """Where an answer begins that follows the end of a reasoning block, which must close before the limit."""
    close = text.find(REASONING_END, len(REASONING), limit)
    while close >= 0:
        here = close + len(REASONING_END)
        while here < len(text) and text[here].isspace():
            here += 1
        if text.startswith(ANSWER, here):
            yield here + len(ANSWER)
        close = text.find(REASONING_END, close + 1, limit)


def _find_line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return end if end >= 0 else len(text)


def score_tags(text: str) -> float:
    """What the four tags earn, less the price of what follows the last; below 0 for long tails."""
    pay = TAG_PAY * (text.count(STRICT_BEGIN) == 1) + TAG_PAY * (text.count(f"\n{REASONING_END}\n") == 1)
    if text.count(f"\n{ANSWER}\n") == 1:
        # Two ends can share a line break. Cut from the left, as in the recipe, the second is then no end.
        pay += TAG_PAY - SIGN_PRICE * len(text.split(STRICT_END)[-1])
    if text.count(f"\n{ANSWER_END}") == 1:
        pay += TAG_PAY - SIGN_PRICE * (len(text.rpartition(f"\n{ANSWER_END}")[2]) - 1)
    return pay


reward = Gsm8kXml()
