"""Write and read a run's folder, the only interface between training, evaluation, report and viewer.

    settings.yaml  settings.origin.json  env.json  command.txt  tokenizer.json  README.md
    metrics.jsonl  events.jsonl  logs/attempt_N/main.log
    rollouts/step_000010.{jsonl,index,stats}.zst  eval/step_000010/TASK.jsonl + summary.json
    checkpoints/step_000010/{hf/, state.*, answers.jsonl, MANIFEST.json}  checkpoints/LATEST  final

Files are written atomically: under a temporary name, then renamed. If a line of a JSON lines file does not fit on the
disk, the part already written is removed.
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
from itertools import chain
from operator import or_
from pathlib import Path
from types import TracebackType
from typing import Any

from qed.errors import INTERRUPTED, DataError, Interrupted, QedError, advise_space
from qed.guards.redaction import redact
from qed.runs import manifest
from qed.runs.step_file import encode_line, encode_lines, explain_damage, iterate_lines, name_step_file, parse_row
from qed.runs.step_index import IndexBuilder, encode_index, name_index
from qed.runs.token_stats import encode_stats, name_stats
from qed.types import Groups, Rollout

Row = dict[str, Any]
# How to continue after a file could not be written: for most commands, and for training.
REPEAT = "run the same command again"
RESUME = "continue with --resume"
ROWS_AT_ONCE = 1_000  # rows of an evaluation that are encoded per write
# In a rollout's row `source` is the origin of the answer, so the source of the problem has another name.
PROBLEM_COLUMNS = {"subject": "subject", "level": "level", "source": "data_source"}


@dataclass(frozen=True)
class Launch:
    """How a run was started: the command, the origin of each setting, and what may happen to an existing folder."""

    command: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    resume: bool = False
    overwrite: bool = False
    requeue: bool = False  # whether a run without a checkpoint may start over
    json: bool = False
    home: str = ""  # the folder to name in messages about resuming, if it is not the run's own
    allow_change: tuple[str, ...] = ()  # settings that may change when the run is resumed
    fast: bool = False  # whether to verify a checkpoint by file sizes only


class Run:
    """Writes a run's folder; as a context manager it writes the traceback of a failure into the run's log.

    Args:
        folder: the folder of the run.
        home: the folder to name in messages about resuming, if it is not the run's own.
    """

    undone = False  # whether the folder was deleted, or given back to the run that this one was to replace

    def __init__(self, folder: Path, home: str = "") -> None:
        self.folder = folder
        self.home = Path(home) if home else folder
        numbers = (path.name.removeprefix("attempt_") for path in folder.glob("logs/attempt_*"))
        self.attempt = max((int(number) for number in numbers if number.isdecimal()), default=0) + 1
        self.log = folder / "logs" / f"attempt_{self.attempt}" / "main.log"
        self.log.parent.mkdir(parents=True)
        self._written: set[Path] = set()  # files that were written since the last `sync`

    @property
    def reward_log(self) -> Path:
        """The file for the output of rewards."""
        return self.log.with_name("rewards.log")

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self.undone:
            stopped = isinstance(error, KeyboardInterrupt | Interrupted)
            # A full disk or a deleted folder must not hide the original error.
            with contextlib.suppress(OSError, QedError):
                self.write_log("".join(traceback.format_exception(error)))
                error.qed_log = self.log  # type: ignore[attr-defined]
                code = getattr(error, "exit_code", INTERRUPTED if stopped else 1)
                self.event("interrupted" if stopped else "failed", reason=str(error)[:500], exit_code=code)

    def write_log(self, text: str) -> None:
        """Append text to the run's log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(redact(text).rstrip("\n") + "\n")

    def log_line(self, text: str) -> None:
        """Append text with the time to the run's log; ignore errors, because required writes report a full disk."""
        if text.strip():
            with contextlib.suppress(OSError):
                self.write_log(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}")

    def event(self, kind: str, **what: Any) -> None:
        """Append a line to events.jsonl."""
        self._append("events.jsonl", {"event": kind, "time": round(time.time(), 3), **_redact_value(what)})

    def metrics(self, row: Row) -> None:
        """Append a line to metrics.jsonl."""
        self._append("metrics.jsonl", row)

    def rollouts(self, step: int, groups: Groups, trained: Groups | None = None) -> None:
        """Write all rollouts of a step, compressed, one group at a time; then their index.

        Args:
            step: the step of the run.
            groups: the sampled groups.
            trained: the groups with advantages (default: all); the others were filtered out or wait for a later step.
        """
        data, builder = self.folder / name_step_file(step), IndexBuilder()
        known = {id(rollout) for group in (groups if trained is None else trained) for rollout in group}
        rows = (
            [build_row(each, step) | ({} if id(each) in known else {"advantage": None}) for each in group]
            for group in groups
            if group
        )
        write_parts(data, builder.encode_groups(rows), RESUME)
        self._written.add(data)
        index = builder.build(data.stat().st_size)
        self.write(str(name_index(data).relative_to(self.folder)), encode_index(index))

    def token_stats(self, step: int, rows: Sequence[Row]) -> None:
        """Write the per-token statistics of some of a step's answers, see `qed.runs.token_stats`."""
        self.write(str(name_stats(Path(name_step_file(step)))), encode_stats(rows))

    def evaluation(self, step: int, task: str, rows: Sequence[Row], summary: Row) -> None:
        """Write every answer of an evaluation, and add its summary to those of the step's other tasks."""
        self._written |= set(write_evaluation(self.folder, step, task, rows, summary, RESUME))

    def write(self, name: str, content: bytes) -> None:
        """Write a file in the run's folder atomically, see `write_whole`."""
        write_whole(self.folder / name, content, RESUME)
        self._written.add(self.folder / name)

    def sync(self) -> None:
        """Sync all written files to disk, so that no checkpoint outlives the metrics of its steps."""
        written, self._written = self._written, set()  # another thread may write an event in the meantime
        for path in {*written, *(path.parent for path in written)}:
            with contextlib.suppress(FileNotFoundError):
                manifest.fsync(path)

    def truncate(self, step: int) -> None:
        """Delete metrics, rollouts and evaluations of later steps, before a run resumes from this step."""
        rows = [row for row in read_lines(self.folder / "metrics.jsonl") if row["step"] <= step]
        self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        for path in [*self.folder.glob("rollouts/step_*"), *self.folder.glob("eval/step_*")]:
            if (manifest.parse_step(path.name.partition(".")[0]) or 0) > step:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _append(self, name: str, row: Row) -> None:
        path = self.folder / name
        size = path.stat().st_size if path.exists() else 0
        try:
            write_bytes(path, (json.dumps(row) + "\n").encode(), append=True)
            self._written.add(path)
        except OSError as error:
            with contextlib.suppress(OSError):  # on a read-only disk nothing was written either
                os.truncate(path, size)  # an incomplete line would break every reader
            raise _explain_unwritable(path, error, RESUME) from error


