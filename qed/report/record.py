"""Read a run folder for a report: phases, evaluations, how the run ended, and its control run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from qed.errors import DataError
from qed.evaluation.cautions import describe_lost
from qed.report import settings_file
from qed.report.numbers import read_number
from qed.runs.manifest import read_pointer
from qed.runs.metric_names import read_metrics
from qed.runs.run import Row, name_step_folder, read_evaluations, read_json, read_lines

T = TypeVar("T")
CONTROL = "control"
DECODINGS = ("greedy", "sampled")
ENDINGS = ("finished", "failed", "interrupted", "hung")
ACRONYMS = ("sft", "dpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce", "luffy")
LABELS = {"dr_grpo": "Dr. GRPO", "exgrpo": "ExGRPO", "rl_sft": "RL with SFT"}
REQUIRED = ("n", "accuracy", "ci_lo", "ci_hi")
TABLES = ("pass", "maj", "accuracy_by", "classes", "parts", "by")
UNUSED = ("tokens", "logps", "sampled_mask", "loss_mask", "prompt")  # large fields of an answer that no report reads
VALIDATION = "validation"  # the training problems held back to select the best checkpoint


@dataclass(frozen=True)
class Phase:
    """Range of training steps of one algorithm; `begin` is the step before its first."""

    name: str
    begin: int
    rows: list[Row]
    planned: int | None

    @property
    def label(self) -> str:
        """Return the algorithm's usual spelling."""
        return LABELS.get(self.name, self.name.upper() if self.name in ACRONYMS else self.name.replace("_", " "))

    @property
    def last(self) -> int:
        """Return the last step in the metrics."""
        return int(self.rows[-1]["step"])

    @property
    def is_complete(self) -> bool:
        """Return whether all planned steps are done."""
        return self.planned is None or self.last >= self.planned

    @property
    def is_online(self) -> bool:
        """Return whether the phase trained on answers sampled from the policy."""
        return any("reward/mean" in row for row in self.rows)

    def compute_total(self, key: str) -> float | None:
        """Return the sum of a metric over the steps; None if it was never logged."""
        values = [value for row in self.rows if (value := read_number(row.get(key))) is not None]
        return sum(values) if values else None

    def compute_peak(self, key: str) -> float | None:
        """Return the maximum of a metric; None if it was never logged."""
        return max((value for row in self.rows if (value := read_number(row.get(key))) is not None), default=None)


