"""The conclusion of a response in words: which of its sentences states the answer, and which answer."""

from __future__ import annotations

import re

from qed.grading.extraction import chains, choices, words
from qed.grading.extraction.announcements import read_announcement
from qed.grading.extraction.boxes import find_last
from qed.grading.extraction.outcome import (
    ASKED,
    HEDGED,
    NEGATED,
    NOT_FOUND,
    RETRACTED,
    Extracted,
    Refusal,
    Result,
)
from qed.grading.extraction.parts import split_parts
from qed.grading.extraction.pieces import CONJUNCTIONS, read_pieces
from qed.grading.extraction.sentences import MAX_TAIL_CHARS, Sentence, split_sentences
from qed.grading.extraction.statement import read_clause
from qed.grading.spoken import read_number

MAX_WHOLE_CHARS = 400
MAX_SEARCHED = 4  # sentences from the end that may state the answer without announcing it
LAST_LINE = re.compile(r"(?:A|Ans|R|Q\.E\.F)[:：]\s?(?=\S)")
CONCLUDING = re.compile(r"\W{0,3}(?:so|therefore|thus|hence|finally|in conclusion|in total|overall)\b", re.IGNORECASE)
# GSM8K's solutions write a calculation before its result: $<<9*2=18>>18.
CALCULATOR = re.compile(r"<<[^<>\n]{0,200}>>")
HEADING = re.compile(
    r"(?:step|part|case|question|problem|example|method|solution|figure|table|section)\s?\W?\d+", re.IGNORECASE
)


def find_conclusion(text: str) -> Extracted | Refusal:
    """Return the answer that a text without boxes or tags states, or the reason why it states none."""
    found = _find_conclusion(CALCULATOR.sub("", text) if "<<" in text else text)
    if isinstance(found, Refusal):
        return found
    answer = found.answer.strip()
    return Extracted(answer, found.source) if answer else Refusal(NOT_FOUND)


def _find_conclusion(text: str) -> Extracted | Refusal:
    if (whole := read_whole(text)) is not None:
        return Extracted(whole, "whole") if isinstance(whole, str) else whole
    if (joined := join_parts(text[-MAX_TAIL_CHARS:])) is not None:
        return joined
    sentences = split_sentences(text)
    start, certain = find_retraction(sentences)
    if start:
        found = find_stated(sentences[start:])
        if isinstance(found, Extracted) or found.reason not in (NOT_FOUND, ASKED):
            return found
        if certain:
            return Refusal(RETRACTED)
    return find_stated(sentences)


def join_parts(text: str) -> Extracted | None:
    """Return the answers of labelled parts as one list, if each part states one."""
    stated = [find_stated(split_sentences(part)) for part in split_parts(text)]
    answers = [found.answer for found in stated if isinstance(found, Extracted)]
    return Extracted(", ".join(answers), "parts") if answers and len(answers) == len(stated) else None


def read_whole(text: str) -> Result:
    """Read a response that contains nothing but an answer: a formula, several values, a letter, one or two words."""
    sentences = split_sentences(text) if len(text) <= MAX_WHOLE_CHARS and len(text.strip().splitlines()) == 1 else []
    if len(sentences) != 1 or sentences[0].asked:
        return None
    line = sentences[0].text.strip(" *_")
    if (formula := _read_whole_formula(line, text.strip(" *").endswith("!"))) is not None:
        return formula
    plain = line.rstrip(".!。")
    letter = choices.ALONE.fullmatch(line) or choices.LETTER.fullmatch(choices.ARTICLE.sub("", plain, count=1))
    if letter is not None:
        return letter.group(1)
    chinese = choices.CHINESE.fullmatch(plain) is not None
    chosen = choices.find_chosen_letter(plain) if chinese else choices.find_worded_option(line)
    if chosen is not None:
        return chosen
    if 0 < len(plain.split()) <= 2 and len(plain) <= 40 and plain.replace(" ", "").isalpha():
        stated = any(pattern.search(plain) for pattern in (words.SO, words.COPULA, words.ANSWER))
        if not stated:
            return plain
    return plain if read_number(plain.casefold().replace("-", " ").split()) is not None else None


def _read_whole_formula(line: str, exclaimed: bool) -> Result:
    """Read a line of values that are separated only by signs, `and` or `or`."""
    pieces = read_pieces(line)
    formula = all(
        piece.kind in ("value", "name") or piece.text.casefold() in CONJUNCTIONS or piece.text in ",;、，；."
        for piece in pieces
    )
    if not pieces or pieces[0].kind != "value" or not formula or line.rstrip(". ").endswith("+"):
        return None
    if len(pieces) == 1 and exclaimed:
        return f"{pieces[0].text}!"
    if chains.is_derivation([piece.text for piece in pieces if piece.kind == "value"]):
        return chains.simplify(pieces[-1].text)
    inside = line.rstrip(". ")
    return chains.simplify(pieces[0].text) if len(pieces) == 1 or inside == pieces[0].text else inside


def find_retraction(sentences: list[Sentence]) -> tuple[int, bool]:
    """Cut the sentences at the last retraction; return the index of what follows it, and whether it is certain."""
    for index in range(len(sentences) - 1, -1, -1):
        sentence = sentences[index]
        certain = find_last(words.RETRACTION, sentence.text)
        match = certain or find_last(words.SOFT_RETRACTION, sentence.text)
        if match is None or (
            certain is None and ((index == 0 and match.start() == 0) or words.CHECK.match(sentence.text[match.end() :]))
        ):
            continue
        rest = sentence.text[match.end() :].strip(" ,:;.-—–")
        sentences[index] = sentence._replace(text=rest, bold=tuple(bold for bold in sentence.bold if bold in rest))
        return index + (not rest), certain is not None
    return 0, False


