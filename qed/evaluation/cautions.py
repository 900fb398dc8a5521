"""Warn about differences between two evaluations other than the model, and about irregularities of their answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from qed.evaluation.compared_runs import Decoding
from qed.evaluation.stored_problems import name_gold, write_count, write_first
from qed.runs.run import Row

# Settings that may differ in a fair comparison: what is compared, the hardware, and the seed.
FREE = (
    "model",
    "weights",
    "revision",
    "seed",
    "task",
    "problems",
    "samples",
    "rows_per_batch",
    "sampler",
    "endpoint",
    "also",
)
OPTIONS = {"judged_by": "--reward", "server": "--sampler and --url"}  # options whose names differ from the settings'
FEW_SHARED = 0.8  # warn if the shared problems are a smaller part of a run's
MAX_SHOWN = 60  # characters shown of a setting
Sides = tuple[Sequence[Decoding], Sequence[Decoding]]


def list_cautions(before: Sequence[Decoding], after: Sequence[Decoding]) -> list[str]:
    """Return the warnings that a reader of the comparison needs, as short sentences.

    Args:
        before: a decoding of a task of each run of one side.
        after: the same of the other side.
    """
    differing = _find_differing((before, after))
    cautions = [
        f"Other {name}: {_show(old)} before, {_show(new)} after. Evaluate both with the same "
        f"{OPTIONS.get(name, '--' + name.replace('_', '-'))}."
        for name, old, new in differing
    ]
    if not {"prompt", "prompt_options", "system_prompt"} & {name for name, _, _ in differing}:
        cautions += _compare_prompts(before, after)
    if not differing:
        cautions += _compare_files(before, after) or _compare_models(before, after)
    cautions += _compare_counts(before, after)
    notes = (
        f"{side}: {note}" for side, own in (("Before", before), ("After", after)) for part in own for note in part.notes
    )
    return list(dict.fromkeys([*cautions, *notes]))


def separate_golds(decodings: Iterable[Decoding]) -> tuple[list[Decoding], list[str]]:
    """Treat each gold of an id as a separate problem, and drop duplicate answers.

    Args:
        decodings: those of all runs of both sides.

    Returns:
        the decodings, and sentences that say what was done.
    """
    decodings = list(decodings)
    several: set[str] = set()
    for decoding in decodings:
        golds: dict[str, str] = {}
        for row in decoding.rows:
            problem, gold = str(row["group_id"]), str(row.get("gold"))
            if golds.setdefault(problem, gold) != gold:
                several.add(problem)
    kept = [_drop_copies(decoding, several) for decoding in _align_names(decodings)]
    copies = sum(len(old.rows) - len(new.rows) for old, new in zip(decodings, kept, strict=True))
    notes = []
    if several:
        notes.append(
            f"{write_count(len(several), 'id')} with several golds ({write_first(several)}): each counts as a problem."
        )
    if copies:
        notes.append(
            f"{write_count(copies, 'answer')} stored twice, with the same problem and number: the first one counts."
        )
    return kept, notes


def count_truncated(decodings: Sequence[Decoding]) -> dict[str, int]:
    """Count the answers of a side that were truncated at the token limit, and how many of these are right."""
    cut = [row for decoding in decodings for row in decoding.rows if row.get("stop_reason") == "length"]
    right = sum(bool(row["correct"]) for row in cut)
    return {
        "answers": sum(len(decoding.rows) for decoding in decodings),
        "truncated": len(cut),
        "truncated_right": right,
        "truncated_wrong": len(cut) - right,
    }


def _align_names(decodings: Sequence[Decoding]) -> list[Decoding]:
    """Rename a problem as in another file, if its id has several golds there."""
    known = {str(row["group_id"]) for decoding in decodings for row in decoding.rows}
    named = {name for name in known if "~" in name}
    if not named:
        return list(decodings)
    return [
        replace(
            decoding,
            rows=[
                {**row, "group_id": name}
                if (name := name_gold(str(row["group_id"]), str(row.get("gold")))) in named
                else row
                for row in decoding.rows
            ],
        )
        for decoding in decodings
    ]


def _drop_copies(decoding: Decoding, several: set[str]) -> Decoding:
    rows: list[Row] = []
    seen: set[tuple[str, str, Any]] = set()
    for row in decoding.rows:
        problem, gold = str(row["group_id"]), str(row.get("gold"))
        name = problem, gold, row.get("sample_id")
        if name[2] is not None and name in seen:
            continue
        seen.add(name)
        rows.append({**row, "group_id": name_gold(problem, gold)} if problem in several else row)
    return replace(decoding, rows=rows)


def _find_differing(sides: Sides) -> list[tuple[str, list[Any], list[Any]]]:
    """Return the settings that differ, each with the values of both sides.

    If a side was not written by `qed evaluate`, only settings that both sides have are compared.
    """
    parts = [*sides[0], *sides[1]]
    names = list(dict.fromkeys(name for part in parts for name in part.settings if name not in FREE))
    if not all(part.complete for part in parts):
        names = [name for name in names if all(name in part.settings for part in parts)]
    found: list[tuple[str, list[Any], list[Any]]] = []
    for name in names:
        if name == "judged_by" and any(known[0] == "reward" for known in found):
            continue  # follows from the reward
        old, new = (_list_values(side, name) for side in sides)
        if old != new or len(old) > 1:
            found.append((name, old, new))
    return found


def _list_values(side: Sequence[Decoding], name: str) -> list[Any]:
    """Return the distinct values of a setting on a side; None, an empty list and an empty string count as equal."""
    values: list[Any] = []
    for part in side:
        value = part.settings.get(name)
        value = None if value in ("", [], ()) else list(value) if isinstance(value, tuple) else value
        if name == "top_k" and isinstance(value, int):
            value = max(0, value)  # both 0 and -1 mean no limit
        if value not in values:
            values.append(value)
    return values


def _compare_prompts(before: Sequence[Decoding], after: Sequence[Decoding]) -> list[str]:
    """Warn about problems whose prompts differ."""
    one, other = _list_prompts(before), _list_prompts(after)
    shared = [problem for problem in one if problem in other]
    differing = sum(one[problem] != other[problem] for problem in shared)
    if not differing:
        return []
    return [f"Other prompts: {differing:,} of {write_count(len(shared), 'problem')} were asked with other texts."]


def _list_prompts(side: Sequence[Decoding]) -> dict[str, set[Any]]:
    prompts: dict[str, set[Any]] = {}
    for part in side:
        for row in part.rows:
            if row.get("prompt"):
                prompts.setdefault(str(row["group_id"]), set()).add(row["prompt"])
    return prompts


def _compare_files(before: Sequence[Decoding], after: Sequence[Decoding]) -> list[str]:
    """Warn if both sides are the same stored answers."""
    files = [{part.file for part in side} for side in (before, after)]
    if files[0] != files[1] or None in files[0]:
        return []
    return ["Both sides are the same model and the same answers: name another run or step for one of them."]


def _compare_models(before: Sequence[Decoding], after: Sequence[Decoding]) -> list[str]:
    """Warn if both sides are the same model, so that at most the seed differs."""
    names = ("model", "weights", "revision")
    models = [
        {tuple(str(part.settings.get(name)) for name in names) if part.complete else None for part in side}
        for side in (before, after)
    ]
    if models[0] != models[1] or None in models[0]:
        return []
    return ["Both sides are the same model with the same settings: a difference is chance."]


def _compare_counts(before: Sequence[Decoding], after: Sequence[Decoding]) -> list[str]:
    """Warn about different golds, numbers of answers per problem, or problems."""
    one, other = _list_problems(before), _list_problems(after)
    cautions = []
    golds: list[dict[str, set[str]]] = [{}, {}]
    for own, problems in zip(golds, (one, other), strict=True):
        for problem, gold in problems:
            own.setdefault(problem, set()).add(gold)
    changed = [problem for problem in golds[0] if problem in golds[1] and not golds[0][problem] & golds[1][problem]]
    if changed:
        cautions.append(
            f"{write_count(len(changed), 'id')} with another gold after than before ({write_first(changed)}): left "
            "out, because these are other problems. Check that both files have the same golds."
        )
    cautions += _compare_problems([*before, *after])
    counts = [
        sorted({count for problem, count in own.items() if problem in rest})
        for own, rest in ((one, other), (other, one))
    ]
    if counts[0] and counts[0] != counts[1]:
        cautions.append(
            f"Other numbers of answers to a problem: {write_first(counts[0])} before, {write_first(counts[1])} after."
        )
    return cautions


def _compare_problems(parts: Sequence[Decoding]) -> list[str]:
    """Warn if few problems are shared, for example if each run drew its own held-out problems by its seed."""
    runs = [set(_list_problems([part])) for part in parts]
    shared, most = len(set.intersection(*runs)), max(map(len, runs))
    if not 0 < shared < FEW_SHARED * most:
        return []
    return [
        f"Only {shared:,} of {write_count(len(set.union(*runs)), 'problem')} were answered by all runs, the others "
        "are left out. Evaluate all runs on the same problems: qed evaluate, with the same --seed."
    ]


def _list_problems(side: Sequence[Decoding]) -> dict[tuple[str, str], int]:
    """Return the problems of a side by id and gold, with the largest number of answers in a run."""
    problems: dict[tuple[str, str], int] = {}
    for part in side:
        own: dict[tuple[str, str], int] = {}
        for row in part.rows:
            name = str(row["group_id"]), str(row.get("gold"))
            own[name] = own.get(name, 0) + 1
        for name, count in own.items():
            problems[name] = max(count, problems.get(name, 0))
    return problems


def _show(values: Sequence[Any]) -> str:
    return " and ".join("none" if value is None else str(value)[:MAX_SHOWN] for value in values)


def describe_lost(stored: int, figures: Row) -> str:
    """Return a warning if fewer answers are stored than were counted, as in a truncated copy; else an empty string.

    Args:
        stored: answers of one decoding in the file of its task.
        figures: their summary.
    """
    expected = count_expected(figures)
    if stored >= expected:
        return ""
    return f"{stored:,} of {write_count(expected, 'answer')} are stored: their file is incomplete."


def count_expected(figures: Row) -> int:
    """Return the number of answers that a summary covers; 0 if unknown, as with files of earlier versions."""
    uneven = "k_min" in figures
    counts = [figures["answers"]] if "answers" in figures else [] if uneven else [figures["n"], figures.get("k", 1)]
    return math.prod(counts) if counts and all(isinstance(count, int) for count in counts) else 0
