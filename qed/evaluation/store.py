"""Save the answers of a running evaluation; each problem is on disk as soon as it is finished.

A partial file next to `eval/step_N/TASK.jsonl` holds the request in its first line, then the same rows. Its problems
are not sampled again. When all are finished, the rows move to TASK.jsonl and the partial file is deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qed.errors import QedError, UsageError
from qed.runs.run import (
    Row,
    iterate_rows,
    name_step_folder,
    read_json,
    read_lines,
    write_bytes,
    write_evaluation,
    write_whole,
)
from qed.runs.step_file import encode_line, encode_lines


class Store:
    """The answers of one decoding of one task.

    Args:
        folder: folder of the run, or of separate evaluations.
        step: step of the policy.
        task, decoding: task and decoding of the answers.
        asked: everything that determines the answers; saved answers are reused only if it is identical.
        overwrite: start again if the folder has answers to another request.

    `lost` says whether the evaluation was finished before, but its answers are gone.

    Raises:
        UsageError: the folder has answers to another request.
    """

    def __init__(
        self, folder: Path, step: int, task: str, decoding: str, asked: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self.folder, self.step, self.task, self.decoding = folder, step, task, decoding
        self.home = folder / name_step_folder(step)
        self.part = self.home / f".{task}.{decoding}.unfinished.jsonl"
        # JSON round trip, so that it compares equal to what is read from a file.
        self.asked: Row = json.loads(json.dumps(asked))
        self.summary = None if overwrite else find_stored(self.home, task, decoding, self.asked)
        self.lost = self.summary is not None and not has_answers(self.home, task, decoding)
        failed = self.summary is not None and bool(self.summary.get("usage", {}).get("failed"))
        # Requests that an endpoint failed to answer are retried.
        self.summary = None if failed or self.lost else self.summary
        self.rows: list[Row] = [] if self.summary is not None else self._load_unfinished(overwrite, failed)
        self._problems = {row["group_id"] for row in self.rows}

    def _load_unfinished(self, overwrite: bool, failed: bool) -> list[Row]:
        """Return the rows of an evaluation that was interrupted or has failed answers, and write the partial file."""
        lines = read_lines(self.part) if self.part.exists() else []
        if lines and not overwrite and lines[0].get("asked") != self.asked:
            raise UsageError(
                f"{self.home} contains an unfinished {self.decoding} evaluation of {self.task} with other settings: "
                f"{list_differences(lines[0].get('asked'), self.asked)}. Give the same, use another --out, or "
                "start again with --overwrite."
            )
        rows = [] if overwrite else lines[1:]
        if failed and not lines:
            rows = self.read_finished()
        rows = [row for row in rows if row.get("stop_reason") != "failed"]
        self._replace(rows)
        return rows

    def read_finished(self) -> list[Row]:
        """Read the answers of a finished evaluation."""
        return [row for row in read_lines(self.home / f"{self.task}.jsonl") if row["decoding"] == self.decoding]

    def find_finished(self, samples: Mapping[str, int]) -> set[str]:
        """Return the problems that have at least the given number of samples."""
        counts = Counter(row["group_id"] for row in self.rows)
        return {problem for problem, count in samples.items() if counts[problem] >= count}

    def add(self, rows: Sequence[Row]) -> None:
        """Add the answers to some problems, replacing their incomplete earlier answers."""
        added = {row["group_id"] for row in rows}
        if added & self._problems:
            kept = [row for row in self.rows if row["group_id"] not in added]
            self._replace([*kept, *rows])
            self.rows = kept
        else:
            append_rows(self.part, rows)
        self.rows += rows
        self._problems |= added

    def order(self, problems: Sequence[str]) -> list[Row]:
        """Sort the answers by the order of the problems."""
        place = {problem: number for number, problem in enumerate(problems)}
        self.rows = sorted(self.rows, key=lambda row: (place[row["group_id"]], row["sample_id"]))
        return self.rows

    def finish(self, summary: Row) -> Row:
        """Write all answers and their summary; keep those of other decodings.

        Returns:
            the summary with the request.
        """
        others = [row for row in read_lines(self.home / f"{self.task}.jsonl") if row.get("decoding") != self.decoding]
        summaries = read_json(self.home / "summary.json", {}).get(self.task, {})
        self.summary = {**summary, "settings": self.asked}
        write_evaluation(
            self.folder, self.step, self.task, [*others, *self.rows], {**summaries, self.decoding: self.summary}
        )
        self.part.unlink(missing_ok=True)
        return self.summary

    def _replace(self, rows: Sequence[Row]) -> None:
        """Write the file atomically, so that a kill leaves the previous one."""
        write_whole(self.part, encode_lines("".join(map(encode_line, [{"asked": self.asked}, *rows]))))


def find_stored(home: Path, task: str, decoding: str, asked: Row) -> Row | None:
    """Return the summary of the same evaluation if it is finished in a step's folder.

    Raises:
        UsageError: the folder has answers to another request.
    """
    summary = read_json(home / "summary.json", {}).get(task, {}).get(decoding)
    if summary is not None and summary.get("settings") != asked:
        raise UsageError(
            f"{home / task}.jsonl already contains a {decoding} evaluation with other settings: "
            f"{list_differences(summary.get('settings'), asked)}. Use another --out, or replace it with --overwrite."
        )
    return None if summary is None else dict(summary)


def has_answers(home: Path, task: str, decoding: str) -> bool:
    """Return whether a step's folder has answers of a task by a decoding."""
    return any(row.get("decoding") == decoding for row in iterate_rows(home / f"{task}.jsonl"))


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append answers to a file; if the disk is full, remove what was partly written.

    Raises:
        QedError: they cannot be written.
    """
    before = path.stat().st_size
    try:
        write_bytes(path, encode_lines("".join(map(encode_line, rows))), append=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.truncate(path, before)
        raise QedError(
            f"Cannot write {path}: {error.strerror or error}. Earlier answers are kept; free some space and "
            "run the same command again."
        ) from error


def read_whole_rows(path: Path) -> list[Row]:
    """Read the rows of a file, and remove an incomplete last line, such as a power failure leaves."""
    rows = read_lines(path)
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return rows


def list_differences(there: Any, here: Mapping[str, Any]) -> str:
    """Describe the differences between two requests."""
    if not isinstance(there, dict):
        return "it was made by training"
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return ", ".join(f"{name} {there.get(name)} there and {here.get(name)} here" for name in names)