@dataclass(frozen=True)
class Record:
    """The contents of a run folder that a report uses."""

    folder: Path
    settings: Row
    origins: Row
    environment: Row
    command: str
    phases: list[Phase]
    evaluations: list[tuple[int, dict[str, Row]]]
    evaluation_seconds: float | None
    events: list[Row]
    validations: list[Row] = field(default_factory=list)  # metrics of validation data without answers to grade
    control: Record | None = field(default=None)

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.resolve().name

    @property
    def all_tasks(self) -> list[str]:
        """Return the evaluated tasks without the validation part, which is not a result: it selected the checkpoint."""
        names = dict.fromkeys(task for _, summaries in self.evaluations for task in summaries)
        return [task for task in names if task != VALIDATION]

    @property
    def tasks(self) -> list[str]:
        """Return the tasks that the training run evaluated with greedy decoding."""
        names = self.all_tasks if self.phases else []
        return [task for task in names if any("greedy" in figures for _, figures in self.list_evaluations(task))]

    @property
    def extra_tasks(self) -> list[str]:
        """Return the other evaluated tasks, with any decoding."""
        return [task for task in self.all_tasks if task not in self.tasks]

    @property
    def best_step(self) -> int | None:
        """Return the step of the checkpoint that the validation part selected; None if there is none."""
        return read_pointer(self.folder, "BEST")

    @property
    def last_step(self) -> int:
        """Return the last step of training or of an evaluation."""
        return max([phase.last for phase in self.phases] + [step for step, _ in self.evaluations], default=0)

    @property
    def planned_steps(self) -> int | None:
        """Return the total number of steps in the settings."""
        return max(read_planned_steps(self.settings, self.events).values(), default=None)

    @property
    def ending(self) -> Row | None:
        """Return the event that ended the run; None without one, or if the run was resumed after it."""
        return find_ending(self.events)

    def get_setting(self, key: str) -> Any:
        """Return a setting by its dotted name, or None."""
        return settings_file.find_value(self.settings, *key.split("."))

    def list_evaluations(self, task: str) -> list[tuple[int, Row]]:
        """Return a task's evaluations as (step, figures by decoding), in step order."""
        return [(step, summaries[task]) for step, summaries in self.evaluations if task in summaries]

    def read_rows(self, step: int, task: str, decoding: str) -> list[Row]:
        """Read the answers of one decoding of an evaluation, in file order; empty if no answers were stored."""
        if (path := self._locate_rows(step, task)) is None:
            return []
        return [row for row in _read_answers(path, path.stat().st_mtime_ns) if row.get("decoding") == decoding]

    def describe_lost(self, step: int, task: str, decoding: str, figures: Row) -> str:
        """Return a warning if the file of an evaluation lacks answers of a decoding with these figures; else ""."""
        has_file = self._locate_rows(step, task) is not None
        return describe_lost(len(self.read_rows(step, task, decoding)), figures) if has_file else ""

    def _locate_rows(self, step: int, task: str) -> Path | None:
        """Return the file with the answers of an evaluation; None if they were not stored."""
        folder = (self.folder / name_step_folder(step)).resolve()
        path = (folder / f"{task}.jsonl").resolve()
        return path if path.is_relative_to(folder) and path.is_file() else None


def read_record(folder: Path) -> Record:
    """Read a run folder, or a folder written by `qed evaluate`.

    Raises:
        DataError: the folder is not a run, has neither metrics nor an evaluation, or contains a damaged file.
    """
    has_evaluation = any(folder.glob("eval/step_*/summary.json")) if folder.is_dir() else False
    if not has_evaluation and not any((folder / name).is_file() for name in ("settings.yaml", "metrics.jsonl")):
        inside = any(folder.glob("*/settings.yaml"))
        hint = f"Its runs are {folder}/*" if inside else "Name the folder of a run"
        raise DataError(f"{folder} is not a run: it has no settings.yaml. {hint}.")
    rows = _read_with(folder / "metrics.jsonl", read_metrics)
    if not rows and not has_evaluation:
        raise DataError(
            f"{folder} has no metrics: its metrics.jsonl is missing or empty, so there is nothing to report."
        )
    if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
        raise DataError(f"{folder / 'metrics.jsonl'} has a row without a step; it was not written by a run.")
    settings = read_settings(folder / "settings.yaml")
    spent = [value for row in rows if (value := read_number(row.get("time/evaluate"))) is not None]
    command = folder / "command.txt"
    events = _read_with(folder / "events.jsonl", read_lines)
    return Record(
        folder=folder,
        settings=settings,
        origins=_read_with(folder / "settings.origin.json", _read_json),
        environment=_read_with(folder / "env.json", _read_json),
        command=_read_with(command, _read_text).strip(),
        phases=split_phases(rows, settings, events),
        evaluations=_read_evaluations(folder),
        evaluation_seconds=sum(spent) if spent else None,
        events=events,
        validations=[row for row in rows if any(key.startswith(f"eval/{VALIDATION}/") for key in row)],
        control=_read_control(folder / CONTROL),
    )


