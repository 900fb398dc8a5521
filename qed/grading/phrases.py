r"""Rewrite phrases of an answer in mathematical notation: minus 7, x is at least 2, 3 to 5, the square root of 2.

A text without such a phrase stays unchanged, with its \text{…}.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from qed.grading.spoken import DENOMINATORS, MIXED
from qed.grading.vocabulary import FUNCTION_WORDS, JOINERS, NUMBER_WORDS, UNITS

# Units after a slash: 12/hour. Those of two or three letters are products of variables there, as in 12/ms.
RATE_UNITS = sorted(name for name in UNITS if len(name) > 3 and name.isascii() and not name.startswith("per"))
RATE = rf"(?:{'|'.join(RATE_UNITS)}|inch|hr|min|sec|day|yr|km|kg|lb)s?(?![A-Za-z])"
TRIGGER = re.compile(
    r"(?<![A-Za-z\\])(?:minus|negative|plus|positive|nonnegative|nonpositive|least|most|than|between|to|of|in|over"
    r"|times|divided|squared|cubed|choose|factorial|equals?|is|are|was|root|integers?|where|for|raised|exist|const|constant|the|an?|yes|no|all|any|every|exactly|only|just|numbers?|at|ratio|or)"
    r"(?![A-Za-z])|n't |^(?:\\(?:text|mathrm) ?\{ ?)?\\?(?:max|min)(?![A-Za-z])|'s |\\in\b.*[)}RZN]$|-to-|\+-|^[=:]"
    rf"|\\forall|/ ?(?:\\[a-z]{{2,10}} ?\{{ ?)?{RATE}",
    re.IGNORECASE,
)
TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|textit|textnormal|rm) ?\{([^{}]*)\}")
MARKS = (" ", "\\in", "\\text", "+-", "-to-", "=", ":", "/")  # every phrase contains one of them
MAX_CHARS = 300  # of a text whose phrases are rewritten
OPERAND = r"(?:\d(?:[\d.,/]{0,30}\d)?|[A-Za-z](?![A-Za-z])|\\(?:d?frac|sqrt)[^ ]{1,40}|\\?pi)"
SIGNED = rf"-?{OPERAND}"
END = r"(?=-?[\d.\\(]|-?[A-Za-z](?![A-Za-z])|infinity|infty|pi(?![A-Za-z]))"

SIGNS = {
    "greater than or equal to": "\\geq", "more than or equal to": "\\geq", "larger than or equal to": "\\geq",
    "at least": "\\geq", "no less than": "\\geq", "not less than": "\\geq",
    "less than or equal to": "\\leq", "smaller than or equal to": "\\leq", "at most": "\\leq",
    "no more than": "\\leq", "not more than": "\\leq", "no greater than": "\\leq", "not greater than": "\\leq",
    "strictly greater than": ">", "greater than": ">", "more than": ">", "larger than": ">", "bigger than": ">",
    "strictly less than": "<", "less than": "<", "fewer than": "<", "smaller than": "<",
    "not equal to": "\\neq", "equal to": "=", "equals": "=",
}  # fmt: skip
COMPARED = re.compile(rf"(?:\b(?:is|are|must be|should be|be) )?\b({'|'.join(SIGNS)}) {END}", re.IGNORECASE)
HALF_LINES = {"\\geq": r"[\2,\\infty)", ">": r"(\2,\\infty)", "\\leq": r"(-\\infty,\2]", "<": r"(-\\infty,\2)"}
HALF_LINE = re.compile(rf"^(\\geq|\\leq|>|<) ({SIGNED})$")
SIGN_WORDS = {"positive": "> 0", "negative": "< 0", "nonnegative": "\\geq 0", "nonpositive": "\\leq 0"}
SIGN_WORD = re.compile(r"^([a-z]) is (non-?)?(positive|negative)$", re.IGNORECASE)
BETWEEN = re.compile(
    rf"^(?:([A-Za-z]) (?:is |lies |must be )?)?(?:strictly )?between ({SIGNED}) and ({SIGNED})(,? ?\(?inclusive\)?)?$",
    re.IGNORECASE,
)
# The subject of a sentence: `the ratio is 3 to 5`. No negation may follow.
SUBJECT = re.compile(
    r"^(?!.{0,60}\b(?:wrong|incorrect|false|not|never|opposite|negative|reciprocal|inverse|other|twice|half)\b.* is )"
    r"(?:the|this|that|it|they|these|those|there)\b[A-Za-z' ]{0,60}? (?:is|are|was|were|equals?) "
    r"(?!not |never |n't |given |as |in |at |such |of )(.+)$"
    r"|^(?:it|they) (?:is|are) (?!not |never )(.+)$",
    re.IGNORECASE,
)
REAL_NUMBERS = re.compile(
    r"\b(?:the set of )?(?:all |any |every |a )?(?:real )?numbers? (?:that (?:is|are) |which (?:is|are) )?"
    r"(?=(?:strictly )?(?:greater|less|larger|smaller|at least|at most|between))"
)
# A property of a function, a number or a figure: f(x) is odd, ABCD is a rhombus.
PROPERTY = re.compile(
    r"^(?:[a-z](?:\([a-z]\))?|[A-Z]{2,5}|(?:[Tt]riangle|[Qq]uadrilateral) [A-Z]{3,5}) is (?:an? )?"
    r"((?!not |less |greater |at |more |between |posi|nega|non)[a-z]{3}[a-z ]{0,40})$"
)
REAL_PARAMETER = re.compile(
    r"(?<=[^ ,;])[,;] ?(?:where |with |for )?\(?[A-Za-z](?:_\d)? ?\\in ?\\mathbb ?\{? ?R ?\}?\)?$"
)
# A function of all real numbers: f(x) = 2x for all x.
EVERYWHERE = re.compile(
    r"^([A-Za-z]\(([A-Za-z])\) ?=.{1,200}?)(?: |,|\\q?quad|\\[,;:]|\()*"
    r"(?:(?<![A-Za-z\\])for (?:all|every|any|each)|\\forall) ?(?:real (?:numbers? )?)?"
    r"\2(?: ?\\in ?\\mathbb ?\{? ?R ?\}?)?\)?$"
)
PLAIN_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
# Of all integers from a number on, such as `all integers n > 3`, the condition alone is the answer.
FROM = r"(?:>|\\g(?:eq?|eqslant)(?![a-z]))"
INTEGERS_FROM = re.compile(
    rf"^(?:for )?(?:all|any|every) (?:positive )?integers? (?=[nmk] ?{FROM} ?\d{{1,30}}$)", re.IGNORECASE
)
MEMBERS_FROM = re.compile(
    rf"^(([nmk]) ?{FROM} ?-?\d{{1,30}})(?:[,;]| |\\q?quad){{0,6}}(?:where |with |for )?"
    r"\2 ?\\in ?\\mathbb ?\{? ?[ZN] ?\}?$"
)
SLASHED = re.compile(
    r"^((?:[A-Za-z] ?= ?)?-?(?:\\?[$€£] ?)?\d[\d.,]{0,30})((?: [A-Za-z]{1,20}){0,3})"
    rf" ?/ ?({RATE})$",
    re.IGNORECASE,
)
TWO_BOUNDS = re.compile(rf"^([a-z]) (>|<|\\geq|\\leq) ({SIGNED}) and (>|<|\\geq|\\leq) ({SIGNED})$")
OR_MORE = re.compile(
    rf"^({SIGNED}) or (more|greater|above|larger|higher|less|fewer|below|smaller|lower)$", re.IGNORECASE
)
MORE = {"more", "greater", "above", "larger", "higher"}
INTEGER = r"(\\mathbb ?\{? ?[ZN] ?\}?|Z(?![a-z]))"
MEMBER = re.compile(
    rf"[,;]? ?(?:where |for |with )?(?:any |all |every )?\(? ?(?<![A-Za-z\\])([a-z]) ?\\in ?{INTEGER} ?\)?$"
)
INTEGER_WORDS = re.compile(
    r"[,;]? ?\(?(?:where |with |for |and )?(?<![A-Za-z])([a-z]) (?:is |being |be |are )?(?:an? |any |some )?"
    r"(?:arbitrary )?integers?\)?$"
    r"|[,;]? ?\(?(?:where |with |for )(?:an? |any |all |every |each |some )?(?:arbitrary )?integers? ([a-z])\)?$"
)
CONSTANT_WORDS = re.compile(
    r"[,;]? ?\(?(?:where |with |for )(?:any )?[A-Za-z](?:_\d)?(?:(?: and |, ?)[A-Za-z](?:_\d)?){0,2} (?:is |are |be )?"
    r"(?:an? |any |the |some )?(?:arbitrary |real |integration )?constants?(?: of integration)?\)?$"
    r"|[,;]? ?\(?(?:where |with |for )(?:an? |any |some )(?:arbitrary |real ){0,2}constant [A-Za-z](?:_\d)?\)?$"
)
# A sequence may say that its index is a positive integer: a_n = 3n - 2, n >= 1.
INDEXED = re.compile(
    r"^([A-Za-z]_(?:n|\{n\}) ?=[^=<>,;]{1,200}?)(?:[ ,;]|\\q?quad|\\[,;:]){0,6}\(? ?"
    r"(?:for |where |with )?(?:all |every |any )?"
    r"n ?(?:\\in ?\\mathbb ?\{? ?[NZ] ?\}? ?(?:\^ ?\{?[*+]\}?|_ ?\{?\+\}?)|(?:>=|\\g(?:eq?|eqslant)(?![a-z])) ?1) ?\)?$"
)

# Yes, it is. No, it does not. The two halves must agree.
ANSWERED = re.compile(
    r"^(?:(yes)[,;.]? (?:it|they|he|she|this|that|we|you|there) (?:is|are|does|do|can|has|have|will|was)"
    r"|(no)[,;.]? (?:it|they|he|she|this|that|we|you|there) (?:is|are|does|do|can|has|have|will|was) ?not)$",
    re.IGNORECASE,
)
SHORT_NOUN = re.compile(r"^(?:an?|the) ([a-z]{3})$", re.IGNORECASE)
SMALL = "|".join(word for word, value in NUMBER_WORDS.items() if value <= 20)
Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _write_between(match: re.Match[str]) -> str:
    name, low, high, inclusive = match.groups()
    interval = f"[{low},{high}]" if inclusive else f"({low},{high})"
    return f"{name} \\in {interval}" if name else interval


def _drop_everywhere(match: re.Match[str]) -> str:
    """Drop `for all x`, unless other words, such as `fails`, may deny it."""
    words = {word.lower() for word in PLAIN_WORD.findall(match.group(1))}
    return match.group(1) if words <= FUNCTION_WORDS.keys() | JOINERS else match.group()


def _write_half_line(match: re.Match[str]) -> str:
    return match.expand(HALF_LINES[match.group(1)])


def _write_or_more(match: re.Match[str]) -> str:
    bound, side = match.groups()
    return f"[{bound},\\infty)" if side.lower() in MORE else f"(-\\infty,{bound}]"


def _write_sign_word(match: re.Match[str]) -> str:
    return f"{match.group(1)} {SIGN_WORDS[('non' if match.group(2) else '') + match.group(3).lower()]}"


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _write_digits(match: re.Match[str]) -> str:
    """Write `two to one` in digits, but not `one to one`, which is a property of functions."""
    first, between, second = match.groups()
    left, right = NUMBER_WORDS[first.lower()], NUMBER_WORDS[second.lower()]
    return match.group() if left == right == 1 else f"{left} {between} {right}"


def _write_mixed(match: re.Match[str]) -> str:
    """Write `2 and a half` as a mixed number."""
    return f"{match.group(1)}\\frac{{1}}{{{DENOMINATORS[match.group(2).lower()].denominator}}}"


RULES: tuple[Rule, ...] = (
    (_compile(r"n't(?= )"), " not"),
    (_compile(r"^(there|it|that|here|he|she)'s (?=[a-z\d-])"), r"\1 is "),
    (_compile(rf"^(?:exactly|only|just) (?={SMALL}\b)"), ""),
    (SLASHED, r"\1\\text{\2 per \3}"),
    (INDEXED, r"\1"),
    (EVERYWHERE, _drop_everywhere),
    (REAL_PARAMETER, ""),
    (MEMBERS_FROM, r"\1"),
    (MEMBER, r", \1 \\in \2"),
    (INTEGER_WORDS, lambda match: f", {match.group(1) or match.group(2)} \\in \\mathbb{{Z}}"),
    (CONSTANT_WORDS, ""),
    (_compile(r"\+ ?(?:an? )?(?:arbitrary )?const(?:ant)?(?: of integration)?$"), "+ C"),
    (ANSWERED, lambda match: match.group(1) or match.group(2)),
    (SHORT_NOUN, r"\\text{\1}"),
    (_compile(rf"^({SMALL}) (to|out of|in) ({SMALL})$"), _write_digits),
    (MIXED, _write_mixed),
    (SUBJECT, lambda match: match.group(1) or match.group(2)),
    (_compile(r"^(?:for )?(?:all|any|every) (?:real )?(?=[a-z] ?(?:[<>=]|\\[gln]))"), ""),
    (INTEGERS_FROM, ""),
    (REAL_NUMBERS, ""),
    (PROPERTY, r"\1"),
    (_compile(r"^([a-z]) (?:is|equals) (?=-?[\d\\])"), r"\1 = "),
    (_compile(r"^(?:=|:|is |equals |exactly |only |just |a total of )[ :]?(?=-?[\d\\(])"), ""),
    (BETWEEN, _write_between),
    (SIGN_WORD, _write_sign_word),
    (COMPARED, lambda match: f"{SIGNS[match.group(1).lower()]} "),
    (HALF_LINE, _write_half_line),
    (TWO_BOUNDS, r"\1 \2 \3 and \1 \4 \5"),
    (OR_MORE, _write_or_more),
    (_compile(r"^\\?(?:max|min)(?:imum)?(?: value)? ?= ?(?=[-\d\\])"), ""),
    (_compile(r"^at (?=[a-z] ?=)"), ""),
    (_compile(r"^(?:the |a |in the )?ratio (?:of )?(?=\d)"), ""),
    (_compile(r"\bplus or minus (?=[\d.\\(])|^\+-(?=\d)"), r"\\pm "),
    (_compile(rf"\b(?:minus|negative) {END}"), "-"),
    (_compile(rf"(?<=[\w)}}]) plus {END}"), "+ "),
    (_compile(r"^(?:plus|positive) (?=\d)"), ""),
    (_compile(rf"^({SIGNED}) to ({OPERAND}) to ({OPERAND})$"), r"\1:\2:\3"),
    (_compile(rf"^({OPERAND}) ?(?: (?:is )?to |-to-)({OPERAND})$"), r"\1:\2"),
    (_compile(r"^(\d{1,30}) (?:out of(?: every)?|in) (\d{1,30})$"), r"\\frac{\1}{\2}"),
    (_compile(rf"^({SIGNED}) (?:over|divided by) ({OPERAND})$"), r"\\frac{\1}{\2}"),
    (_compile(rf"\b({OPERAND}) choose ({OPERAND})"), r"\\binom{\1}{\2}"),
    (_compile(rf"\b(?:the )?(?:square root|sqrt) of ({OPERAND}|\([^()]{{1,40}}\))"), r"\\sqrt{\1}"),
    (_compile(rf"\b(?:the )?cube root of ({OPERAND}|\([^()]{{1,40}}\))"), r"\\sqrt[3]{\1}"),
    (_compile(rf"({OPERAND}|\)) (?:raised )?to the power (?:of )?({SIGNED})"), r"\1^{\2}"),
    (_compile(rf"({OPERAND}|\)) (?:raised )?to the (\d{{1,9}})(?:st|nd|rd|th)(?: power)?"), r"\1^{\2}"),
    (_compile(r"(?<=[\d)}]) (?:times|multiplied by) (?=[\d(\\])"), r" \\cdot "),
    (_compile(r"(?<![A-Za-z])([a-z\d)]) squared(?! ?[a-z])"), r"\1^2"),
    (_compile(r"(?<![A-Za-z])([a-z\d)]) cubed(?! ?[a-z])"), r"\1^3"),
    (_compile(r"(?<![A-Za-z])([n\d]{1,5}) factorial\b"), r"\1!"),
)  # fmt: skip


def rewrite_phrases(text: str, products: bool = False) -> str:
    """Rewrite the phrases of a cleaned text; return the text unchanged if it has none.

    Args:
        text: the text.
        products: whether letters are variables, so that 2/hr has no unit.
    """
    if len(text) > MAX_CHARS or not any(mark in text for mark in MARKS) or TRIGGER.search(text) is None:
        return text
    plain = " ".join(TEXT.sub(r" \1 ", text).replace("\\ ", " ").split()).rstrip(".")
    rewritten = plain
    for pattern, replacement in RULES:
        if not (products and pattern is SLASHED):
            rewritten = pattern.sub(replacement, rewritten)
    return text if rewritten == plain else rewritten