def find_stated(sentences: list[Sentence]) -> Extracted | Refusal:
    """Return what the sentences state: an announced answer, a value in bold, a choice, or the last statement."""
    denied: list[str] = []
    found = find_announced(sentences, denied)
    for find in (find_bold, find_choice, find_last_statement):
        if found is not None:
            break
        found = find(sentences)
    if isinstance(found, Extracted) and any(_mentions(sentence, found.answer) for sentence in denied):
        return Refusal(RETRACTED)
    return found or Refusal(NEGATED if denied else ASKED if any(one.asked for one in sentences) else NOT_FOUND)


def _mentions(sentence: str, answer: str) -> bool:
    return any(piece.text.strip("$ ") == answer for piece in read_pieces(sentence) if piece.kind == "value")


# An announced answer


def find_announced(sentences: list[Sentence], denied: list[str]) -> Extracted | Refusal | None:
    """Return the answer that the last sentence with `answer is` or the like announces."""
    if len(sentences) > 1 and (last := LAST_LINE.match(sentences[-1].text)) is not None:
        found = read_clause(sentences[-1].text[last.end() :], announced=True)
        if found is not None:
            return Extracted(found, "phrase") if isinstance(found, str) else found
    refusal: Refusal | None = None
    for sentence in reversed(sentences):
        if sentence.asked or words.ANSWER.search(sentence.text) is None:
            continue
        found = read_announcement(sentence.text)
        if isinstance(found, str):
            return Extracted(found, "phrase")
        if found is not None and found.reason == NEGATED:
            denied.append(sentence.text)
        elif found is not None and refusal is None:
            refusal = found
    return refusal


# An answer without an announcement


def find_bold(sentences: list[Sentence]) -> Extracted | Refusal | None:
    """Return the last value in bold text, if its sentence does not deny it and no later sentence concludes."""
    for sentence in reversed(sentences):
        if not states_something(sentence):
            continue
        if not _has_bold_value(sentence):
            if CONCLUDING.match(sentence.text) and isinstance(read_clause(sentence.text, closing=False), str):
                return None
            continue
        return _read_bold(sentence, sentence.bold[-1].strip(" .:"))
    return None


def _has_bold_value(sentence: Sentence) -> bool:
    """Return whether the last bold text of a sentence has a value and is not a heading or label."""
    bold = sentence.bold[-1].strip() if sentence.bold else ""
    label = bold.endswith(":") or sentence.text.startswith((f"{bold}:", f"{bold} :"))
    if not bold or label or HEADING.match(bold):
        return False
    return any(piece.kind == "value" for piece in read_pieces(bold))


def _read_bold(sentence: Sentence, bold: str) -> Extracted | Refusal | None:
    whole = read_clause(sentence.text)
    if isinstance(whole, Refusal) and whole.reason in (NEGATED, HEDGED):
        return whole
    if choices.OPTION.fullmatch(bold) is not None:
        return Extracted(bold, "bold")
    found = read_whole(bold) or read_clause(bold)
    if isinstance(found, str) and isinstance(whole, str) and found in whole:
        found = whole  # **5** cm
    return Extracted(found, "bold") if isinstance(found, str) else found


def find_choice(sentences: list[Sentence]) -> Extracted | Refusal | None:
    """Return the choice letter, or the yes or no, at the beginning or end of the text."""
    stated = [one for one in sentences if not one.asked]
    if not stated:
        return None
    for sentence in reversed(stated[-2:]):
        if (letter := choices.find_chosen_letter(sentence.text)) is not None:
            return Extracted(letter, "letter")
    if (letter := choices.find_leading_letter(stated[0].text)) is not None:
        return Extracted(letter, "letter")
    closing = choices.CLOSING.search(stated[-1].text) if words.SO.search(stated[-1].text) else None
    if closing is not None:
        return Extracted(closing.group(1), "word")
    for sentence in (stated[-1], stated[0]):
        if (word := choices.read_yes_or_no(sentence.text)) is not None:
            return Extracted(word, "word")
    return None


def find_last_statement(sentences: list[Sentence]) -> Extracted | Refusal | None:
    """Return what the last sentence states that is not a remark, a check or a question."""
    searched = 0
    if (named := join_last_equations(sentences)) is not None:
        return Extracted(named, "sentence")
    if any(words.GIVING_UP.search(sentence.text) for sentence in sentences[-MAX_SEARCHED:]):
        return Refusal(NOT_FOUND)
    refusal: Refusal | None = None
    for sentence in reversed(sentences):
        if not states_something(sentence):
            continue
        searched += 1
        found = read_clause(sentence.text, closing=searched == 1)
        if isinstance(found, str):
            return Extracted(found, "sentence")
        if found is not None and found.reason != NEGATED:
            return found
        refusal = refusal or found
        if searched >= MAX_SEARCHED:
            break
    return refusal


def states_something(sentence: Sentence) -> bool:
    """Return whether a sentence is a statement, and not a question, a remark, a check or only an assumption."""
    if sentence.asked or words.REMARK.match(sentence.text) or words.CHECK.match(sentence.text):
        return False
    return words.HYPOTHESIS.match(sentence.text) is None or words.SO.search(sentence.text) is not None


def join_last_equations(sentences: list[Sentence]) -> str | None:
    """Return the equations on the last lines as one answer, if each gives a different name a value."""
    equations: list[str] = []
    for sentence in reversed(sentences):
        if chains.NAMED.fullmatch(sentence.text.strip(" .,;$")) is None:
            break
        equations.insert(0, sentence.text.strip(" .,;$"))
    return chains.join_named(equations)
