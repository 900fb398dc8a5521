"""The final answer in a text. Every search is linear in the text's length, whatever the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# An escaped sign is no brace. Each alternative begins in its own way, so the search never goes back.
BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{|\\.|[{}]", re.DOTALL)
TAGS = ("<answer>", "</answer>")
BOXES = ("\\boxed", "\\fbox")
THINKING_ENDS = "</think>"
# A sampler that runs on writes the next turn; the answer stands before it.
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
# Each alternative begins with another sign, or is decided by the second one: nothing to go back to.
LIST = re.compile(r"(?:[-\d./, ]|and\b|or\b|[a-zA-Z] ?= ?)+")
TUPLE = re.compile(r"[(\[][-+\d./, ]{3,60}[)\]]")
LONGEST_SENTENCE = 1_000
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
# A value that no plain number says: 12π, 3√2, 2^n.
FORMULA_SIGNS = re.compile(r"[π√\\^]")
STATES = re.compile(r" (?:is|are|equals|=|be) ")
# Without braces LaTeX boxes one sign; what is meant is the number.
BARE_BOX = re.compile(r"\\boxed\s?(-?\d[\d.,]{0,40}|[A-Z]\b)")


@dataclass(frozen=True)
class Extracted:
    """An answer, and the convention by which it was found."""

    answer: str
    source: str


def find_between(text: str, opening: str, closing: str) -> str | None:
    """What stands between the last `opening` and the next `closing` behind it, stripped; None where either is
    missing."""
    start = text.rfind(opening)
    if start < 0:
        return None
    start += len(opening)
    end = text.find(closing, start)
    return text[start:end].strip() if end >= 0 else None


def find_last_boxed(text: str) -> str | None:
    r"""The content of the complete `\boxed{…}` that begins last, braces matched; None where there is none."""
    begin, end = max(_find_boxes(text, ("\\boxed",)), default=(-1, -1))
    return text[begin:end].strip() if begin >= 0 else None


def _find_boxes(text: str, names: tuple[str, ...] = BOXES) -> Iterator[tuple[int, int]]:
    """Where the content of every complete box begins and ends."""
    opened: list[int] = []  # where the content of each open brace begins, or -1 for a brace that opens no box
    for sign in BRACES.finditer(text):
        found = sign.group()
        if found == "}":
            start = opened.pop() if opened else -1
            if start >= 0:
                yield start, sign.start()
        elif found[-1] == "{" and len(found) != 2:
            opened.append(sign.end() if found[:-1].strip() in names else -1)


def extract_final_answer(text: str, mode: str = "flexible", tags: tuple[str, str] = TAGS) -> Extracted | None:
    """The final answer of a response, and where it was found.

    `strict` takes a complete box, an answer tag or a `####` line; `flexible` also takes what the text says in words,
    down to its last number; `lenient` goes on to a box or tag that never closes. `tags` are what an answer stands
    between, such as <answer> and </answer>.
    """
    if mode not in MODES:
        raise ValueError(f"{mode!r} is no mode of extraction: {', '.join(MODES)}")
    text = _cut_to_last_turn(text)
    for source, find in MODES[mode]:
        found = TAGGED[source](text, tags) if source in TAGGED else find(text)
        if found is not None and found.strip():
            return Extracted(found.strip(), source)
    return None


def _cut_to_last_turn(text: str) -> str:
    """The text behind the thinking, and before a next turn."""
    text = text.rpartition(THINKING_ENDS)[2]
    ends = [place for turn in TURNS if (place := text.find(turn)) > 0]
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
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


def _find_tag(text: str, tags: tuple[str, str] = TAGS) -> str | None:
    answer = find_between(text, *tags)
    return None if answer is None else _find_box(answer) or answer


def _find_hashes(text: str) -> str | None:
    """The last line behind ####; elsewhere these signs are a heading."""
    line = text.rpartition("####")[2].strip()
    return line if "####" in text and "\n" not in line else None


