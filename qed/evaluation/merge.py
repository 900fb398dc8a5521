"""Merge the shards of an evaluation or a grading into the files that a single process would write: `qed merge`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.errors import DataError
from qed.evaluation.finish import TaskRecord, build_result, finish_task, require_evaluations, write_environment
from qed.evaluation.grade_run import merge_grades
from qed.evaluation.score_run import merge_scores
from qed.evaluation.shards import Joined, find_shard_folder, find_shards, join_shards
from qed.evaluation.store import Store
from qed.runs.run import Row

# Differs between machines without affecting the answers.
MACHINE = ("commit", "platform", "processor", "cpus")


def merge(out: Path, places: Sequence[Path], overwrite: bool, console: Console) -> dict[str, Any]:
    """Merge shards, write the files that a single process would write, and print the figures.

    Args:
        out: the folder of the evaluation, or the file of the verdicts.
        places: the shards, or folders with shards; empty for those of `out` itself. These are deleted once they are
            merged, as a single process deletes its partial file.
        overwrite: replace another evaluation in the folder.
        console: for the output.

    Returns:
        the result of the command that made the shards.

    Raises:
        DataError: a shard is missing, duplicated, damaged, or of other work; or the graded files have changed.
        UsageError: `out` has other answers.
    """
    own = find_shard_folder(out)
    files = find_shards(places or [own])
    joined = join_shards(files)
    kind = joined.whole.get("kind")
    if kind not in MERGERS:
        raise DataError(f"{files[0]} is a shard of '{kind}', which this version of qed does not know.")
    result = MERGERS[kind](out, joined, overwrite, console)
    for file in files:
        if own in file.parents:
            delete_shard(file, own)
    return result


def delete_shard(file: Path, home: Path) -> None:
    """Delete a shard with the leftovers of its lost tasks, and its folders up to `home` once they are empty."""
    for path in (file, *file.parent.glob(f".{file.name}.*")):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in file.parents:
            folder.rmdir()
            if folder == home:
                break


def _merge_evaluation(out: Path, joined: Joined, overwrite: bool, console: Console) -> dict[str, Any]:
    """Write the answers and figures of an evaluation of a model."""
    require_evaluations(out)
    whole = joined.whole
    _compare_environments(joined.infos, console)
    commands = (info["command"] for info in joined.infos)
    write_environment(out, joined.infos[0]["environment"], list(dict.fromkeys(commands)))
    units = iter(joined.units)
    figures: dict[str, Row] = {}
    records: dict[str, TaskRecord] = {}
    for label, fields in whole["tasks"].items():
        record = TaskRecord(**fields)
        record.settings["weights"] = joined.infos[0]["weights"][label]
        store = Store(out, whole["step"], label, record.decoding, record.settings, overwrite)
        store.rows = [row for unit in islice(units, whole["chunks"][label]) for row in unit]
        figures[label] = finish_task(store, record, whole["model"], console)
        records[label] = record
    return build_result(out, whole["step"], records, figures, joined.infos[0]["checks"], console)


def _compare_environments(infos: Sequence[Row], console: Console) -> None:
    """Report if shards were computed with different versions or devices: rounding may change their answers."""
    first = infos[0]["environment"]
    for name in first:
        values = list(dict.fromkeys(str(info["environment"].get(name)) for info in infos))
        if len(values) > 1 and name not in MACHINE:
            console.say(
                f"The shards were computed with different {name} ({', '.join(values)}): some answers may differ from "
                "those of a single process."
            )


MERGERS: dict[str, Callable[[Path, Joined, bool, Console], dict[str, Any]]] = {
    "evaluation": _merge_evaluation,
    "grades": merge_grades,
    "responses": merge_scores,
}
