"""Parser of LaTeX environments: matrices, systems of equations, piecewise functions."""

from __future__ import annotations

from qed.grading.bounds import UnreadableError
from qed.grading.cursor import Cursor, read_raw_argument
from qed.grading.tokens import Token
from qed.grading.tree import Node

MATRICES = {"pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix", "array", "smallmatrix", "Vmatrix"}
CASES = {"cases", "dcases", "rcases"}
SYSTEMS = CASES | {"aligned", "align", "gathered", "split"}
CONDITIONS = {"if", "for", "when", "where"}
ROW_END = Token("end", "")


def parse_environment(cursor: Cursor, name: str) -> Node:
    """Parse rows separated by \\\\ and cells separated by &; of the delimiters only determinant bars change the value.

    Raises:
        UnreadableError: it is not an environment of rows and cells.
    """
    end = f"\\end{{{name}}}"
    if name not in MATRICES | SYSTEMS:
        raise UnreadableError(f"unknown environment {name}")
    if name == "array" and cursor.text == "{":
        read_raw_argument(cursor)
    if name in SYSTEMS:  # all but cases only align lines
        rewrite = _mark_conditions if name in CASES else _drop_alignment
        before, after = cursor.tokens[: cursor.position], cursor.tokens[cursor.position :]
        index = next((index for index, token in enumerate(after) if token.text == end), len(after))
        cursor.tokens = [*before, *rewrite(after[:index]), *after[index:]]
    rows = _parse_rows(cursor, end)
    if name in SYSTEMS and all(len(row.parts) == 1 for row in rows):
        lines = tuple(row.parts[0] for row in rows)
        return lines[0] if len(lines) == 1 else Node("list", ",", lines)
    return Node("matrix", "cases" if name in SYSTEMS else "|" if name in {"vmatrix", "Vmatrix"} else "", tuple(rows))


def _parse_rows(cursor: Cursor, end: str) -> list[Node]:
    rows, row = [], [_parse_cell(cursor)]
    while not cursor.accept_any(end):
        mark = cursor.expect("&", "\\\\", "\\cr")
        if mark != "&":
            rows.append(Node("row", parts=tuple(row)))
            row = []
        if cursor.text != end:
            row.append(_parse_cell(cursor))
    if row:
        rows.append(Node("row", parts=tuple(row)))
    return rows


def _parse_cell(cursor: Cursor) -> Node:
    while cursor.peek().kind == "word" and cursor.text.lower() in CONDITIONS and cursor.peek(1).kind != "end":
        cursor.take()
    return cursor.parse_inner(cursor)


def _drop_alignment(tokens: list[Token]) -> list[Token]:
    return [token for token in tokens if token.text != "&"]


def _mark_conditions(tokens: list[Token]) -> list[Token]:
    """Put an & before the condition of each row in place of a comma or an `if`, and drop the punctuation at its end."""
    result = list[Token]()
    for index, token in enumerate(tokens):
        after = tokens[index + 1] if index + 1 < len(tokens) else ROW_END
        if token.text in {",", ";", "."} and (
            after.text in {"\\\\", "&"} or _opens_condition(after) or after == ROW_END
        ):
            continue
        if token.text == "&" and result and _opens_condition(result[-1]):  # a column of its own for `if`
            continue
        if token.kind == "word" and token.text.lower() == "is" and after.kind == "word":  # n is even
            continue
        if _opens_condition(token) and result and result[-1].text not in {"&", "\\\\"}:
            result.append(Token("sign", "&"))
        result.append(token._replace(kind="letter") if token.kind == "word" and len(token.text) == 1 else token)
    return result


def _opens_condition(token: Token) -> bool:
    return token.kind == "word" and token.text.lower() in CONDITIONS | {"otherwise", "else"}
