"""Remove decoration around an answer, and unify different notations of a value."""

from __future__ import annotations

import re
from collections.abc import Callable

from qed.grading.spoken import read_number

QUOTES = frozenset("\"'`*")  # including those of Markdown
# Commands whose arguments are lengths, colours or labels, not parts of the answer.
LENGTH = r"-?[\d.]{1,8} ?(?:pt|em|ex|[cm]m|in|mu|pc|bp|sp)"
DRESSING = re.compile(
    r"\\(?:"
    r"[hvm]space\*? ?\{[^{}]{0,40}\}"
    r"|[hv]?phantom ?\{[^{}]{0,80}\}"
    rf"|(?:[hvm]skip|m?kern) ?{LENGTH}(?: plus {LENGTH})?"
    r"|(?:rule|fontsize) ?\{[^{}]{0,30}\} ?\{[^{}]{0,30}\}"
    r"|(?:tag\*?|label) ?\{[^{}]{0,40}\}"
    r"|(?:text|page)?color(?:box)? ?(?:\[[A-Za-z]{1,8}\])? ?\{[^{}]{0,30}\}"
    r"|fcolorbox ?\{[^{}]{0,30}\} ?\{[^{}]{0,30}\}"
    r"|(?:scalebox|raisebox|makebox) ?[\[{][^][{}]{0,20}[]}]"
    r")"
)
US_PREFIX = re.compile(r"\bU\.?S\.? ?(?=\\?\$)")
# An open interval in the notation ]0, 1[.
OUTWARD_BRACKETS = re.compile(r"([\[\]])([^\[\](){}]{1,200}[,;][^\[\](){}]{1,200})([\[\]])")
UNION = re.compile(r"([)\]}]) ?U ?([(\[\\])")
MODULO = re.compile(r"(?:\( ?\\?b?mod|(?<![\\A-Za-z])mod) ?([^(){},]{1,30})(?:\)|$)")
MODULO_WORD = re.compile(r"\\(?:text|mathrm|operatorname) ?\{ ?mod ?\}")
SET_BUILDER = re.compile(r"^\{ ?([a-z] ?(?:[:|]|\\mid|\\in)[^{}]{1,200})\}$")
EXCEPT = re.compile(
    r"^(?:\\text ?\{ ?)?(?:all|every) (?:real (?:numbers?|values?)|reals|real x|x)"
    r"(?: except(?: for)?| but| other than) ?\}? ?"
    r"(?:x ?= ?)?([^A-Za-z]{1,30}[^ ]{0,30})$",
    re.IGNORECASE,
)
SYMBOLS = r"[gmsL]|[ckm]m|[km]g|m[lL]|ft|in|lb|oz|mi|hr"
WORDS = rf"(?:{SYMBOLS})(?=\\|\))|[A-Za-z][A-Za-z '-]{{2,60}}"
BEFORE = r"(?:\\boxed ?\{|\\?\$| ){0,4}[-\d.,/]{0,29}\d"
COUNTED = re.compile(rf"^({BEFORE}) {{0,4}}(?:\\left)?\(({WORDS})(?:\\right)?\)([.}}$ ]{{0,5}})$")
ELLIPSIS = re.compile(r"(\d\.\d{3,40}) ?(?:\.\.\.|\\[lc]?dots)(?![A-Za-z\d])")
# A vector in < and >, which have no side before them.
ANGLE_BRACKETS = re.compile(r"(?:(?<=^)|(?<=[=,] )|(?<=[=,;(])|\\left ?)<([^<>=]{1,200},[^<>=]{1,200}?)(?:\\right ?)?>")
PRIMES = re.compile(r"\^ ?(?:\{ ?(?:\\prime ?){1,4}\}|\\prime(?![A-Za-z]) ?)")
# A brace on the left alone, around rows.
LEFT_BRACE = re.compile(r"\\left ?\\(?:\{|lbrace(?![A-Za-z])) ?\\begin ?\{(array|matrix|aligned|gathered|split)\}")
BRACE_END = re.compile(r"\\end ?\{(array|matrix|aligned|gathered|split)\} ?\\right ?\.")
COLUMNS = re.compile(r"(\\begin\{cases\}) ?\{[lcr| ]{1,9}\}")
ROWS = {"array": "cases", "matrix": "cases"}
COMMAND_SPELLINGS = (
    ("\\text{,}", "{,}"),
    ("\\left.", ""),
    ("\\right.", ""),
    ("\\not=", "\\neq "),
    ("\\not =", "\\neq "),
    ("\\mathbf{R}", "\\mathbb{R}"),
)


