"""The tokens of an answer: their texts, and signals with a number for each token.

logp       log-prob of the token when it was sampled; the learner's if the sampler gave none
entropy    of the learner's distribution at the token, before the step's updates, in nats
ratio      probability after the step's updates over that before them
kl_ref     estimate of the KL divergence from the reference: r - log r - 1, r = reference over learner
           (k3 of Schulman 2020, "Approximating KL divergence")
mismatch   log-prob under the learner, before the updates, minus the sampler's
advantage  of the token, if it is trained
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from qed.errors import DataError
from qed.guards.redaction import redact
from qed.models.token_text import NAME, TokenText, load_token_text
from qed.report.numbers import read_number
from qed.runs.run import Row
from qed.viewer.library import RunPlace
from qed.viewer.memo import FileMemo
from qed.viewer.params import Refused
from qed.viewer.run_files import find_file, list_folder

MAX_TOKENS = 65_536  # of an answer; further tokens are left out
MAX_LOG = 80.0  # of a ratio's logarithm, so that its exponential is finite
STATS = ("learner_logps", "entropy", "updated_logps", "ref_logps", "values")
SIGNED = ("mismatch", "advantage")
QUANTILES = (0.01, 0.99)
TOKENIZERS = FileMemo(4)
Values = list[float | None]


def describe_tokens(place: RunPlace, row: Row, stats: Row | None) -> dict[str, Any]:
    """Return the tokens of an answer with their texts, signals, scales and masks, and notes on what is missing.

    Args:
        place: the run.
        row: the answer, as the run wrote it.
        stats: its line in the step's statistics, if it has one.
    """
    ids = [token for token in _read_list(row, "tokens") if isinstance(token, int)][:MAX_TOKENS]
    masks = {name: _read_mask(row, f"{name}_mask", len(ids)) for name in ("sampled", "loss")}
    signals, notes = _build_signals(row, stats or {}, len(ids), masks)
    text, trouble = _load_tokenizer(place) if ids else (None, [])
    if len(_read_list(row, "tokens")) > MAX_TOKENS:
        notes.append(f"The answer has more than {MAX_TOKENS:,} tokens; the rest is left out.")
    if not ids:
        notes.append("The tokens of this answer were not saved.")
    pieces = text.split(ids) if text else None
    counted = [bool(sampled and loss) for sampled, loss in zip(masks["sampled"], masks["loss"], strict=True)]
    return {
        "tokens": ids,
        "pieces": pieces,
        "blocks": find_blocks(masks, pieces),
        "signals": signals,
        "scales": {name: _compute_scale(name, values, counted) for name, values in signals.items()},
        "masks": masks,
        "top": _read_top((stats or {}).get("top"), text),
        "notes": [*notes, *trouble],
    }


def find_blocks(masks: Mapping[str, Sequence[int]], pieces: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return who wrote which part of an answer, in order; empty if an environment wrote none.

    A token belongs to the `policy` if it was sampled, is `given` if it was not sampled but is trained, like those of a
    demonstration, and belongs to the `environment` if neither; at the beginning of an answer it is given, because no
    answer begins with a reply. `start` and `count` are in tokens; `text` is None without a tokenizer.
    """
    marks = list(zip(masks["sampled"], masks["loss"], strict=True))
    first = next((place for place, mark in enumerate(marks) if any(mark)), len(marks))
    authors = [
        "policy" if sampled else "given" if trained or place < first else "environment"
        for place, (sampled, trained) in enumerate(marks)
    ]
    if "environment" not in authors:
        return []
    blocks, start = [], 0
    for author, part in groupby(authors):
        count = len(list(part))
        text = None if pieces is None else redact("".join(pieces[start : start + count]))
        blocks.append({"author": author, "start": start, "count": count, "text": text})
        start += count
    return blocks


