"""The answers of an evaluation as rows, built from its index: what tests and figures need, without the texts."""

from __future__ import annotations

from collections.abc import Sequence

from qed.runs.run import Row
from qed.runs.step_index import StepIndex

# Columns of the groups that break figures down, and what pages call them.
KINDS = {"subject": "subject", "level": "level", "data_source": "source"}
NAMES = ("correct", "format_ok", "extracted", "reward", "n_tokens", "stop_reason", "tier", "class")
PARTS = "parts/"


def build_rows(index: StepIndex, decoding: str) -> list[Row]:
    """Build the rows of one decoding, in file order."""
    columns = {name: index.columns[name] for name in NAMES if name in index.columns}
    parts = {name.removeprefix(PARTS): column for name, column in index.columns.items() if name.startswith(PARTS)}
    rows: list[Row] = []
    for row, number in enumerate(index.columns.get("group", ())):
        group = index.groups[number]
        if group.get("decoding") != decoding:
            continue
        rows.append(
            {
                "group_id": str(group.get("id")),
                "gold": group.get("gold"),
                "sample_id": index.columns["answer"][row],
                **{kind: group[kind] for kind in KINDS if group.get(kind) is not None},
                **{name: column[row] for name, column in columns.items()},
                "correct": bool(index.columns["correct"][row]),
                "parts": {name: column[row] for name, column in parts.items() if column[row] is not None},
            }
        )
    return rows


def number_groups(index: StepIndex, decoding: str) -> dict[str, int]:
    """Return the number of each problem's group of one decoding, by the problem's id."""
    numbers: dict[str, int] = {}
    for number, group in enumerate(index.groups):
        if group.get("decoding") == decoding:
            numbers.setdefault(str(group.get("id")), number)
    return numbers


def split_rows(rows: Sequence[Row], kind: str) -> dict[str, list[Row]]:
    """Split rows by a column; those without it are left out."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        if row.get(kind) is not None:
            parts.setdefault(str(row[kind]), []).append(row)
    return dict(sorted(parts.items(), key=lambda item: (item[0].isdigit(), len(item[0]), item[0])))
