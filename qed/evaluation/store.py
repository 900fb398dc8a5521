"""The answers of an evaluation on disk while it goes: finished problems are there as soon as they are finished.

Beside `eval/step_N/TASK.jsonl` grows a file of the same rows, which begins with what was asked. Its problems are not
asked again; when all are there its rows take their place and it goes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qed.errors import QedError, UsageError
from qed.runs.run import (
    Row,
    encode_line,
    encode_lines,
    name_step_folder,
    read_json,
    read_lines,
    write_bytes,
    write_evaluation,
    write_whole,
)


class Store:
    """The answers of one decoding of one task.

    Args:
        folder: of the run, or of evaluations alone.
        step: of the policy.
        task, decoding: whose answers these are.
        asked: everything that decides them; answers are kept only where all of it is the same.
        overwrite: begin again where something else was asked.

    Raises:
        UsageError: the folder has answers to something else.
    """

    def __init__(
        self, folder: Path, step: int, task: str, decoding: str, asked: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self.folder, self.step, self.task, self.decoding = folder, step, task, decoding
        self.home = folder / name_step_folder(step)
        self.part = self.home / f".{task}.{decoding}.unfinished.jsonl"
        # As it reads when it comes back from a file.
        self.asked: Row = json.loads(json.dumps(asked))
        self.summary = self._read_stored(overwrite)
        self.rows: list[Row] = [] if self.summary is not None else self._begin(overwrite)

    def _read_stored(self, overwrite: bool) -> Row | None:
        """The summary of the same evaluation, where it is finished."""
        known = read_json(self.home / "summary.json", {}).get(self.task, {}).get(self.decoding)
        if known is None or overwrite:
            return None
        if known.get("settings") != self.asked:
            raise UsageError(
                f"{self.home / self.task}.jsonl already holds a {self.decoding} evaluation with other settings: "
                f"{_list_differences(known.get('settings'), self.asked)}. Take another --out, or replace it with "
                "--overwrite."
            )
        return dict(known)

    def _begin(self, overwrite: bool) -> list[Row]:
        """The rows that an interrupted evaluation has left; the file begins when there are none."""
        found = read_lines(self.part) if self.part.exists() else []
        if found and not overwrite and found[0].get("asked") != self.asked:
            raise UsageError(
                f"{self.home} holds an unfinished {self.decoding} evaluation of {self.task} with other settings: "
                f"{_list_differences(found[0].get('asked'), self.asked)}. Give the same, take another --out, or "
                "begin again "
                "with --overwrite."
            )
        rows = [] if overwrite else found[1:]
        self._replace(rows)
        return rows

    def is_finished(self, wanted: Mapping[str, int]) -> set[str]:
        """The problems that have as many answers as wanted."""
        found = Counter(row["group_id"] for row in self.rows)
        return {problem for problem, count in wanted.items() if found[problem] >= count}

    def add(self, rows: Sequence[Row]) -> None:
        """The answers to some problems; whatever a broken-off attempt has left of these is dropped."""
        again = {row["group_id"] for row in rows}
        kept = [row for row in self.rows if row["group_id"] not in again]
        if len(kept) < len(self.rows):
            self._replace([*kept, *rows])
        else:
            self._append(rows)
        self.rows = [*kept, *rows]

    def order(self, problems: Sequence[str]) -> list[Row]:
        """Bring the answers into the order of the problems, whatever the order in which they came."""
        place = {problem: number for number, problem in enumerate(problems)}
        self.rows = sorted(self.rows, key=lambda row: (place[row["group_id"]], row["sample_id"]))
        return self.rows

    def finish(self, summary: Row) -> Row:
        """All answers and their summary in their places; those of other decodings stay.

        Returns:
            the summary with what was asked.
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
        """The file anew, by renaming, so that a kill in the middle leaves the one before."""
        write_whole(self.part, encode_lines("".join(map(encode_line, [{"asked": self.asked}, *rows]))))

    def _append(self, rows: Sequence[Row]) -> None:
        before = self.part.stat().st_size
        try:
            write_bytes(self.part, encode_lines("".join(map(encode_line, rows))), append=True)
        except OSError as error:
            os.truncate(self.part, before)
            raise QedError(
                f"Cannot write {self.part}: {error.strerror or error}. Everything before is kept; free some space and "
                "go on with the same command."
            ) from error


def _list_differences(there: Any, here: Mapping[str, Any]) -> str:
    """What two evaluations asked differently, in words."""
    if not isinstance(there, dict):
        return "it was made by training"
    named = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return ", ".join(f"{name} {there.get(name)} there and {here.get(name)} here" for name in named)
