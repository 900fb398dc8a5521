"""Search the texts of a step for a phrase or a regular expression, in a process with a deadline."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qed.errors import DataError
from qed.guards.redaction import redact
from qed.runs.run import Row
from qed.runs.step_index import StepIndex, read_group
from qed.viewer.child import call_in_child
from qed.viewer.library import Library
from qed.viewer.outcomes import count_lost
from qed.viewer.params import Params, Refused
from qed.viewer.where import find_where

FIELDS = ("text", "prompt", "question", "gold", "extracted", "reason")
SECONDS = 20.0
MARGIN = 4.0  # seconds before the deadline at which a search ends with what it has found
MAX_HITS = 500
AROUND = 60  # characters before and after a hit
MAX_MATCH = 300
Place = tuple[Path, StepIndex, Sequence[int]]


def search_answers(library: Library, params: Params) -> dict[str, Any]:
    """Search the answers of a step.

    Args:
        library: the runs.
        params: those of `read_step`, and `q`; `regex=1` for a regular expression, `case=1` for a case-sensitive
            search, and `fields`, some of FIELDS separated by commas (default: text).

    Raises:
        Refused: the expression is invalid or takes too long.
    """
    where, query = find_where(library, params), params.text("q")
    fields = [name for name in params.text("fields", "text").split(",") if name]
    unknown = [name for name in fields if name not in FIELDS]
    if unknown or not fields or not query:
        raise Refused(400, f"A search needs q, and fields from {', '.join(FIELDS)}.")
    pattern = query if params.flag("regex") else re.escape(query)
    flags = 0 if params.flag("case") else re.IGNORECASE
    try:
        re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(400, f"'{query[:80]}' is not a valid regular expression: {error}.") from error
    message = f"The search did not finish within {SECONDS:g} s. Use a simpler expression."
    place: Place = (where.data, where.index, where.list_groups())
    arguments = (place, pattern, flags, fields, SECONDS - MARGIN)
    found: dict[str, Any] = call_in_child(_search, arguments, SECONDS, message)
    lost = where.is_training and count_lost(library, where.data, where.index)
    return {**found, "complete": found["complete"] and not lost}


def _search(place: Place, pattern: str, flags: int, fields: Sequence[str], seconds: float) -> dict[str, Any]:
    begin = time.perf_counter()
    data, index, groups = place
    expression = re.compile(pattern, flags)
    hits: list[Row] = []
    searched, complete = 0, True
    for group in groups:
        if time.perf_counter() - begin > seconds or len(hits) >= MAX_HITS:
            complete = False
            break
        try:
            rows = read_group(data, index, group, texts_only=True)
        except (DataError, OSError):
            complete = False
            continue
        hits += [{"group": group, **hit} for hit in _search_rows(rows, expression, fields)]
        searched += len(rows)
    return {
        "hits": hits[:MAX_HITS],
        "n": len(hits),
        "searched": searched,
        "complete": complete and len(hits) <= MAX_HITS,
        "seconds": round(time.perf_counter() - begin, 3),
    }


def _search_rows(rows: Sequence[Row], expression: re.Pattern[str], fields: Sequence[str]) -> Iterator[Row]:
    """Yield the first hit in each field of each answer."""
    for answer, row in enumerate(rows):
        for field in fields:
            text = row.get(field)
            if not isinstance(text, str) or expression.search(text) is None:
                continue
            text = redact(text)  # before the search, so that a secret is neither shown nor found
            if (hit := expression.search(text)) is not None:
                end = min(hit.end(), hit.start() + MAX_MATCH)
                yield {
                    "answer": answer,
                    "field": field,
                    "before": text[max(0, hit.start() - AROUND) : hit.start()],
                    "match": text[hit.start() : end],
                    "after": text[end : end + AROUND],
                }
