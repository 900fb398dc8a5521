"""Extraction of the final answer of a text. Every search is linear in the length of the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# An escaped brace does not count. Each alternative begins differently, so the search never backtracks.
BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{|\\.|[{}]", re.DOTALL)
TAGS = ("<answer>", "</answer>")
BOXES = ("\\boxed", "\\fbox")
THINKING_END = "</think>"
# A sampler that does not stop writes the next turn; the answer is before it.
TURNS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")
PHRASE = re.compile(
    r"\b(?:final answer|answer|solution|result|value|option|choice)s? ?(?:is|are|:|=)"
    r"(?: (?:therefore|thus|hence|simply|just|then)\b,?)?\s?:?"
    r"|\banswer\b\s{0,3}(?=[$\\\d(*])",
    re.IGNORECASE,
)
DELIMITERS = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"), ("**", "**"), ("`", "`"))
SENTENCE_END = re.compile(r"\.(?=\s|$)|[\n。!?;]|I hope")
REASON = re.compile(r",? (?:because|since|which|where|so that|as)\b")
# The first or second character decides between the alternatives, so the search never backtracks.
LIST = re.compile(r"(?:[-\d./, ]|and\b|or\b|[a-zA-Z] ?= ?)+")
TUPLE = re.compile(r"[(\[][-+\d./, ]{3,60}[)\]]")
MAX_SENTENCE_CHARS = 1_000
NUMBER = re.compile(
    r"(?<![\w.])[-−]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[/:]\d+(?!\.?\d))?(?:\s?\\?%)?", re.ASCII
)
BOLD = re.compile(r"\*\*([^*\n]{1,300})\*\*")
LETTER = re.compile(
    r"(?:option|choice|answer|correct)\b[^\n.]{0,20}?\(?\b([A-J])\b\)?|^(?:\*\*)?\(?([A-J])[).]?(?:\*\*)?$"
    r"|\b(?:[Tt]herefore|[Hh]ence|[Tt]hus|[Ss]o),? (?:it is |it's )?\(?([A-H])\)?(?=[.\s]{0,3}$)"
    r"|\(([A-H])\)\.?$|^\(?([A-H])[).] ",
    re.MULTILINE,
)
# Signs of a value that is not a plain number: 12π, 3√2, 2^n.
FORMULA_SIGNS = re.compile(r"[π√\\^]")
STATES = re.compile(r" (?:is|are|equals|=|be) ")
# Without braces LaTeX boxes a single character, but the whole number is meant.
BARE_BOX = re.compile(r"\\boxed\s?(-?\d[\d.,]{0,40}|[A-Z]\b)")


@dataclass(frozen=True)
class Extracted:
    """An answer, and where in the text it was found."""

    answer: str
    source: str


def find_between(text: str, opening: str, closing: str) -> str | None:
    """Return the stripped text between the last `opening` and the next `closing`; None if either is missing."""
    start = text.rfind(opening)
    if start < 0:
        return None
    start += len(opening)
    end = text.find(closing, start)
    return text[start:end].strip() if end >= 0 else None


def find_last_boxed(text: str) -> str | None:
    r"""Return the content of the complete `\boxed{…}` that begins last, with matched braces; None if there is none."""
    begin, end = max(_find_boxes(text, ("\\boxed",)), default=(-1, -1))
    return text[begin:end].strip() if begin >= 0 else None


def _find_boxes(text: str, names: tuple[str, ...] = BOXES) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the content of every complete box."""
    starts: list[int] = []  # the start of the content of each open brace, or -1 for a brace that opens no box
    for match in BRACES.finditer(text):
        brace = match.group()
        if brace == "}":
            start = starts.pop() if starts else -1
            if start >= 0:
                yield start, match.start()
        elif brace[-1] == "{" and len(brace) != 2:
            starts.append(match.end() if brace[:-1].strip() in names else -1)


def extract_final_answer(text: str, mode: str = "flexible", tags: tuple[str, str] = TAGS) -> Extracted | None:
    """Extract the final answer of a response, and where it was found.

    `strict` accepts a complete box, an answer tag or a `####` line; `flexible` also accepts an answer in words, and in
    the end the last number; `lenient` also accepts a box or tag that is never closed. `tags` enclose an answer, such as
    <answer> and </answer>.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in MODES:
        raise ValueError(f"{mode!r} is no mode of extraction: {', '.join(MODES)}")
    text = _cut_to_last_turn(text)
    for source, find in MODES[mode]:
        answer = TAGGED[source](text, tags) if source in TAGGED else find(text)
        if answer is not None and answer.strip():
            return Extracted(answer.strip(), source)
    return None


def _cut_to_last_turn(text: str) -> str:
    """Return the text after the thinking and before any next turn."""
    text = text.rpartition(THINKING_END)[2]
    ends = [start for turn in TURNS if (start := text.find(turn)) > 0]
    return text[: min(ends)] if ends else text


def _find_box(text: str) -> str | None:
    if "box" not in text:
        return None
    filled = ((begin, end) for begin, end in _find_boxes(text) if text[begin:end].strip())
    begin, end = max(filled, default=(-1, -1))
    if begin >= 0:
        return text[begin:end]
    bare = _find_last(BARE_BOX, text)
    return bare.group(1).rstrip(".,") if bare is not None else None


def _find_last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _find_tag(text: str, tags: tuple[str, str] = TAGS) -> str | None:
    answer = find_between(text, *tags)
    return None if answer is None else _find_box(answer) or answer


def _find_hashes(text: str) -> str | None:
    """Return the text after the last #### if it is on the last line; elsewhere these signs are a heading."""
    line = text.rpartition("####")[2].strip()
    return line if "####" in text and "\n" not in line else None


