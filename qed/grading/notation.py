"""Spellings that stand for others: what only dresses an answer goes, and what has several notations gets one."""

from __future__ import annotations

import re
from collections.abc import Callable

QUOTES = frozenset("\"'`*")  # and Markdown's signs
COLOUR = re.compile(r"\\(?:text)?color ?\{[^{}]{0,30}\}")
AMERICAN = re.compile(r"\bU\.?S\.? ?(?=\\?\$)")
# An interval in the notation ]0, 1[, whose brackets turn their backs on what is left out.
OUTWARD = re.compile(r"([\[\]])([^\[\](){}]{1,200}[,;][^\[\](){}]{1,200})([\[\]])")
UNION = re.compile(r"([)\]}]) ?U ?([(\[\\])")
MODULO = re.compile(r"(?:\( ?\\?b?mod|(?<![\\A-Za-z])mod) ?([^(){},]{1,30})(?:\)|$)")
EXCEPT = re.compile(r"^(?:\\text ?\{ ?)?all real (?:numbers|values) except(?: for)? ?\}? ?([^A-Za-z]{1,30}[^ ]{0,30})$")
SYMBOLS = r"[gmsL]|[ckm]m|[km]g|m[lL]|ft|in|lb|oz|mi|hr"
WORDS = rf"(?:{SYMBOLS})(?=\\|\))|[A-Za-z][A-Za-z '-]{{2,60}}"
BEFORE = r"(?:\\boxed ?\{|\\?\$| ){0,4}[-\d.,/]{0,29}\d"
COUNTED = re.compile(rf"^({BEFORE}) {{0,4}}(?:\\left)?\(({WORDS})(?:\\right)?\)([.}}$ ]{{0,5}})$")
ELLIPSIS = re.compile(r"(\d\.\d{3,40}) ?(?:\.\.\.|\\[lc]?dots)(?![A-Za-z\d])")
COMMAND_SPELLINGS = (
    ("\\text{,}", "{,}"),
    ("\\left.", ""),
    ("\\right.", ""),
    ("\\not=", "\\neq "),
    ("\\not =", "\\neq "),
    ("\\mathbf{R}", "\\mathbb{R}"),
)


def unwrap_text(text: str) -> str:
    """A text without quotes and wrappers, in the notation that the parser reads."""
    if text.startswith("$") and text.endswith("$") and text.count("$") == 2 and not text.endswith("\\$"):
        text = text[1:-1].strip()
    for _ in range(3):
        if len(text) > 2 and text[0] == text[-1] and text[0] in QUOTES:
            text = text[1:-1].strip()
    for mark, rewrite in REWRITES:
        if mark in text:
            text = rewrite(text)
    return text


def _replace_commands(text: str) -> str:
    text = text.removeprefix("\\displaystyle ")
    for old, new in COMMAND_SPELLINGS:
        text = text.replace(old, new)
    if "\\over" in text and "{" not in text:
        text = f"{{{text}}}"
    if text.startswith("\\(") and text.endswith("\\)"):
        text = text[2:-2].strip()
    return text.rstrip("\\ ") if text.endswith("\\") else text


def _strip_counted_noun(text: str) -> str:
    """8 packs of gum for 8 (packs of gum)."""
    found = COUNTED.match(text)
    return f"{found[1]}\\text{{ {found[2].replace('-', '')}}}{found[3]}" if found is not None else text


def _rewrite_outward_brackets(text: str) -> str:
    if text.endswith("[") or text.startswith(("]", "\\left]")):
        return OUTWARD.sub(_rewrite_interval, text.replace("\\left", "").replace("\\right", ""))
    return text


def _rewrite_interval(found: re.Match[str]) -> str:
    """(0, 1) for ]0, 1[."""
    opening, inside, closing = found.groups()
    return ("(" if opening == "]" else "[") + inside + (")" if closing == "[" else "]")


def _rewrite_ellipses(text: str) -> str:
    return ELLIPSIS.sub(_rewrite_period, text).replace("...", "\\ldots ")


def _rewrite_period(found: re.Match[str]) -> str:
    """0.1666… is 0.1 with a period of 6, where the period is written three times, or twice if it is longer. A period
    of 9 is left as it is: 0.999… is written for what comes close to one."""
    digits = found.group(1)
    decimals = len(digits) - digits.index(".") - 1
    for length in range(1, decimals // 2 + 1):
        period = digits[-length:]
        times = 3 if length == 1 else 2
        if period != "9" and times * length <= decimals and digits.endswith(period * times):
            return f"{digits[: len(digits) - length * times]}\\overline{{{period}}}"
    return found.group()


# Each is tried only where its mark is in the text.
REWRITES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("\\", _replace_commands),
    ("color", lambda text: COLOUR.sub("", text)),
    (")", _strip_counted_noun),
    ("...", _rewrite_ellipses),
    ("dots", _rewrite_ellipses),
    ("clock", lambda text: text.replace("o'clock", "")),
    ("per cent", lambda text: text.replace("per cent", "percent")),
    ("mod", lambda text: MODULO.sub(r"\\pmod{\1}", text)),
    ("except", lambda text: EXCEPT.sub(r"\\mathbb{R}\\setminus\\{\1\\}", text)),
    ("+/-", lambda text: text.replace("+/-", "\\pm ")),
    ("S", lambda text: AMERICAN.sub("", text)),
    ("U", lambda text: UNION.sub(r"\1\\cup \2", text)),
    ("[", _rewrite_outward_brackets),
    ("]", _rewrite_outward_brackets),
)
