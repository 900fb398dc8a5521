"""Choices: the letter of an option, or yes and no, in several languages."""

from __future__ import annotations

import re

from qed.grading.extraction.words import HEDGE

# A. Because …, (B), **C**: at the beginning of a response.
LEADING = re.compile(r"\W{0,4}(?:option |choice )?\(?([A-J])(?:(?:[).]|\*\*)(?=[\s*]|$)|, ?(?=since|because|as|not))")
LETTER = re.compile(r"\(?([A-J])\)?")
ALONE = re.compile(
    r"[\s*_$(\[{\"'“”「【（]{0,6}(?:\\(?:text|mathrm|mathbf|"
    r"textbf)\s?\{\s?\(?)?([A-J])[\s*_$)\]}.,:\"'“”」】）。]{0,6}"
)
CHOSEN = re.compile(
    r"(?i:option|choice|answer|alternative|opción|opção|option|choix|réponse|antwort|вариант|选项?|"
    r"選項?|选择|選擇|"
    r"故选|应选|choose|pick|select|go with|it's|it is)(?: "
    r"is)?\s{0,2}[:：]?\s?[\"'“(（\[]?([A-J])(?![A-Za-z'’])[\"'”)）\]]?"
    r"|(?<![\w(])\(([A-J])\)(?=\s{0,3}[.!。]?\s{0,3}$)"
    r"|(?<![A-Za-z\\])\(?([A-HJ])\)?(?= (?:is|would be|must be|remains|seems) (?:the )?(?:only )?(?:correct|"
    r"right|best|true|answer|one|"
    r"possib|choice|option|solution|left|remaining))"
    r"|\b(?i:so|therefore|hence|thus|leaves|leaving|only)\b,? (?:it is |it's |it must be |the answer is |only )?"
    r"\(?([A-H])\)?(?=[.\s!]{0,3}$)"
)
DENIED = re.compile(
    r"[\s)]{0,2}(?:is|are|was|can be|cannot|can't|isn't|does|doesn't)[^,.;]{0,30}"
    r"(?:not|n't|wrong|incorrect|false|out|eliminated)|[\s)]{0,2}(?:不|cannot|isn't|doesn't)",
    re.IGNORECASE,
)
YES_WORDS = (
    "yes|sí|si|oui|ja|да|sim|sì|tak|evet|是的?|对|對|正确|はい|예|네|نعم|हाँ|हां|vâng|ya|ναι|כן|jo|ano|da|yep|yeah"
)
NO_WORDS = (
    "no|non|nein|нет|não|nie|hayır|不是|否|不对|いいえ|아니요|아니오|لا|नहीं|không|tidak|όχι|לא|nej|nee|ne|nu|nope"
)
YES_NO = re.compile(rf"\W{{0,4}}({YES_WORDS}|{NO_WORDS})(?![\w'’-])", re.IGNORECASE)
RESTATED = re.compile(
    r"[,.:;—–-]\s{0,3}(?:it|it's|that's|x|the (?:answer|total|result|correct|value|sum))\b", re.IGNORECASE
)
CLOSING = re.compile(
    r"(?:^|[,;]\s?|\b)(?:so|therefore|thus|hence|also|donc|por lo tanto|значит)?,? ?(yes|no)(?=[,.!]?\s{0,3}$|, )",
    re.IGNORECASE,
)


# (C) 12, B. Paris: a letter and the text of its option.
OPTION = re.compile(
    r"[\s*$]{0,4}(?:option |choice )?(?:\([A-J]\)|[A-J][).:])[\s*$]{1,4}[^\s*$.].{0,200}", re.IGNORECASE
)
# B, since x = 3: the letter of an announced answer, and its reason.
JUSTIFIED = re.compile(
    r"[\s*]{0,4}(?:option |choice )?(?:\(([A-J])\)|([A-J]))\*{0,2},? (?:since|because) (.{1,400})", re.DOTALL
)
# A reason that names a letter, or words that may retract the answer: then the letter may not be the answer.
UNSETTLED = re.compile(
    r"(?<![\w\\])[A-J](?![\w'’])|n't|n’t|(?<!\w)(?i:no[tr]?|never|neither|wrong|incorrect|false|but|however|though|although|yet|or|"
    r"unless|except|instead|rather|cannot|fails?|out|eliminated|impossible|guess|so|therefore|thus|hence|which|making|i\.e)"
    r"(?!\w)|[=-]>|→|⇒"
)
# Words to strip before a letter, and endings of a sentence to strip after a word.
ARTICLE = re.compile(
    r"(?:(?:the|la|el|le|les|die|der|das|a|o|il|lo|de|option|choice|letter|opción|вариант|选项) |选项?|選項?)+",
    re.IGNORECASE,
)
ENDING = re.compile(r"(?:です|である|だ|になります|となります|입니다|이다|예요|이에요| ?है| ?हैं|'dir|'dır)[.。।\s]{0,3}$")


def find_leading_letter(text: str) -> str | None:
    """Return the letter at the beginning of the first sentence: A. Because B is wrong."""
    match = LEADING.match(text)
    if match is not None and DENIED.match(text, match.end()):
        return None
    match = match or LETTER.fullmatch(text.strip(" *."))
    return match.group(1) if match is not None else None


def find_announced_option(announced: str) -> str | None:
    """Return the option at the beginning of an announced answer: the letter before a reason, or (C) and its text."""
    match = JUSTIFIED.fullmatch(announced)
    if match is not None and not UNSETTLED.search(match.group(3)) and not HEDGE.search(match.group(3)):
        return match.group(1) or match.group(2)
    return announced.strip(" .*:") if OPTION.match(announced) is not None else None


def find_chosen_letter(sentence: str) -> str | None:
    """Return the letter that a sentence chooses and does not deny."""
    chosen = None
    for match in CHOSEN.finditer(sentence):
        letter = next(filter(None, match.groups()))
        if not DENIED.match(sentence, match.end()) and not sentence[: match.start()].rstrip().endswith(
            ("not", "n't", "nor")
        ):
            chosen = letter
    return chosen


def read_yes_or_no(sentence: str) -> str | None:
    """Return the yes or no at the beginning of a sentence, if a pause or nothing follows."""
    match = YES_NO.match(sentence)
    if match is None:
        return None
    after = sentence[match.end() :].lstrip("*_ ")
    if RESTATED.match(after) and match.group(1).casefold() not in YES_WORDS.split("|"):
        return None
    return match.group(1) if not after or after[0] in ",.!;:—–-。，、！،" else None
