"""Grade the rows of a file on a Ray cluster."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qed.cluster.chunks import Slot, Tasks, enter_folder, explain_stops, make_shards, prepare
from qed.cluster.ray_session import connect
from qed.console.live import Console
from qed.evaluation.merge import merge
from qed.evaluation.row_shards import Items, RowJob, grade_units
from qed.evaluation.shards import Shard, ShardFile
from qed.runs.run import Row

BLOCK = 1_000  # rows of a file that one task grades


def grade_on_cluster(
    job: RowJob, out: Path, folder: Path, address: str, overwrite: bool, console: Console
) -> dict[str, Any]:
    """Grade the rows of a file with one task per thousand rows, and write what one process would write.

    Args:
        job: what to grade; the tasks receive the rows, so only `folder` must be on storage that all nodes share.
        out: the file or folder of the verdicts.
        folder: the folder of the shards.
        address: the address of the cluster, see `qed.cluster.ray_session.connect`.
        overwrite: start over if there are shards of other settings.
        console: prints.
    """
    whole, items = job.describe(BLOCK), job.read_items()
    blocks = [items[start : start + BLOCK] for start in range(0, len(items), BLOCK)]
    with connect(address) as session, explain_stops(folder, console):
        prepare(folder, session, overwrite, console)
        place = str(folder.absolute())
        files = make_shards(
            Tasks(Slot(1.0)),
            _grade_task,
            len(blocks),
            lambda shards: (job.for_task(), os.getcwd(), place, whole, [blocks[shard.number - 1] for shard in shards]),
            whole,
            folder,
            console,
        )
    return merge(out, files, overwrite, console)


# The job of this worker process with its grader, kept for the next task.
_jobs: list[RowJob] = []


def _grade_task(
    shards: Sequence[Shard], job: RowJob, cwd: str, folder: str, whole: Row, blocks: Sequence[Items]
) -> Row:
    """Grade blocks of rows, write their shards, and return counts."""
    enter_folder(cwd)
    if not _jobs or _jobs[0] != job:
        _jobs[:] = [job]
    counts: Counter[str] = Counter()
    for shard, items in zip(shards, blocks, strict=True):
        file = ShardFile(Path(folder), shard, whole, alone=True)
        grade_units(_jobs[0], file, {shard.number - 1: items}, shard.count, lambda _: None)
        rows = [row for own in file.units.values() for row in own]
        counts["answers"] += len(rows)
        counts["correct"] += sum(bool(row.get("grade", row)["correct"]) for row in rows)
    return dict(counts)