def _find_phrase(text: str) -> str | None:
    """Return what follows the `A:` at the start of the last line, or else the last `answer is`."""
    if _has_unfinished_box(text):
        return None
    line = text.rstrip().rpartition("\n")[2].strip()
    if "\n" in text.strip() and line.startswith("A:"):
        return _read_statement(line[2:])
    phrase = _find_last(PHRASE, text)
    return _read_statement(text[phrase.end() : phrase.end() + MAX_SENTENCE_CHARS]) if phrase is not None else None


def _read_statement(tail: str) -> str | None:
    """Return the answer at the start of a text: between delimiters, or as a sentence."""
    tail = tail.lstrip(" \t\r\n:*=")
    for opening, closing in DELIMITERS:
        if tail.startswith(opening):
            inside, closed, _ = tail[len(opening) :].partition(closing)
            if closed:
                return inside
    end = SENTENCE_END.search(tail)
    sentence = tail[: end.start()] if end else tail
    return _read_sentence(sentence.strip().strip("*").strip())


def _read_sentence(sentence: str) -> str | None:
    """Return a short statement unchanged; of a longer one, what follows `is`, or its last number."""
    if reason := REASON.search(sentence):
        sentence = sentence[: reason.start()]
    if len(sentence.split()) <= 3 or LIST.fullmatch(sentence):
        return sentence or None
    tail = sentence.rpartition(" is ")[2]
    if len(tail.split()) <= 3:
        return tail.strip().strip("$*")
    return _find_formula(sentence) or _find_closing_number(sentence)


def _find_bold(text: str) -> str | None:
    bold = _find_last(BOLD, text)
    return bold.group(1).strip().rstrip(".:") if bold is not None and any(map(str.isdigit, bold.group(1))) else None


def _find_letter(text: str) -> str | None:
    letter = _find_last(LETTER, text)
    return next(filter(None, letter.groups())) if letter is not None else None


def _find_statement(text: str) -> str | None:
    """Return what follows `is` or `=` in the last line, if it is not a single number.

    That is a formula without delimiters, a point, or several numbers.
    """
    line = text.strip().rpartition("\n")[2][-MAX_SENTENCE_CHARS:].rstrip(". ")
    verb = _find_last(STATES, line) if "$" not in line and "\\(" not in line else None
    tail = line[verb.end() :] if verb is not None else ""
    if not tail or _has_unfinished_box(text):
        return None
    several = LIST.fullmatch(tail) and len(set(NUMBER.findall(tail))) > 1
    short = len(tail.split()) <= 3 and FORMULA_SIGNS.search(tail)
    return tail if several or short or TUPLE.fullmatch(tail) else None


def _find_closing_number(text: str) -> str | None:
    if _has_unfinished_box(text):
        return None
    number = _find_last(NUMBER, text)
    return number.group() if number is not None else None


def _find_formula(text: str) -> str | None:
    """Return the last formula of the last line, unless a number follows it."""
    line = text.strip().rpartition("\n")[2]
    pieces = line.replace("\\(", "$").replace("\\)", "$").replace("$$", "$").split("$")
    if _has_unfinished_box(text) or len(pieces) < 3 or len(pieces) % 2 == 0 or _find_last(NUMBER, pieces[-1]):
        return None
    return pieces[-2]


def _has_unfinished_box(text: str) -> bool:
    """Return whether the text ends within a box or a tag: it was cut off and has no answer."""
    return "\\boxed{" in text or text.rfind(TAGS[0]) > text.rfind(TAGS[1])


def _read_whole_text(text: str) -> str | None:
    """Return the whole response if it is an answer of one or two words."""
    text = text.strip().rstrip(".")
    return text if len(text.split()) <= 2 and len(text) <= 40 and text.replace(" ", "").isalpha() else None


def _find_open_box(text: str) -> str | None:
    _, opening, rest = text.rpartition("\\boxed{")
    return rest.partition("$")[0].partition("\n")[0][:MAX_SENTENCE_CHARS] if opening else None


def _find_open_tag(text: str, tags: tuple[str, str] = TAGS) -> str | None:
    return text.rpartition(tags[0])[2][:MAX_SENTENCE_CHARS] if tags[0] in text else None


Finder = Callable[[str], str | None]
TAGGED: dict[str, Callable[[str, tuple[str, str]], str | None]] = {"tag": _find_tag, "open tag": _find_open_tag}
STRICT: tuple[tuple[str, Finder], ...] = (("tag", _find_tag), ("box", _find_box), ("hashes", _find_hashes))
FLEXIBLE = (
    *STRICT,
    ("phrase", _find_phrase),
    ("bold", _find_bold),
    ("letter", _find_letter),
    ("statement", _find_statement),
    ("formula", _find_formula),
    ("number", _find_closing_number),
    ("whole", _read_whole_text),
)
MODES = {
    "strict": STRICT,
    "flexible": FLEXIBLE,
    "lenient": (*FLEXIBLE, ("open box", _find_open_box), ("open tag", _find_open_tag)),
}
