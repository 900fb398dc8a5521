"""Grade one shard of the answers in files, for `qed grade` and `qed evaluate --responses`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from qed.console.live import Console
from qed.console.progress import report_progress
from qed.errors import DataError
from qed.evaluation.shards import Shard, ShardFile
from qed.runs.manifest import hash_file
from qed.runs.run import Row

ADD_SECONDS = 1.0  # between two writes of finished rows
Items = Sequence[Any]  # rows of a file, or groups of them that are graded together, with the data needed to grade them


class RowJob(Protocol):
    """What is graded and how; can be sent to another process."""

    @property
    def unit(self) -> str:
        """What an item is, in the plural."""
        ...

    def describe(self, block: int) -> Row:
        """Describe what all shards must have in common, with units of `block` items."""
        ...

    def for_task(self) -> RowJob:
        """Return the same job for one of many processes, without a loaded grader."""
        ...

    def list_files(self) -> list[str]:
        """List the files with the rows."""
        ...

    def read_items(self) -> list[Any]:
        """Read the items."""
        ...

    def grade_items(self, items: Items) -> Iterator[list[Row]]:
        """Yield the results of each item, in order."""
        ...


def require_unchanged(files: Sequence[str], hashes: Sequence[str]) -> None:
    """Check that files have the content that was graded.

    Raises:
        DataError: one is missing or has changed.
    """
    for name, digest in zip(files, hashes, strict=True):
        if not Path(name).is_file():
            raise DataError(
                f"There is no file {name}, whose rows the shards graded: merge them in the folder where it is."
            )
        if hash_file(Path(name)) != digest:
            raise DataError(f"{name} has changed since the shards graded it: restore it, or grade it again.")


def run_row_shard(job: RowJob, folder: Path, shard: Shard, overwrite: bool, console: Console) -> Path:
    """Grade the rows of a shard, and write the results for `qed merge`.

    Returns:
        the shard's file.
    """
    items = job.read_items()
    units = {number: [items[number]] for number in shard.list_units(len(items))}
    file = ShardFile(folder, shard, job.describe(1), overwrite)
    done = len(file.units.keys() & units.keys())
    console.say(
        f"Shard {shard}: {len(units):,} of {len(items):,} {job.unit}" + (f", {done:,} finished." if done else ".")
    )
    grade_units(job, file, units, len(items), console.say)
    return file.path


def grade_units(
    job: RowJob, file: ShardFile, units: Mapping[int, Items], total: int, say: Callable[[str], None]
) -> None:
    """Grade the missing units of a shard, and finish its file; `total` is the number of units of all shards."""
    if file.is_finished:
        return
    missing = {unit: items for unit, items in units.items() if unit not in file.units}
    results = job.grade_items(list(chain.from_iterable(missing.values())))
    ready: dict[int, list[Row]] = {}
    written = time.monotonic()
    for _, (unit, items) in report_progress(missing.items(), say, "Grading", job.unit, len(missing)):
        ready[unit] = [row for _ in items for row in next(results)]
        if time.monotonic() - written >= ADD_SECONDS:
            file.add(ready)
            ready, written = {}, time.monotonic()
    file.add(ready)
    next(results, None)  # lets the grader end its workers
    file.finish(total, {"files": job.list_files()})
