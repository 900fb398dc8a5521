"""Trackio: a database in RUN/trackers/trackio; `TRACKIO_DIR=RUN/trackers/trackio trackio show` opens it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qed.runs.run import Row
from qed.trackers.base import TrackedRun, flatten_config


class TrackioTracker:
    """Writes Trackio's own database on this machine; `trackio sync` uploads it to a Space."""

    def __init__(self, run: TrackedRun) -> None:
        # A Space cannot remove the steps that a resumed run repeats, so nothing is sent to one directly.
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID"):
            os.environ.pop(name, None)
        os.environ["TRACKIO_DIR"] = str(run.home)
        import trackio  # noqa: PLC0415 -- it reads its folder when it is imported

        self.library: Any = trackio
        project = run.project or "qed"
        self.where = f"TRACKIO_DIR={run.home} trackio show --project {project}"
        config = {**flatten_config(run.config), "id": run.id, "tags": ", ".join(run.tags)}
        self.run: Any = trackio.init(
            project=project,
            name=run.name,
            group=run.group or None,
            config=config,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log_metrics(self, step: int, values: Mapping[str, float | str]) -> None:
        """Log a row."""
        self.run.log(dict(values), step=step)

    def log_evaluation(self, step: int, table: Sequence[Row]) -> None:
        """Log the figures of an evaluation as a table."""
        self._log_table(step, "evaluation", table)

    def log_rollouts(self, step: int, table: Sequence[Row]) -> None:
        """Log rollouts as a table; Trackio keeps those of every step."""
        self._log_table(step, "rollouts", table)

    def log_alarm(self, step: int, name: str, text: str, is_new: bool) -> None:
        """Log an alert."""
        self.run.alert(title=name, text=text, step=step)

    def flush(self) -> None:
        """Do nothing: Trackio writes by itself."""

    def close(self, ending: str, report: Path | None) -> None:
        """Log the report as an artifact, and wait until everything is written."""
        if report is not None:
            artifact = self.library.Artifact("report", type="report", metadata={"ending": ending})
            artifact.add_file(report)
            self.run.log_artifact(artifact)
        self.run.finish()

    def _log_table(self, step: int, name: str, table: Sequence[Row]) -> None:
        columns = list(table[0])
        data = [[row[column] for column in columns] for row in table]
        self.run.log({name: self.library.Table(columns=columns, data=data)}, step=step)


make = TrackioTracker
