"""Weights & Biases: online, or with WANDB_MODE=offline as one run in RUN/trackers/wandb for `wandb sync`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qed.runs.run import Row
from qed.trackers.base import TrackedRun

# Where W&B keeps files besides the run's own; by default in the home directory.
FOLDERS = ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_ARTIFACT_DIR")
# Removed, because the id comes from the run's folder, and an attempt does not resume but logs the whole history again.
REPLACED = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME")
STEPS_PER_TABLE = 10
LATE = "eval/step"  # the step of an evaluation that ended while training continued


class WandbTracker:
    """Logs to one W&B run, which starts over in every attempt: without `resume`, W&B overwrites the run of that id.

    W&B's own step is the step of the run, so a step has one row in W&B's history, and the row of a repeated step
    replaces the earlier one. An offline run cannot be resumed at all, and is replaced in the same way.
    """

    def __init__(self, run: TrackedRun) -> None:
        for name in FOLDERS:
            os.environ[name] = str(run.home / name.split("_")[1].lower())
        for name in REPLACED:
            os.environ.pop(name, None)
        import wandb  # noqa: PLC0415 -- it reads the environment when it is imported

        self.library: Any = wandb
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,  # env.json has the commit of training; here it would be that of this process
            disable_code=True,
            x_disable_meta=True,
            x_save_requirements=False,
            x_disable_stats=not run.process,
            **({"x_stats_pid": run.process} if run.process else {}),
        )
        self.run: Any = wandb.init(
            id=run.id,
            name=run.name,
            project=run.project or os.environ.get("WANDB_PROJECT") or "qed",
            entity=run.entity or None,
            group=run.group or None,
            tags=list(run.tags) or None,
            config=dict(run.config),
            dir=run.home,
            settings=settings,
        )
        self.where = self.run.url if not self.run.offline else f"wandb sync {Path(self.run.dir).parent}"
        self._step = 0
        self._rollouts: list[Row] = []
        self._evaluations: dict[int, Sequence[Row]] = {}
        self._alarms: list[Row] = []
        self._changed: set[str] = set()

    def log_metrics(self, step: int, values: Mapping[str, float | str]) -> None:
        """Log a row; W&B groups the charts by the prefix before the first slash."""
        self._log(step, dict(values))

    def log_evaluation(self, step: int, table: Sequence[Row]) -> None:
        """Add an evaluation to the table of all evaluations."""
        self._step = max(step, self._step)
        self._evaluations[step] = [{"step": step, **row} for row in table]
        self._changed.add("evaluation")

    def log_rollouts(self, step: int, table: Sequence[Row]) -> None:
        """Add rollouts to the table of their ten steps, because W&B shows only the newest table of a key."""
        if self._rollouts and _name_table(step) != _name_table(self._rollouts[0]["step"]):
            if "rollouts" in self._changed:
                self._log_rollouts()
            self._rollouts.clear()
        self._step = step
        self._rollouts += table
        self._changed.add("rollouts")

    def log_alarm(self, step: int, name: str, text: str, is_new: bool) -> None:
        """Add an alarm to the table of alarms; a new one is also an alert, which W&B may send to the user."""
        self._alarms.append({"step": step, "name": name, "text": text})
        self._changed.add("alarms")
        if is_new:
            self.run.alert(title=name, text=text, level="WARN")

    def flush(self) -> None:
        """Log the tables that have changed."""
        if "rollouts" in self._changed:
            self._log_rollouts()
        if "evaluation" in self._changed:
            self._log_table("evaluation", [row for table in self._evaluations.values() for row in table])
        if "alarms" in self._changed:
            self._log_table("alarms", self._alarms)
        self._changed.clear()

    def close(self, ending: str, report: Path | None) -> None:
        """Log the report as an artifact, mark the run as finished or failed, and wait until everything is sent."""
        if report is not None:
            artifact = self.library.Artifact(f"report-{self.run.id}", type="report", metadata={"ending": ending})
            artifact.add_file(str(report))
            self.run.log_artifact(artifact)
        self.run.finish(exit_code=0 if ending == "finished" else 1)

    def _log_rollouts(self) -> None:
        self._log_table(_name_table(self._rollouts[0]["step"]), self._rollouts)

    def _log_table(self, name: str, rows: Sequence[Row]) -> None:
        columns = list(rows[0])
        data = [[row[column] for column in columns] for row in rows]
        self._log(self._step, {name: self.library.Table(columns=columns, data=data, allow_mixed_types=True)})

    def _log(self, step: int, values: dict[str, Any]) -> None:
        """Log values of a step; W&B drops late steps, so the row of a late evaluation carries its step as a value."""
        late = {LATE: step} if step < self._step else {}
        self._step = max(step, self._step)
        self.run.log({**values, **late}, step=self._step)


def _name_table(step: int) -> str:
    """Return the key of the table with the rollouts of a step."""
    first = (step - 1) // STEPS_PER_TABLE * STEPS_PER_TABLE + 1
    return f"rollouts/{first:06d}-{first + STEPS_PER_TABLE - 1:06d}"


make = WandbTracker