def _build_signals(
    row: Row, stats: Row, count: int, masks: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Values], list[str]]:
    columns = {name: _read_column(stats, name, count) for name in STATS}
    own = _mask(_read_column(row, "logps", count), masks["sampled"])
    learner, updated, reference = (columns[name] for name in ("learner_logps", "updated_logps", "ref_logps"))
    found: dict[str, Values] = {
        "logp": own if _has(own) else learner,
        "entropy": columns["entropy"],
        "ratio": _combine(updated, learner, lambda new, old: math.exp(max(-MAX_LOG, min(MAX_LOG, new - old)))),
        "kl_ref": _combine(reference, learner, _estimate_kl),
        "mismatch": _combine(learner, own, lambda ours, theirs: ours - theirs),
        "advantage": _mask(_read_advantage(row, count), masks["loss"]),
        "value": columns["values"],
    }
    signals = {name: values for name, values in found.items() if _has(values)}
    notes = []
    if not stats:
        notes.append(
            "entropy, ratio, kl_ref and mismatch were not recorded for this answer: run.save_token_stats sets for how "
            "many answers of each step they are recorded."
        )
    elif "kl_ref" not in signals:
        notes.append("kl_ref is missing: the algorithm has no reference model.")
    if stats and "top" not in stats:
        notes.append("The likeliest other tokens were not recorded: run.save_top_logps sets how many are recorded.")
    return signals, notes


def _estimate_kl(reference: float, learner: float) -> float:
    difference = max(-MAX_LOG, min(MAX_LOG, reference - learner))
    return math.exp(difference) - difference - 1


def _combine(first: Values, second: Values, compute: Any) -> Values:
    pairs = zip(first, second, strict=True)
    return [None if one is None or other is None else compute(one, other) for one, other in pairs]


def _has(values: Values) -> bool:
    return any(value is not None for value in values)


def _mask(values: Values, marks: Sequence[int]) -> Values:
    """Clear the values of tokens that were not sampled or not trained, because placeholders would flatten the scale."""
    return [value if mark else None for value, mark in zip(values, marks, strict=True)]


def _read_advantage(row: Row, count: int) -> Values:
    value = row.get("advantage")
    if isinstance(value, list):
        return _read_column(row, "advantage", count)
    return [read_number(value)] * count


def _read_column(row: Mapping[str, Any], name: str, count: int) -> Values:
    """Return a column of an answer with a value for each token, None for missing ones."""
    values = [read_number(value) for value in _read_list(row, name)[:count]]
    return values + [None] * (count - len(values))


def _read_list(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    return value if isinstance(value, list) else []


def _read_mask(row: Row, name: str, count: int) -> list[int]:
    """Return a mask; a missing one marks every token."""
    marks = [int(value is not False and value != 0) for value in _read_list(row, name)[:count]]
    return marks + [1] * (count - len(marks))


def _compute_scale(name: str, values: Values, counted: Sequence[bool]) -> dict[str, Any]:
    """Return the ends of a colour scale: quantiles of the trained tokens, so that an outlier does not flatten it."""
    known = [value for value, mark in zip(values, counted, strict=True) if mark and value is not None]
    known = known or [value for value in values if value is not None]
    low, high = (float(bound) for bound in np.quantile(known, QUANTILES))
    if name == "ratio":  # a half and a double are equally far from 1
        width = max(high - 1, 1 / low - 1 if low > 0 else 0, 1e-6)
        return {"low": 1 / (1 + width), "high": 1 + width, "signed": True}
    if name in SIGNED:
        width = max(abs(low), abs(high))
        return {"low": -width, "high": width, "signed": True}
    return {"low": low, "high": high, "signed": False}


def _read_top(value: Any, text: TokenText | None) -> list[list[dict[str, Any]]] | None:
    """Return the likeliest tokens at each position with their texts; None if they were not recorded."""
    if not isinstance(value, list):
        return None
    return [
        [
            {"id": pair[0], "text": text.name(pair[0]) if text else None, "logp": read_number(pair[1])}
            for pair in (pairs if isinstance(pairs, list) else [])
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int)
        ]
        for pairs in value[:MAX_TOKENS]
    ]


def _load_tokenizer(place: RunPlace) -> tuple[TokenText | None, list[str]]:
    """Return the run's tokenizer, from its own file or that of a checkpoint, or None and the reason."""
    path = _find_tokenizer(place)
    if path is None:
        return None, ["The run's folder has no tokenizer.json, so tokens are shown by their ids."]
    try:
        return TOKENIZERS.read(path, [path], lambda: load_token_text(path)), []
    except DataError as error:
        return None, [f"{error} Tokens are shown by their ids."]


def _find_tokenizer(place: RunPlace) -> Path | None:
    steps = sorted((name for name in list_folder(place, "checkpoints") if name.startswith("step_")), reverse=True)
    for parts in ((NAME,), ("final", "hf", NAME), *(("checkpoints", step, "hf", NAME) for step in steps)):
        try:
            found = find_file(place, *parts)
        except Refused:
            return None
        if found is not None:
            return found
    return None