def _redact_value(value: Any) -> Any:
    """Redact all strings in a JSON value."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: _redact_value(inner) for key, inner in value.items()}
    return [_redact_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_whole(path: Path, content: bytes, advice: str = REPEAT) -> None:
    """Write a file under a temporary name and rename it.

    Args:
        path: the path of the file.
        content: the new content.
        advice: how to continue once the file can be written, for the message.

    Raises:
        QedError: the disk is full or the folder is gone; the previous content is kept.
    """
    write_parts(path, [content], advice)


def write_parts(path: Path, parts: Iterable[bytes], advice: str = REPEAT) -> None:
    """Write a file from several parts, see `write_whole`; only one part must be in memory at a time."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        if not path.parent.exists():  # for a file in place of the folder, mkdir would only say that it exists
            path.parent.mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(chain([b""], parts)):  # without any part the file is empty
            write_bytes(temporary, part, append=number > 0)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _explain_unwritable(path, error, advice) from error


def write_evaluation(
    folder: Path, step: int, task: str, rows: Sequence[Row], summary: Row, advice: str = REPEAT
) -> tuple[Path, Path]:
    """Write the answers to a task to `eval/step_N/TASK.jsonl`, and add its summary to the step's summary.json.

    For `advice`, see `write_whole`.

    Returns:
        The paths of both files.
    """
    answers, figures = (folder / name_step_folder(step) / name for name in (f"{task}.jsonl", "summary.json"))
    parts = (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))
    write_parts(answers, (encode_lines("".join(map(encode_line, part))) for part in parts), advice)
    summaries = {**read_json(figures, {}), task: summary}
    write_whole(figures, json.dumps(summaries, indent=1).encode(), advice)
    return answers, figures


