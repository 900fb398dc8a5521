"""TensorBoard: an event file in RUN/trackers/tensorboard; `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from qed.runs.run import Row
from qed.trackers.base import TrackedRun, flatten_config, format_table


class TensorBoardTracker:
    """Writes one event file; metrics are scalars, tables are texts, and settings are hyperparameters and a text."""

    def __init__(self, run: TrackedRun) -> None:
        self.where = f"tensorboard --logdir {run.home}"
        self.writer = EventFileWriter(str(run.home))
        # An open TensorBoard drops the points of the previous attempt.
        self.writer.add_event(Event(step=0, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START)))
        values: dict[str, Any] = flatten_config(run.config)
        about = {"name": run.name, "id": run.id, "group": run.group, "tags": ", ".join(run.tags)}
        rows = [{"setting": name, "value": value} for name, value in {**about, **values}.items()]
        self._write(0, text_pb("settings", format_table(rows)))
        self._write(0, hparams_pb({name: value for name, value in values.items() if value is not None}, run.id))

    def log_metrics(self, step: int, values: Mapping[str, float | str]) -> None:
        """Write scalars; TensorBoard groups them by the prefix before the first slash."""
        numbers = {name: float(value) for name, value in values.items() if not isinstance(value, str)}
        self._write(step, Summary(value=[Summary.Value(tag=tag, simple_value=x) for tag, x in numbers.items()]))

    def log_evaluation(self, step: int, table: Sequence[Row]) -> None:
        """Write the figures of an evaluation as a text."""
        self._write(step, text_pb("evaluation", format_table(table)))

    def log_rollouts(self, step: int, table: Sequence[Row]) -> None:
        """Write rollouts as a text. TensorBoard shows ten steps of them, or all with --samples_per_plugin=text=0."""
        self._write(step, text_pb("rollouts", format_table(table)))

    def log_alarm(self, step: int, name: str, text: str, is_new: bool) -> None:
        """Write an alarm as a text."""
        self._write(step, text_pb(f"alarms/{name}", text))

    def flush(self) -> None:
        """Flush the file."""
        self.writer.flush()

    def close(self, ending: str, report: Path | None) -> None:
        """Write how the run ended and where its report is, and close the file."""
        told = f"The run {ending}." if report is None else f"The run {ending}. Its report: {report.resolve()}"
        self._write(0, text_pb("report", told))
        self.writer.close()

    def _write(self, step: int, summary: Any) -> None:
        self.writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))


def clear(home: Path) -> None:
    """Empty the event file of the previous attempt, and delete older ones.

    An open TensorBoard would wait forever for a deleted file, but continues from an empty one to the next.
    """
    for path in home.glob("events.out.tfevents.*"):
        if path.stat().st_size:
            path.write_bytes(b"")
        else:
            path.unlink()


make = TensorBoardTracker
