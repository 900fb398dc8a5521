"""Choices: the letter of an option, or yes and no, in several languages."""

from __future__ import annotations

import re

from qed.grading.choices import UNSETTLED, is_settled, read_worded_option
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
    r"|(?<![A-Za-z\\])\(?([A-HJ])\)?(?= (?:is|would be|must be|remains|seems) (?:(?:the|our|my) )?(?:only )?(?:correct|"
    r"right|best|true|answer|one|"
    r"possib|choice|option|solution|left|remaining))"
    r"|\b(?i:so|therefore|hence|thus|leaves|leaving|only)\b,? (?:it is |it's |it must be |the answer is |only )?"
    r"\(?([A-HJ])\)?(?=[.\s!]{0,3}$)"
    r"|\b(?i:conclusion|result|solution): ?\(?([A-J])\)?(?=[.\s!]{0,3}$)"
    r"|\b(?i:making|leaving) (?:option )?\(?([A-HJ])\)?"
    r"(?= (?:as )?the (?:only |correct |right |best )?(?:answer|choice|option))"
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
# Option B, which is 12: a letter and a description of its option.
DESCRIBED = re.compile(r"[\s*]{0,4}((?i:option|choice) )?(\()?([A-J])\)?\*{0,2},? which is ([^\n]{1,200})")
# C is our | answer.
SUBJECT = re.compile(
    r"^\W{0,4}(?i:so |hence |thus |therefore )?(?i:option |choice )?\(?([A-J])\W{1,4}is (?:our|my) (?:final )?$"
)
CHINESE = re.compile(
    r"(?:(?:因此|所以|故|综上)[，,]?)?(?:本题|该题|此题|答案)?(?:应|应该)?选(?:项|择)?[:：]?[A-J]"
)  # 本题选B
FORMULA = re.compile(r"[\d$\\=]")
# Hence (C) 5. It must be B) 12: a sentence that concludes with an option and its number.
CONCLUDED = re.compile(
    r"\W{0,3}(?i:(?:(?:so|hence|thus|therefore)(?:,? (?:it|this|that) (?:must be|is))?|(?:it|this|that) must be),?) "
    r"(?i:option |choice )?(?:\(([A-J])\)|([A-J])\)) \$?-?[\d.,/]{1,20}%?\$?[^\w\n]{0,3}"
)
NEGATIONS = ("not", "n't", "n’t", "nor", "never", "不", "不能", "不应", "不该", "不要", "别")
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
    if (letter := find_worded_option(announced) or _find_described_letter(announced)) is not None:
        return letter
    return announced.strip(" .*:") if OPTION.match(announced) is not None else None


def find_worded_option(text: str) -> str | None:
    """Return the letter before the words of its option, in bold or not."""
    return read_worded_option(text.replace("*", ""))


def _find_described_letter(announced: str) -> str | None:
    """Return the letter of option B, which is 12. Without a mark, B may be a name and the number its value."""
    match = DESCRIBED.fullmatch(announced)
    if match is None or not is_settled(match[4]) or not (match[1] or match[2] or FORMULA.search(match[4]) is None):
        return None
    return match[3]


def find_chosen_letter(sentence: str) -> str | None:
    """Return the letter that a sentence chooses and does not deny."""
    if (concluded := CONCLUDED.fullmatch(sentence)) is not None:
        return concluded[1] or concluded[2]
    chosen = None
    for match in CHOSEN.finditer(sentence):
        letter = next(filter(None, match.groups()))
        before = sentence[: match.start()].rstrip().casefold()
        if not DENIED.match(sentence, match.end()) and not before.endswith(NEGATIONS):
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
