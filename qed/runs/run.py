"""A run's folder, written and read: the only channel between training, evaluation, report and viewer.

    settings.yaml  settings.origin.json  env.json  command.txt  README.md
    metrics.jsonl  events.jsonl  logs/attempt_N/main.log
    rollouts/step_000010.jsonl.zst  eval/step_000010/TASK.jsonl + summary.json
    checkpoints/step_000010/{hf/, state.*, answers.jsonl, MANIFEST.json}  checkpoints/LATEST  final

A file is whole or absent: it is written beside its place and renamed. A line of metrics.jsonl that does not fit on the
disk is taken back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import zstandard

from qed.errors import DataError, Interrupted, QedError
from qed.guards.redaction import redact
from qed.runs import manifest
from qed.types import Rollout

Row = dict[str, Any]
# In a rollout's row `source` says who wrote the answer, so the problem's own source has another name.
PROBLEM_COLUMNS = {"subject": "subject", "level": "level", "source": "data_source"}


@dataclass(frozen=True)
class Launch:
    """How a run was started: the command, where each setting came from, and what may happen to a folder that exists."""

    command: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    resume: bool = False
    overwrite: bool = False
    requeue: bool = False  # whether a run that has begun and saved nothing may begin again
    json: bool = False
    home: str = ""  # the folder that advice on resuming names, where it is not the run's own
    allow_change: tuple[str, ...] = ()  # settings that may be others when the run is resumed
    fast: bool = False  # compare sizes alone, where a checkpoint is verified


class Run:
    """The writer of one run's folder; as a context manager it puts the traceback of a failure into the run's log.

    Args:
        folder: of the run.
        home: the folder that advice on resuming names, where it is not the run's own.
    """

    def __init__(self, folder: Path, home: str = "") -> None:
        self.folder = folder
        self.home = Path(home) if home else folder
        self.attempt = len(list(folder.glob("logs/attempt_*"))) + 1
        self.log = folder / "logs" / f"attempt_{self.attempt}" / "main.log"
        self.log.parent.mkdir(parents=True)
        self._written: set[Path] = set()  # since they were last brought onto the disk

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            stopped = isinstance(error, KeyboardInterrupt | Interrupted)
            # A disk that is full, or a folder that is gone, must not hide the error that is on its way.
            with contextlib.suppress(OSError, QedError):
                self.note("".join(traceback.format_exception(error)))
                error.qed_log = self.log  # type: ignore[attr-defined]
                self.event("interrupted" if stopped else "failed", reason=str(error)[:500])

    def note(self, text: str) -> None:
        """Add to the run's log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(redact(text).rstrip("\n") + "\n")

    def event(self, kind: str, **what: Any) -> None:
        """One line in events.jsonl."""
        self._append("events.jsonl", {"event": kind, "time": round(time.time(), 3), **_redact_value(what)})

    def metrics(self, row: Row) -> None:
        """One line in metrics.jsonl."""
        self._append("metrics.jsonl", row)

    def rollouts(self, step: int, rollouts: Iterable[Rollout]) -> None:
        """All rollouts of a step, compressed."""
        lines = "".join(encode_line(build_row(rollout, step)) for rollout in rollouts)
        self.write(
            f"rollouts/step_{step:06d}.jsonl.zst", zstandard.ZstdCompressor(level=3).compress(encode_lines(lines))
        )

    def evaluation(self, step: int, task: str, rows: Sequence[Row], summary: Row) -> None:
        """Every answer of an evaluation, and its summary beside those of the step's other tasks."""
        self._written |= set(write_evaluation(self.folder, step, task, rows, summary))

    def write(self, name: str, content: bytes) -> None:
        """A whole file in the run's folder, see `write_whole`."""
        write_whole(self.folder / name, content)
        self._written.add(self.folder / name)

    def sync(self) -> None:
        """Bring onto the disk what has been recorded: a checkpoint must not outlive the metrics of its steps."""
        for path in {*self._written, *(path.parent for path in self._written)}:
            with contextlib.suppress(FileNotFoundError):
                manifest.fsync(path)
        self._written.clear()

    def truncate(self, step: int) -> None:
        """Forget what was recorded after a step, so that a resumed run continues where its checkpoint stands."""
        kept = [row for row in read_lines(self.folder / "metrics.jsonl") if row["step"] <= step]
        self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())
        for path in [*self.folder.glob("rollouts/step_*"), *self.folder.glob("eval/step_*")]:
            if int(path.name.split("_")[1].split(".")[0]) > step:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _append(self, name: str, row: Row) -> None:
        path = self.folder / name
        before = path.stat().st_size if path.exists() else 0
        try:
            write_bytes(path, (json.dumps(row) + "\n").encode(), append=True)
            self._written.add(path)
        except OSError as error:
            if path.exists():
                os.truncate(path, before)  # half a line would break every reader
            raise _explain_unwritable(path, error) from error


