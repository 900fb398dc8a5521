"""Notations of combinations and permutations: C(20, 10), 20C10, ₂₀C₁₀, C with both indices, P(10, 7), 10P7.

They are rewritten as binomials before the answer is parsed: the number of permutations of k things out of n is
C(n, k)·k!. The letters may also be names, so this reading is tried in addition to the plain one.
"""

from __future__ import annotations

import re

from qed.grading.tokens import Token

COUNTED = re.compile(
    r"(?<![A-Za-z\\])(?:[CPA]\}?[ _^(]|\d ?\}? ?(?:\\\w+ ?\{)?[CP](?![A-Za-z])|[nmN] ?\}?[CP][_r-v k\d])"
)
COUNTING = frozenset("CPA")
COMBINATIONS, PERMUTATIONS = {"C"}, {"P", "A"}
MAX_INDEX = 9  # tokens of n or k
INFIX = re.compile(r"\d{1,9}|[nmNkr]")  # in 20C10 and nCr
NO_INTEGERS = {"/", "\\frac", "\\sqrt", "\\pi", "=", "<", ">"}


def write_as_binomials(tokens: list[Token]) -> list[Token] | None:
    """Return the tokens with combinations and permutations rewritten as binomials; None if there are none, or n < k."""
    result, index, found = list[Token](), 0, False
    while index < len(tokens):
        match = _match_call(tokens, index) or _match_indices(tokens, index) or _match_infix(tokens, index)
        if match is None:
            result.append(tokens[index])
            index += 1
            continue
        name, above, below, index = match
        if not _can_be_counted(above, below):
            return None
        result += _write(name, above, below)
        found = True
    return result if found else None


Match = tuple[str, list[Token], list[Token], int]


def _is_name(tokens: list[Token], index: int) -> bool:
    return index < len(tokens) and tokens[index].text in COMBINATIONS | PERMUTATIONS


def _read_group(tokens: list[Token], index: int) -> tuple[list[Token], int] | None:
    """Read one token or a group in braces, and return its tokens and the position after it."""
    if index >= len(tokens):
        return None
    if tokens[index].text != "{":
        return ([tokens[index]], index + 1) if tokens[index].kind in {"number", "letter"} else None
    for end in range(index + 1, min(len(tokens), index + MAX_INDEX)):
        if tokens[end].text == "{":
            return None
        if tokens[end].text == "}":
            return (tokens[index + 1 : end], end + 1) if end > index + 1 else None
    return None


def _match_call(tokens: list[Token], index: int) -> Match | None:
    """Match C(n, k) and P(n, k), with one comma and no brackets inside."""
    if not _is_name(tokens, index) or index + 1 >= len(tokens) or tokens[index + 1].text != "(":
        return None
    if index and tokens[index - 1].kind in {"letter", "word"}:
        return None
    inside = list[Token]()
    for end in range(index + 2, min(len(tokens), index + 2 * MAX_INDEX)):
        if tokens[end].text == ")":
            return _split_arguments(tokens[index].text, inside, end + 1)
        if tokens[end].text == "(":
            return None
        inside.append(tokens[end])
    return None


def _split_arguments(name: str, inside: list[Token], end: int) -> Match | None:
    commas = [place for place, token in enumerate(inside) if token.text in {",", ";"}]
    if len(commas) != 1 or commas[0] in {0, len(inside) - 1} or name == "A":
        return None
    return name, inside[: commas[0]], inside[commas[0] + 1 :], end


def _match_indices(tokens: list[Token], index: int) -> Match | None:
    """Match C_n^k and C^k_n, as written in many countries."""
    if not _is_name(tokens, index) or index + 1 >= len(tokens):
        return None
    found, position = dict[str, list[Token]](), index + 1
    while position < len(tokens) and tokens[position].text in {"_", "^"} and tokens[position].text not in found:
        group = _read_group(tokens, position + 1)
        if group is None:
            return None
        found[tokens[position].text], position = group
    if len(found) != 2:
        return None
    below, above = found["_"], found["^"]  # n is the lower index in C_n^k, but the upper one in C^{10}_3
    if not _can_be_counted(below, above):
        below, above = above, below
    return tokens[index].text, below, above, position


def _match_infix(tokens: list[Token], index: int) -> Match | None:
    """Match 20C10, ₂₀C₁₀, ²⁰C₁₀, nCr."""
    position = index + (2 if [token.text for token in tokens[index : index + 2]] == ["{", "}"] else 0)
    raised = position < len(tokens) and tokens[position].text in {"_", "^"}
    above = _read_group(tokens, position + raised)
    if above is None or (not raised and tokens[index].text == "{") or not _is_name(tokens, above[1]):
        return None
    if tokens[above[1]].text == "A" or (index and tokens[index - 1].kind in {"number", "letter", "word"}):
        return None
    position = above[1] + 1
    lowered = position < len(tokens) and tokens[position].text == "_"
    below = _read_group(tokens, position + lowered)
    if not raised and not lowered and not (below and all(map(_is_infix, (above[0], below[0])))):
        return None
    if below is None or (below[1] < len(tokens) and tokens[below[1]].text == "_"):
        return None
    return tokens[above[1]].text, above[0], below[0], below[1]


def _is_infix(group: list[Token]) -> bool:
    return len(group) == 1 and INFIX.fullmatch(group[0].text) is not None


def _can_be_counted(above: list[Token], below: list[Token]) -> bool:
    """Return whether n and k can be integers with n ≥ k; if not, the notation means something else."""
    if any(token.text in NO_INTEGERS or "." in token.text for token in (*above, *below)):
        return False
    plain = len(above) == len(below) == 1 and above[0].text.isdigit() and below[0].text.isdigit()
    return not plain or int(above[0].text[:9]) >= int(below[0].text[:9])


def _write(name: str, above: list[Token], below: list[Token]) -> list[Token]:
    brace = [Token("sign", "{"), Token("sign", "}")]
    binomial = [Token("command", "\\binom"), brace[0], *above, brace[1], brace[0], *below, brace[1]]
    if name in COMBINATIONS:
        return binomial
    opening, closing = Token("sign", "("), Token("sign", ")")
    return [opening, *binomial, Token("sign", "*"), opening, *below, closing, Token("sign", "!"), closing]