def read_planned_steps(settings: Row, events: Sequence[Row] = ()) -> dict[str, int]:
    """Return the planned last step of each phase by the phase's name; empty if unknown.

    If the settings give epochs, the run has recorded the number of steps as an event.
    """
    counted = {row.get("phase"): row.get("steps") for row in events if row.get("event") == "epochs"}
    ends: dict[str, int] = {}
    total = 0
    for part in settings_file.list_phases(settings):
        learner = part.get("learner") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(learner, dict):
            return {}
        name = Path(str(part.get("method", ""))).stem
        steps = counted.get(name) if learner.get("epochs") else learner.get("steps")
        if not isinstance(steps, int):
            return {}
        total += steps
        ends[name] = total
    return ends


def find_ending(events: Sequence[Row]) -> Row | None:
    """Return the event that ended a run; None if there is none, or the run was resumed after it."""
    for event in reversed(events):
        if event.get("event") in ENDINGS:
            return event
        if event.get("event") == "resumed":
            return None
    return None


def is_evaluation_row(row: Row) -> bool:
    """Return whether a row of the metrics is of an evaluation rather than a training step."""
    return "time/evaluate" in row or any(key.startswith("eval/") for key in row)


def split_phases(rows: Sequence[Row], settings: Row, events: Sequence[Row]) -> list[Phase]:
    """Split the metrics into phases in the order of training, without the rows of evaluations."""
    rows_by_phase: dict[str, list[Row]] = {}
    for row in rows:
        if not is_evaluation_row(row):
            rows_by_phase.setdefault(str(row.get("phase", "")), []).append(row)
    ends = read_planned_steps(settings, events)
    return [
        Phase(name, min(row["step"] for row in own) - 1, own, ends.get(name)) for name, own in rows_by_phase.items()
    ]


def _read_evaluations(folder: Path) -> list[tuple[int, dict[str, Row]]]:
    evaluations = _read_with(folder / "eval", lambda path: list(read_evaluations(path.parent)))
    for step, summaries in evaluations:
        where = f"{folder}: the evaluation at step {step}"
        if not isinstance(summaries, dict):
            raise DataError(f"{where} has no figures by task; its summary.json was not written by qed.")
        for task, decodings in summaries.items():
            for figures in decodings.values() if isinstance(decodings, dict) else [None]:
                _check_figures(figures, f"{where} of {task}")
    return evaluations


def _check_figures(figures: Any, where: str) -> None:
    """Raise if a report cannot use figures. Optional figures may be missing, as in runs of older versions."""
    if not isinstance(figures, dict) or any(read_number(figures.get(name)) is None for name in REQUIRED):
        raise DataError(f"{where} lacks one of {', '.join(REQUIRED)}.")
    for name in TABLES:
        if not isinstance(figures.get(name, {}), dict):
            raise DataError(f"{where}: {name} is not a table of figures; its summary.json was not written by qed.")


@lru_cache(maxsize=8)
def _read_answers(path: Path, stamp: int) -> list[Row]:
    """Read the answers in a file without their large fields.

    Several parts of a report read the same files, so the last few are cached. `stamp` is the file's modification time
    and part of the cache key.
    """
    rows = _read_with(path, read_lines)
    if not all(isinstance(row, dict) and "group_id" in row and "correct" in row for row in rows):
        raise DataError(f"{path} has answers without a problem or a verdict; it was not written by a run.")
    return [{name: value for name, value in row.items() if name not in UNUSED} for row in rows]


def _read_control(folder: Path) -> Record | None:
    """Read the control run; return None if it has no metrics yet."""
    return (
        read_record(folder)
        if (folder / "metrics.jsonl").is_file() and (folder / "metrics.jsonl").stat().st_size
        else None
    )


def _read_with(path: Path, reader: Callable[[Path], T]) -> T:
    try:
        return reader(path)
    except (ValueError, yaml.YAMLError, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> Row:
    content = read_json(path, {})
    return content if isinstance(content, dict) else {}


def read_settings(path: Path) -> Row:
    """Read the settings of a run; return an empty dict if there are none.

    Raises:
        DataError: the file is damaged.
    """
    return _read_with(path, settings_file.read_settings)


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