def _redact_value(value: Any) -> Any:
    """What an event tells, without keys in its texts."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: _redact_value(inner) for key, inner in value.items()}
    return [_redact_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_whole(path: Path, content: bytes) -> None:
    """A whole file, by renaming.

    Raises:
        QedError: the disk is full or the folder is gone; what was written before stays.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(beside, content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _explain_unwritable(path, error) from error


def write_evaluation(folder: Path, step: int, task: str, rows: Sequence[Row], summary: Row) -> tuple[Path, Path]:
    """The answers to a task in `eval/step_N/TASK.jsonl`, and the figures of each decoding in the step's
    summary.json; both files."""
    answers, figures = (folder / name_step_folder(step) / name for name in (f"{task}.jsonl", "summary.json"))
    write_whole(answers, encode_lines("".join(map(encode_line, rows))))
    summaries = {**read_json(figures, {}), task: summary}
    write_whole(figures, json.dumps(summaries, indent=1).encode())
    return answers, figures


def name_step_folder(step: int) -> str:
    """Where the evaluation of a step lies within its run."""
    return f"eval/step_{step:06d}"


def encode_line(row: Row) -> str:
    """A row as a line of a JSON lines file."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def encode_lines(lines: str) -> bytes:
    """JSON lines as UTF-8; a lone surrogate, which UTF-8 cannot hold, becomes its JSON escape."""
    return lines.encode("utf-8", "backslashreplace")


def write_bytes(path: Path, content: bytes, append: bool = False) -> None:
    """Write to a file; metrics, events, rollouts and evaluations go through here."""
    with path.open("ab" if append else "wb") as file:
        file.write(content)


def build_row(rollout: Rollout, step: int) -> Row:
    """A rollout as one line of a file."""
    verdict = rollout.grade
    return {
        "step": step,
        "group_id": rollout.problem.id,
        "sample_id": rollout.index,
        "question": rollout.problem.question,
        "gold": rollout.problem.answer,
        **{
            theirs: rollout.problem.meta[ours]
            for ours, theirs in PROBLEM_COLUMNS.items()
            if ours in rollout.problem.meta
        },
        "prompt": rollout.prompt_text,
        "text": rollout.text,
        "extracted": verdict.extracted if verdict else None,
        "reward": rollout.reward if rollout.has_reward else None,
        "parts": dict(verdict.parts) if verdict else {},
        "correct": verdict.correct if verdict else None,
        "format_ok": verdict.format_ok if verdict else None,
        "tier": verdict.tier if verdict else "",
        "reason": verdict.reason if verdict else "",
        "advantage": rollout.advantage,
        "n_tokens": len(rollout.output),
        "tokens": list(rollout.output),
        "logps": [round(value, 6) for value in rollout.logps],
        "stop_reason": rollout.stop_reason,
        "source": rollout.source,
        "given": rollout.given,
        "sampled_mask": list(map(int, rollout.sampled_mask)),
        "loss_mask": list(map(int, rollout.loss_mask)),
        "version": rollout.version,
    }


def read_lines(path: Path) -> list[Row]:
    """The rows of a JSON lines file, compressed or not; a missing file has none, an unfinished last line is passed
    over.

    Raises:
        DataError: the file is damaged, and where.
    """
    if not path.exists():
        return []
    lines: list[bytes] = []
    rows: list[Row] = []
    try:
        # Only a line feed ends a row: model text may hold whatever else Unicode takes for the end of a line.
        lines = _read_content(path).split(b"\n")[:-1]
        for line in lines:
            rows.append(_parse_row(line) if line.strip() else {})
    except (ValueError, zstandard.ZstdError) as error:
        where = f", line {len(rows) + 1}," if lines else ""
        raise DataError(f"{path}{where} cannot be read: {error}. Restore it from a copy, or take it away.") from error
    return [row for row in rows if row]


def _parse_row(line: bytes) -> Row:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"expected a row with columns, found {type(found).__name__}")
    return found


def _read_content(path: Path) -> bytes:
    if path.suffix != ".zst":
        return path.read_bytes()
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        return reader.read()


def read_json(path: Path, default: Any) -> Any:
    """A JSON file, or the default where there is none.

    Raises:
        DataError: the file is damaged.
    """
    if not path.exists():
        return default
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy, or take it away.") from error


def read_evaluations(folder: Path) -> Iterator[tuple[int, dict[str, Row]]]:
    """The evaluations of a run in the order of their steps: the step, and a summary for each task."""
    for path in sorted(folder.glob("eval/step_*/summary.json")):
        yield int(path.parent.name.split("_")[1]), read_json(path, {})


def _explain_unwritable(path: Path, error: OSError) -> QedError:
    return QedError(
        f"Cannot write {path}: {error.strerror or error}. Everything written before is whole. Free some space, or set "
        "run.save_rollouts=false in training, and go on with --resume."
    )