def name_step_folder(step: int) -> str:
    """Return the path of a step's evaluation within the run's folder."""
    return f"eval/step_{step:06d}"


def write_bytes(path: Path, content: bytes, append: bool = False) -> None:
    """Write or append to a file; this function writes all metrics, events, rollouts and evaluations."""
    with path.open("ab" if append else "wb") as file:
        file.write(content)


def build_row(rollout: Rollout, step: int) -> Row:
    """Build the row of a rollout for rollouts/."""
    verdict = rollout.grade
    return {
        "step": step,
        "group_id": rollout.problem.id,
        "sample_id": rollout.index,
        "question": rollout.problem.question,
        "gold": rollout.problem.answer,
        **{column: rollout.problem.meta[key] for key, column in PROBLEM_COLUMNS.items() if key in rollout.problem.meta},
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
        "n_tokens": _count_tokens(rollout),
        "tokens": list(rollout.output),
        "logps": [round(value, 6) for value in rollout.logps],
        "stop_reason": rollout.stop_reason,
        "source": rollout.source,
        "given": rollout.given,
        "sampled_mask": list(map(int, rollout.sampled_mask)),
        "loss_mask": list(map(int, rollout.loss_mask)),
        "version": rollout.version,
        **({"turns": describe_turns(rollout)} if rollout.turns else {}),
    }


def _count_tokens(rollout: Rollout) -> int:
    """Count the tokens that are sampled or trained, which excludes those of an environment."""
    sampled = rollout.sampled_mask or (True,) * len(rollout.output)
    return sum(map(or_, sampled, rollout.trained))


def describe_turns(rollout: Rollout) -> list[Row]:
    """Describe the turns to which an environment replied; the text of the last turn is in the row itself."""
    pairs = zip(rollout.turns, rollout.turn_rewards, strict=True)
    return [{"text": text, "reply": reply, "reward": reward} for (text, reply), reward in pairs]


def read_lines(path: Path) -> list[Row]:
    """Read the rows of a JSON lines file, compressed or not; none if it is missing. An incomplete last line is skipped.

    Raises:
        DataError: the file is damaged; the message names the line.
    """
    return list(iterate_rows(path))


def iterate_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSON lines file one at a time; see `read_lines`."""
    if not path.exists():
        return
    count = 0
    try:
        for line in iterate_lines(path):
            count += 1
            if row := parse_row(line):
                yield row
    except ValueError as error:
        raise explain_damage(path, error, count) from error


def read_json(path: Path, default: Any) -> Any:
    """Read a JSON file, or return the default if there is none.

    Raises:
        DataError: the file is damaged.
    """
    if not path.exists():
        return default
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}. Restore it from a copy, or delete it.") from error


def read_evaluation(folder: Path, step: int) -> dict[str, Row]:
    """Return the summary of each task of a step's evaluation; none if there was no evaluation."""
    summaries: dict[str, Row] = read_json(folder / name_step_folder(step) / "summary.json", {})
    return summaries


def read_evaluations(folder: Path) -> Iterator[tuple[int, dict[str, Row]]]:
    """Yield the evaluations of a run in order: the step, and the summary of each task."""
    steps = (manifest.parse_step(path.parent.name) for path in folder.glob("eval/step_*/summary.json"))
    for step in sorted(step for step in steps if step is not None):
        yield step, read_evaluation(folder, step)


def _explain_unwritable(path: Path, error: OSError, advice: str) -> QedError:
    less = ", or set run.save_rollouts=false" if advice == RESUME else ""
    space = advise_space(error)
    first = f"{space}{less}" if space else "Make it writable"
    return QedError(
        f"Cannot write {path}: {error.strerror or error}. Everything written before is complete. {first}, and {advice}."
    )