def unwrap_text(text: str) -> str:
    """Remove quotes and wrappers, and rewrite a text in the parser's notation."""
    if text.startswith("$") and text.endswith("$") and text.count("$") == 2 and not text.endswith("\\$"):
        text = text[1:-1].strip()
    for _ in range(3):
        if len(text) > 2 and text[0] == text[-1] and text[0] in QUOTES:
            text = text[1:-1].strip()
    for mark, rewrite in REWRITES:
        if mark in text:
            text = rewrite(text)
    return text


def _rewrite_left_brace(text: str) -> str:
    """Rewrite rows behind a brace as cases, or only drop the brace if & aligns their signs."""
    opened, closed = LEFT_BRACE.findall(text), BRACE_END.findall(text)
    if opened != closed:
        return text
    text = LEFT_BRACE.sub(lambda match: f"\\begin{{{ROWS.get(match[1], match[1])}}}", text)
    return COLUMNS.sub(r"\1", BRACE_END.sub(lambda match: f"\\end{{{ROWS.get(match[1], match[1])}}}", text))


def _replace_commands(text: str) -> str:
    text = _rewrite_left_brace(text.removeprefix("\\displaystyle "))
    for old, new in COMMAND_SPELLINGS:
        text = text.replace(old, new)
    if ("\\over" in text or "\\choose" in text) and "{" not in text:
        text = f"{{{text}}}"
    if text.startswith("\\(") and text.endswith("\\)"):
        text = text[2:-2].strip()
    return text.rstrip("\\ ") if text.endswith("\\") else text


def _strip_dressing(text: str) -> str:
    """Remove commands for space, colour, size and labels with their arguments: \\hspace{1cm} is not a number."""
    return DRESSING.sub(" ", text)


def _strip_counted_noun(text: str) -> str:
    """Rewrite 8 (packs of gum) as 8 packs of gum, but not 8 (eight)."""
    match = COUNTED.match(text)
    if match is None or read_number(match[2].replace("-", " ").casefold().split()) is not None:
        return text
    return f"{match[1]}\\text{{ {match[2].replace('-', '')}}}{match[3]}"


def _rewrite_outward_brackets(text: str) -> str:
    if text.endswith("[") or text.startswith(("]", "\\left]")):
        return OUTWARD_BRACKETS.sub(_rewrite_interval, text.replace("\\left", "").replace("\\right", ""))
    return text


def _rewrite_interval(match: re.Match[str]) -> str:
    """Rewrite ]0, 1[ as (0, 1)."""
    opening, inside, closing = match.groups()
    return ("(" if opening == "]" else "[") + inside + (")" if closing == "[" else "]")


def _rewrite_ellipses(text: str) -> str:
    return ELLIPSIS.sub(_rewrite_period, text).replace("...", "\\ldots ")


def _rewrite_period(match: re.Match[str]) -> str:
    """Rewrite 0.1666… as 0.1 with a period of 6.

    A period of one digit must occur three times, a longer one twice. A period of 9 is not rewritten, because 0.999…
    usually means a value close to one.
    """
    digits = match.group(1)
    decimals = len(digits) - digits.index(".") - 1
    for length in range(1, decimals // 2 + 1):
        period = digits[-length:]
        times = 3 if length == 1 else 2
        if period != "9" and times * length <= decimals and digits.endswith(period * times):
            return f"{digits[: len(digits) - length * times]}\\overline{{{period}}}"
    return match.group()


# Each rewrite runs only if its first string is in the text.
REWRITES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("\\", _replace_commands),
    *((mark, _strip_dressing) for mark in ("space", "color", "phantom", "kern", "skip", "box", "tag", "label", "rule")),
    ("fontsize", _strip_dressing),
    (")", _strip_counted_noun),
    ("...", _rewrite_ellipses),
    ("dots", _rewrite_ellipses),
    ("\\prime", lambda text: PRIMES.sub(lambda match: "'" * match.group().count("prime"), text)),
    ("clock", lambda text: text.replace("o'clock", "")),
    ("per cent", lambda text: text.replace("per cent", "percent")),
    ("mod", lambda text: MODULO.sub(r"\\pmod{\1}", MODULO_WORD.sub("mod ", text))),
    ("{", lambda text: SET_BUILDER.sub(r"\\{\1\\}", text)),
    ("except", lambda text: EXCEPT.sub(r"\\mathbb{R}\\setminus\\{\1\\}", text)),
    ("+/-", lambda text: text.replace("+/-", "\\pm ")),
    ("S", lambda text: US_PREFIX.sub("", text)),
    ("U", lambda text: UNION.sub(r"\1\\cup \2", text)),
    ("<", lambda text: ANGLE_BRACKETS.sub(r"\\langle \1\\rangle ", text)),
    ("[", _rewrite_outward_brackets),
    ("]", _rewrite_outward_brackets),
)