def _find_phrase(text: str) -> str | None:
    """What stands behind the `A:` that begins the last line, or else behind the last `answer is`."""
    if _has_unfinished_box(text):
        return None
    line = text.rstrip().rpartition("\n")[2].strip()
    if "\n" in text.strip() and line.startswith("A:"):
        return _read_statement(line[2:])
    found = _find_last(PHRASE, text)
    return _read_statement(text[found.end() : found.end() + LONGEST_SENTENCE]) if found is not None else None


def _read_statement(tail: str) -> str | None:
    """The answer at the beginning of a tail: between delimiters, or as a sentence."""
    tail = tail.lstrip(" \t\r\n:*=")
    for opening, closing in DELIMITERS:
        if tail.startswith(opening):
            inside, found, _ = tail[len(opening) :].partition(closing)
            if found:
                return inside
    end = SENTENCE_END.search(tail)
    sentence = tail[: end.start()] if end else tail
    return _read_sentence(sentence.strip().strip("*").strip())


def _read_sentence(sentence: str) -> str | None:
    """A short statement as it stands; in a longer one what follows `is`, or its last number."""
    if reason := REASON.search(sentence):
        sentence = sentence[: reason.start()]
    if len(sentence.split()) <= 3 or LIST.fullmatch(sentence):
        return sentence or None
    tail = sentence.rpartition(" is ")[2]
    if len(tail.split()) <= 3:
        return tail.strip().strip("$*")
    return _find_formula(sentence) or _find_closing_number(sentence)


def _find_bold(text: str) -> str | None:
    found = _find_last(BOLD, text)
    return found.group(1).strip().rstrip(".:") if found is not None and any(map(str.isdigit, found.group(1))) else None


def _find_letter(text: str) -> str | None:
    found = _find_last(LETTER, text)
    return next(filter(None, found.groups())) if found is not None else None


def _find_statement(text: str) -> str | None:
    """What the last line says that something is, where no single number says it: a formula without delimiters, a
    point, or several numbers."""
    line = text.strip().rpartition("\n")[2][-LONGEST_SENTENCE:].rstrip(". ")
    found = _find_last(STATES, line) if "$" not in line and "\\(" not in line else None
    tail = line[found.end() :] if found is not None else ""
    if not tail or _has_unfinished_box(text):
        return None
    several = LIST.fullmatch(tail) and len(set(NUMBER.findall(tail))) > 1
    short = len(tail.split()) <= 3 and FORMULA_SIGNS.search(tail)
    return tail if several or short or TUPLE.fullmatch(tail) else None


def _find_closing_number(text: str) -> str | None:
    if _has_unfinished_box(text):
        return None
    found = _find_last(NUMBER, text)
    return found.group() if found is not None else None


def _find_formula(text: str) -> str | None:
    """The last formula of the last line, unless a number follows it."""
    line = text.strip().rpartition("\n")[2]
    pieces = line.replace("\\(", "$").replace("\\)", "$").replace("$$", "$").split("$")
    if _has_unfinished_box(text) or len(pieces) < 3 or len(pieces) % 2 == 0 or _find_last(NUMBER, pieces[-1]):
        return None
    return pieces[-2]


def _has_unfinished_box(text: str) -> bool:
    """A text that ends within a box or a tag was cut off: it has no answer."""
    return "\\boxed{" in text or text.rfind(TAGS[0]) > text.rfind(TAGS[1])


def _read_whole_text(text: str) -> str | None:
    """A response that is nothing but an answer in a word or two."""
    text = text.strip().rstrip(".")
    return text if len(text.split()) <= 2 and len(text) <= 40 and text.replace(" ", "").isalpha() else None


def _find_open_box(text: str) -> str | None:
    _, found, rest = text.rpartition("\\boxed{")
    return rest.partition("$")[0].partition("\n")[0][:LONGEST_SENTENCE] if found else None


def _find_open_tag(text: str, tags: tuple[str, str] = TAGS) -> str | None:
    return text.rpartition(tags[0])[2][:LONGEST_SENTENCE] if tags[0] in text else None


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
