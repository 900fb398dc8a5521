"""Find the problems in a file of stored answers: which rows answer the same problem, and any irregularities."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qed.data.sources.rows import Place
from qed.errors import DataError
from qed.evaluation.answer_lists import convert_gold, convert_to_text
from qed.evaluation.answer_rows import GOLD, ID, QUESTION, locate_value, read_value
from qed.evaluation.grade_files import extract_gold
from qed.randomness import derive_seed
from qed.runs.run import Row


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of a file, with the id, the question and the gold of its problem."""

    place: Place
    row: Row
    id: str
    question: str
    gold: str


def find_problems(table: Sequence[tuple[Place, Row]], gold_key: str, id_key: str) -> tuple[list[StoredRow], list[str]]:
    """Find the problem of every row.

    A problem is an id with a gold: the same id with another gold is another problem. Without ids the question
    identifies a problem, and without questions every row is a problem. If all rows of a problem were stored equally
    often, the copies are dropped.

    Args:
        table: the rows with their places, at least one.
        gold_key: the column of the gold; empty for the first known name.
        id_key: the column of the id; empty for the first known name.

    Returns:
        the rows that are kept, in order, and sentences about irregularities.

    Raises:
        DataError: a column is missing, or a gold or an id is empty.
    """
    # If the first row has an id, every row must have one; otherwise the question identifies the problem.
    id_key = id_key or next((name for name in ID if name in table[0][1]), "")
    rows = [_read_problem(place, row, gold_key, id_key) for place, row in table]
    rows, notes = _separate_golds(rows)
    rows, copies = _drop_copies(rows)
    if copies:
        notes.append(f"{write_count(copies, 'row')} left out as exact copies of others.")
    questions = defaultdict(set)
    for each in rows:
        questions[each.question, each.gold].add(each.id)
    repeated = sum(len(ids) > 1 for (question, _), ids in questions.items() if question)
    if repeated:
        notes.append(
            f"{write_count(repeated, 'question')} asked under several ids, each counted as a problem: if these rows "
            "are answers to one problem, add --id-key with the column of the question."
        )
    return rows, notes


def describe_uneven(numbers: Iterable[int]) -> list[str]:
    """Return a note if the number of answers varies between problems; else an empty list."""
    counts = Counter(numbers)
    usual = counts.most_common(1)[0][0]
    others = sum(counts.values()) - counts[usual]
    if not others:
        return []
    return [f"{write_count(others, 'problem')} with another number of answers than the {usual} of most."]


def name_gold(problem: str, gold: str) -> str:
    """Return the id of a problem whose id has several golds; it depends on id and gold, but not on the file."""
    return f"{problem}~{derive_seed(gold) % 2**32:08x}"


def write_count(number: int, noun: str) -> str:
    """Write a number with its noun: 1 problem, 1,319 problems."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_first(values: Iterable[Any]) -> str:
    """Return the first three values in order, and an ellipsis if there are more."""
    shown = sorted(values)
    return ", ".join(map(str, shown[:3])) + (", …" if len(shown) > 3 else "")


def _read_problem(place: Place, row: Row, gold_key: str, id_key: str) -> StoredRow:
    gold = extract_gold(convert_gold(read_value(place, row, gold_key, GOLD, "--gold-key")))
    if not gold:
        raise DataError(
            f"{place}: the gold is empty, so nothing can be right. Drop the row, or name another --gold-key."
        )
    question = convert_to_text(next((row[name] for name in QUESTION if name in row), ""))
    name = _read_id(place, row, question, gold, id_key)
    # Interned, so that the rows of a problem share its texts in memory.
    return StoredRow(place, row, *map(sys.intern, (name, question, gold)))


def _read_id(place: Place, row: Row, question: str, gold: str, id_key: str) -> str:
    """Return what identifies a problem: its id, else its question, else its row."""
    if not id_key:
        return f"{derive_seed(question, gold):016x}" if question else str(place.number)
    value = locate_value(place, row, id_key, ID, "--id-key")[1]
    if value in (None, ""):
        raise DataError(f"{place}: the {id_key} is empty, while other rows have one.")
    return value.hex() if isinstance(value, bytes) else str(value)


def _separate_golds(rows: Sequence[StoredRow]) -> tuple[list[StoredRow], list[str]]:
    """Give each gold of an id with several golds its own id, see `name_gold`."""
    golds: dict[str, set[str]] = defaultdict(set)
    for each in rows:
        golds[each.id].add(each.gold)
    several = {name for name, own in golds.items() if len(own) > 1}
    if not several:
        return list(rows), []
    separated = [
        StoredRow(each.place, each.row, name_gold(each.id, each.gold), each.question, each.gold)
        if each.id in several
        else each
        for each in rows
    ]
    ids = write_count(len(several), "id")
    return separated, [f"{ids} with several golds ({write_first(several)}): each gold counts as a problem."]


def _drop_copies(rows: Sequence[StoredRow]) -> tuple[list[StoredRow], int]:
    """Drop copies of problems that were stored several times, keeping the number of answers that most problems have.

    This requires that each distinct row occurs equally often, or in a multiple: otherwise equal answers may be genuine
    samples, and dropping them would change the accuracy.
    """
    digests = [_hash_row(each.row) for each in rows]
    counts: dict[str, Counter[bytes]] = defaultdict(Counter)
    for each, digest in zip(rows, digests, strict=True):
        counts[each.id][digest] += 1
    usual = Counter(own.total() for own in counts.values()).most_common(1)[0][0]
    left = {name: Counter(_divide(own, usual)) for name, own in counts.items()}
    kept: list[StoredRow] = []
    for each, digest in zip(rows, digests, strict=True):
        if left[each.id][digest]:
            left[each.id][digest] -= 1
            kept.append(each)
    return kept, len(rows) - len(kept)


def _hash_row(row: Row) -> bytes:
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).digest()


def _divide(counts: Counter[bytes], usual: int) -> dict[bytes, int]:
    """Return how often to count each row of a problem: less often than it occurs if all are copied equally often."""
    times, rest = divmod(counts.total(), usual)
    if rest or any(count % times for count in counts.values()):
        return counts
    return {digest: count // times for digest, count in counts.items()}
