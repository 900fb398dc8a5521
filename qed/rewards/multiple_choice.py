"""Correct when the text chooses the letter of the gold answer, which is a letter or the words of one of the choices.

The letter is that of the final answer: `C`, `(C)`, `C) 12`, `\\text{C}`, `option C`, or the words of a choice. Several
letters (`B, C`), and a letter negated by the words after it (`(B) is wrong`), do not count as a choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from qed.grading.choices import is_denied, read_worded_option
from qed.grading.extract import extract_final_answer
from qed.types import Grade, Problem, Rollout

LETTERS = "ABCDEFGHIJ"
# Each piece before the letter may occur at most once, so the search never backtracks.
CHOICE = re.compile(
    r"[\s$*]{0,4}(?:\\(?:text|mathrm|mathbf|textbf)\{)?(?:(?:the )?(?:(?:correct |right |best |final )?"
    r"(?:option|choice|answer)(?: is)?:? ))?[(\[]?([A-J])(?=[)\].:,;}$*]|$|(?P<apart> [-–—] | \())",
    re.IGNORECASE,
)
FONT = re.compile(r"\\(?:text|mathrm|mathbf|textbf) ?\{")
CLOSING = " \t\n~$*{}()[].:"  # characters allowed between a letter and the text of its choice
# `, C` and `or (C)` after a letter. A and I are words if other words follow them.
NEXT_LETTER = (
    r"[\s~$*)\]}.]{0,9}(?:[,;/&]|\\quad|(?<![A-Za-z])(?:and|or)(?![A-Za-z]))[\s$*]{0,4}(?:and |or )?"
    r"(?:option |choice )?[(\[]?(?:([B-HJ])(?![\w'’])|([AI])(?=[)\].:,;/&}$*]|\s{0,4}$|\s{1,4}(?:and|or)(?!\w)))"
)
MARKED = r"(?<![\w\\])\(([A-HJ])\)|(?<![^\s,;])([B-HJ])[).:](?=\s|$)"
BRACKETED = re.compile(r"\([^()]{2,}\)")
# Keyed by whether the first letter is upper case, because the others then are too.
OTHERS = {
    capital: [re.compile(one, 0 if capital else re.IGNORECASE) for one in (NEXT_LETTER, MARKED)]
    for capital in (True, False)
}


def reward(rollout: Rollout) -> Grade:
    """Reward = correct; the format is correct if a letter was chosen."""
    problem = rollout.problem
    chosen = find_letter(rollout.text, list_choices(problem))
    correct = chosen is not None and chosen == _match_letter(problem.answer, list_choices(problem))
    reason = "no letter chosen" if chosen is None else "the same choice" if correct else "another choice"
    return Grade(float(correct), correct, chosen is not None, chosen, {"correct": float(correct)}, "string", reason)


def find_letter(text: str, choices: Sequence[str] = ()) -> str | None:
    """Return the letter that the final answer of a text chooses, directly or by the words of a choice; else None."""
    extracted = extract_final_answer(text)
    return _match_letter(extracted.answer, choices) if extracted else None


def list_choices(problem: Problem) -> list[str]:
    """Return the texts of a problem's choices; an empty list if it is not multiple choice."""
    choices = problem.meta.get("choices")
    return [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []


def _match_letter(answer: str, choices: Sequence[str]) -> str | None:
    """Return the letter that an answer names, or that of the choice with its words."""
    answer = answer.strip()
    match = CHOICE.match(answer)
    if match:
        behind = FONT.sub("", answer[match.end() :])
        apart = match["apart"] is not None
        if _is_its_text(match.group(1), behind, choices) and not (apart and _is_doubtful(answer, behind, choices)):
            return match.group(1).upper()
    words = [_normalize_words(choice) for choice in choices]
    index = words.index(_normalize_words(answer)) if words.count(_normalize_words(answer)) == 1 else len(LETTERS)
    return LETTERS[index] if index < len(LETTERS) else None


def _is_doubtful(answer: str, behind: str, choices: Sequence[str]) -> bool:
    """Return whether the words after a letter without a mark weaken it, or are those of another choice."""
    letter, text = read_worded_option(answer), _strip_words(behind)
    return letter is None or any(
        _strip_words(choice) == text and index != LETTERS.index(letter) for index, choice in enumerate(choices)
    )


def _is_its_text(letter: str, behind: str, choices: Sequence[str]) -> bool:
    """Return whether the text after a letter leaves it the only chosen one."""
    text = behind.strip(CLOSING + ",")
    index = LETTERS.index(letter.upper())
    if not text or (index < len(choices) and _strip_words(choices[index]) == _strip_words(text)):
        return True
    return not (is_denied(letter.upper(), text) or _names_another(letter, behind.rstrip(". ")))


def _names_another(letter: str, behind: str) -> bool:
    """Return whether the text after a letter continues with another letter, or contains one marked as a choice."""
    following, marked = OTHERS[letter.isupper()]
    # Initials are not choices: after a period or a colon, only the next letter is one.
    after = chr(ord(letter.upper()) + 1)
    others = [
        other
        for other in marked.finditer(BRACKETED.sub("", behind))
        if other.group().endswith(")") or other[2].upper() == after
    ]
    position = 0
    while (match := following.match(behind, position)) is not None:
        others.append(match)
        position = match.end()
    return any((other[1] or other[2]).upper() != letter.upper() for other in others)


def _strip_words(text: str) -> str:
    return _normalize_words(FONT.sub("", text)).strip(CLOSING + ",")


def _normalize_words(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .")
