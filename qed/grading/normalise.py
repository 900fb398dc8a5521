"""Normalise text: Unicode characters become LaTeX; invisible characters and delimiters are removed."""

from __future__ import annotations

import re
import unicodedata

from qed.grading.mixed import rewrite_mixed
from qed.grading.notation import unwrap_text

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙₖ", "0123456789+-()nk", strict=True))
FRACTIONS = {"½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45"}
FRACTIONS |= {"⅙": "16", "⅚": "56", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78", "⅐": "17", "⅑": "19"}
GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma_ sigma tau"
GREEK += " upsilon phi chi psi omega"
SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ",
    "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "∕": "/", "⁄": "/", "≤": r"\leq ", "⩽": r"\leq ", "≥": r"\geq ",
    "⩾": r"\geq ", "≠": r"\neq ", "±": r"\pm ", "∓": r"\mp ", "∞": r"\infty ", "√": r"\surd ", "∛": r"\sqrt[3]",
    "∜": r"\sqrt[4]", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ", "º": r"^\circ ",
    "℃": r"^\circ C", "℉": r"^\circ F", "′": "'", "’": "'", "‘": "'", "∠": r"\angle ", "△": r"\triangle ",
    "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "≈": r"\approx ", "≃": r"\approx ", "…": r"\ldots ", "→": r"\to ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "、": ",", "。": ".", "∶": ":", "‖": r"\|", "∣": "|", "∖": r"\setminus ", "％": "%", "﹪": "%",
    "【": "(", "】": ")", "“": '"', "”": '"',
    "Ø": r"\emptyset ", "≧": r"\geq ", "≦": r"\leq ",
    "،": ",", "٫": ".", "٬": ",", "٪": "%",
    "Å": r"\text{ angstrom}", "≡": r"\equiv ", "∧": r"\land ", "∨": r"\lor ", "∂": r"\partial ", "¢": r"\text{ cents}",
}  # fmt: skip
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f\u2061\u2062\u2063\ufe0f"


def _build_table() -> dict[int, str]:
    table = {ord(sign): latex for sign, latex in SIGNS.items()}
    table |= {ord(sign): rf"\frac{{{pair[0]}}}{{{pair[1]}}}" for sign, pair in FRACTIONS.items()}
    table |= {ord("⅒"): r"\frac{1}{10}"}
    table |= dict.fromkeys(map(ord, INVISIBLE), "")
    for index, name in enumerate(GREEK.split()):
        name = name.strip("_")
        table[ord("α") + index] = "o" if name == "omicron" else f"\\{name} "
    for upper in ("Γ", "Δ", "Θ", "Λ", "Ξ", "Π", "Σ", "Φ", "Ψ", "Ω"):
        name = unicodedata.name(upper).split()[-1].capitalize().replace("Lamda", "Lambda")
        table[ord(upper)] = f"\\{name} "
    return table | {ord("ϕ"): r"\phi ", ord("ϵ"): r"\epsilon ", ord("µ"): r"\mu "}


TABLE = _build_table()
RAISED = re.compile(f"[{''.join(SUPERSCRIPTS)}]+")
FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")  # of any script: ٢ and २ are 2
BRACED_COMMA = re.compile(r" ?\{, ?\}")
BRACED_DECIMAL = re.compile(r"(?<![\d.}])(\d{1,15}) ?\{, ?\} ?(\d{1,30})(?![\d{]| ?\{,)")
# `The answer is 5`, in \\text or not, becomes 5.
INTRODUCTION = re.compile(
    r"^(?:\\text ?\{ ?)?(?:the |my )?(?:final |correct )?answer(?: is)? ?:?(?: ?\} ?| )(?=.)", re.IGNORECASE
)
# Equations of different names may be separated by space alone, a = 1 \\quad b = 2, or by `for`: p = 1/2 for y = 1.
NEXT_EQUATION = re.compile(
    r"(?<![,;=<>&{(\[\\\s]) {0,3}(?:\\q?quad(?![A-Za-z])|\n|(?<= )for )(?:\s|\\q?quad(?![A-Za-z])){0,5}"
    r"(?=(?:[A-Za-z]|\\math(?:bf|rm) ?\{[A-Za-z]\})(?:_\{?\w{1,3}\}?)?(?:\([A-Za-z\d]\))? ?=)"
)
# A word before that space already joins the equations: x = 2 \\quad \\text{or} \\quad x = 3.
JOINED = re.compile(r"(?<![A-Za-z])(?:or|and) ?\}?$")
LOWERED = re.compile(f"[{''.join(SUBSCRIPTS)}]+")


def clean_text(text: str) -> str:
    """Convert a text to ASCII LaTeX, as far as its characters are in the table."""
    if not text.isascii():
        text = RAISED.sub(lambda run: "^{" + "".join(SUPERSCRIPTS[sign] for sign in run.group()) + "}", text)
        text = LOWERED.sub(lambda run: "_{" + "".join(SUBSCRIPTS[sign] for sign in run.group()) + "}", text)
        text = unicodedata.normalize("NFKC", text.translate(TABLE)).translate(TABLE)
        text = FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit.group())), text)
    text = unwrap_text(text.strip())
    if "," in text and "{" in text:
        text = BRACED_COMMA.sub(r",\\!", BRACED_DECIMAL.sub(_read_braced_comma, text))
    text = INTRODUCTION.sub("", _strip_dollars(text), count=1)
    several = text.count("=") > 1 and "\\begin" not in text
    return rewrite_mixed(NEXT_EQUATION.sub(_separate_equations, text) if several else text)


def _separate_equations(match: re.Match[str]) -> str:
    start = match.start()
    return " " if JOINED.search(match.string, max(start - 6, 0), start) else ", "


def _read_braced_comma(match: re.Match[str]) -> str:
    """Read 3{,}5 as 3.5, and keep the comma as a thousands separator in 1{,}234."""
    above, below = match.groups()
    thousands = len(below) == 3 and above != "0" and len(above) <= 3
    return match.group() if thousands else f"{above}.{below}"


def _strip_dollars(text: str) -> str:
    """Remove dollar signs around mathematics; a single one before a number is a currency sign."""
    if "$" not in text:
        return text
    money = text.replace("\\$", "\0")
    if money.count("$") % 2:
        index = money.find("$")
        if money[index + 1 : index + 2].isdigit():
            money = money[:index] + "\0" + money[index + 1 :]
    return money.replace("$", " ").replace("\0", "\\$").strip()
