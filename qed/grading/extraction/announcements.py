"""Announcements: what follows `answer is`, `Final answer:`, `答案是` and the like in a sentence."""

from __future__ import annotations

import re

from qed.grading.extraction import choices, words
from qed.grading.extraction.outcome import NEGATED, Refusal, Result
from qed.grading.extraction.statement import read_clause

NO_ANSWER = re.compile(
    r"(?:answer (?:choice|option|key|format|sheet|the|in|with|this|your|must(?! be \(?(?-i:[A-J])\b)|"
    r"should be (?:given|in|written))s?\b|"
    r"\b(?:to|can|cannot|can't|could|not|will|i'll|i|you|please|must|should|we) answer\b(?! is)|"
    r"answers? (?:above|below))",
    re.IGNORECASE,
)
OTHER_ANSWER = re.compile(
    r"(?:wrong|incorrect|first|initial|previous|common|naive|tempting|false|earlier|original|old|not (?:an|the|a|my)|"
    r"no|example|sample|student'?s|(?:if|suppose|assume|assuming|(?<!can )say|imagine|let) (?:that )?(?:the|my|your|"
    r"our)|"
    r"whether the|falsche|mauvaise|неправильный|"
    r"(?:not (?:true|the case|correct|right|certain|clear)|untrue|false|(?<!no )doubt(?:ful)?|unlikely|impossible|"
    r"nobody \w{4,10}|"
    r"(?:do not|don't|don’t|cannot|can't|did not|didn't) (?:think|believe|claim|say|conclude)|(?:might|may|"
    r"could) (?:\w+ )?"
    r"(?:think|believe|guess)|(?:many|some) (?:students|people|solvers)(?: (?:would|will))?(?: (?:think|say))?)"
    r"(?: that)?(?: (?:the|my|your|our|its?))?)\s{0,2}$",
    re.IGNORECASE,
)
# 42 is our final | answer; we get 42 as the | answer.
SUBJECT = re.compile(
    r"(?:(?:is|are|be|was|=|as|equals|so|ist|est|es|é|è|это|—|:)\s{1,3}(?:indeed |therefore |then |also )?"
    r"(?:(?:the|our|my|your|an?|this|that|die|la|le|el|a|l')\s{0,3})?"
    r"(?:(?:final|correct|right|desired|required|only|richtige|correcta|bonne)\s{0,3})?|[^\x00-\x7f]\s{0,3})$",
    re.IGNORECASE,
)
DETOUR = re.compile(
    r"\s{0,3}(?:to|for|of|in|as|with|on|from|by|we|that|i|zu|auf|für|pour|de|du|para|a|на|\()(?!\w)", re.IGNORECASE
)
STATING = re.compile(
    r"(?:(?<!\w)(?:is|are|equals|was|should be|must be|would be|ist|lautet|est|es|é|è)(?!\w)|[:：=—–→])", re.IGNORECASE
)
DIRECTLY = re.compile(r"[\s*]{0,4}(?:[$\\\d(\-−+√\[{.]|[A-J](?![\w']))")
MAX_DETOUR_CHARS = 160
# 答案是5，因为x=3: a reason in Chinese, without words or letters that may retract the answer or lead to another one.
CHINESE_REASON = re.compile(
    r"(?<=\S)\s?[，,；;]\s?(?:这是|這是)?(?:因为|因為|由于|由於|其中)"
    r"(?![^\n]*(?:[不但错錯故应應选選即等得取]|而是|所以|因此|答案|结果|結果|者为|者為|(?<![A-Za-z])[A-J](?![A-Za-z])))[^\n]*"
)
CONFIDENCE = re.compile(
    r"\s?\((?:my )?(?:confidence|certainty)(?: is|:|=)? ?(?:high|\d{1,3} ?%|0?\.\d{1,3}|\d{1,2}/\d{1,3})\)",
    re.IGNORECASE,
)
VALUE = re.compile(r"[0-9A-Za-z$\\]")
# The answer would be 5 if x were 2.
HYPOTHETICAL = re.compile(r"\s{0,3}would (?:be|have been)\b[^,;]{0,80} (?:if|unless|had)(?!\w)", re.IGNORECASE)


def read_announcement(text: str) -> Result:
    """Read the answer that a sentence announces; None if it announces none."""
    for match in reversed(list(words.ANSWER.finditer(text))):
        if NO_ANSWER.search(text, max(0, match.start() - 12), match.end() + 16) or is_inside_formula(text, match):
            continue
        if OTHER_ANSWER.search(text, 0, match.start()) or HYPOTHETICAL.match(text, match.end()):
            return Refusal(NEGATED)
        word = re.split(r"[:：]|^[はが은는是为]", text[match.end() :])[-1].strip(" .。!*")
        if choices.YES_NO.fullmatch(word):
            return word
        rest = CONFIDENCE.sub("", find_announced_part(_drop_reason(text[match.end() :])))
        if (option := choices.find_announced_option(rest)) is not None:
            return option
        if rest.strip(" .*_:"):
            return read_clause(rest, announced=True)
        if match.start() > 0 and SUBJECT.search(text, 0, match.start()):
            alone = not text[match.end() :].strip(" .!*")
            subject = choices.SUBJECT.search(text[: match.start()]) if alone else None
            return subject[1] if subject is not None else read_clause(text[: match.start()], announced=False)
    return None


def find_announced_part(after: str) -> str:
    """Return what follows `answer`, `answer is` or `answer to part 2 is`; an empty text if it announces nothing."""
    connection = words.CONNECTION.match(after)
    length = connection.end() if connection is not None else 0
    if STATING.search(after, 0, length) or DIRECTLY.match(after):
        return after[length:]
    non_ascii = not after[:1].isascii()
    detour = STATING.search(after, 0, MAX_DETOUR_CHARS) if DETOUR.match(after) or non_ascii else None
    if detour is not None:
        return after[detour.end() :]
    return after[length:] if non_ascii and after[:1].strip() else ""


def _drop_reason(after: str) -> str:
    """Drop a reason in Chinese after a value, because its equals sign is not an announcement."""
    reason = CHINESE_REASON.search(after)
    return after[: reason.start()] if reason is not None and VALUE.search(after, 0, reason.start()) else after


def is_inside_formula(text: str, match: re.Match[str]) -> bool:
    """Return whether a word is part of a command or a formula."""
    return text[: match.start()].endswith("\\") or "\\text{" in text[max(0, match.start() - 8) : match.start()]
