"""A run's folder, read for a report: its phases, its evaluations, how it ended, and the control run inside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from qed.errors import DataError
from qed.report.numbers import read_number
from qed.runs.metric_names import read_metrics
from qed.runs.run import Row, name_step_folder, read_evaluations, read_json, read_lines

T = TypeVar("T")
CONTROL = "control"
DECODINGS = ("greedy", "sampled")
ENDINGS = ("finished", "failed", "interrupted")
ACRONYMS = ("sft", "dpo", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce", "luffy")
LABELS = {"dr_grpo": "Dr. GRPO", "exgrpo": "ExGRPO", "rl_sft": "RL with SFT"}
NEEDED = ("n", "accuracy", "ci_lo", "ci_hi")
TABLES = ("pass", "maj", "accuracy_by", "classes", "parts", "by")
HEAVY = ("tokens", "logps", "sampled_mask", "loss_mask", "prompt")  # of an answer, and of no use to a report
VALIDATION = "validation"  # the part of the training problems by which the best checkpoint is chosen


@dataclass(frozen=True)
class Phase:
    """A range of a run's steps that one algorithm made; `begin` is the step before its first."""

    name: str
    begin: int
    rows: list[Row]
    planned: int | None

    @property
    def label(self) -> str:
        """The algorithm's name as people write it."""
        return LABELS.get(self.name, self.name.upper() if self.name in ACRONYMS else self.name.replace("_", " "))

    @property
    def last(self) -> int:
        """The last step that was made."""
        return int(self.rows[-1]["step"])

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was made."""
        return self.planned is None or self.last >= self.planned

    @property
    def online(self) -> bool:
        """Whether the phase learned from answers of its own."""
        return any("reward/mean" in row for row in self.rows)

    def total(self, key: str) -> float | None:
        """The sum of a measure over the steps; None where it was never measured."""
        found = [value for row in self.rows if (value := read_number(row.get(key))) is not None]
        return sum(found) if found else None

    def peak(self, key: str) -> float | None:
        """The largest value of a measure; None where it was never measured."""
        return max((value for row in self.rows if (value := read_number(row.get(key))) is not None), default=None)


@dataclass(frozen=True)
class Record:
    """Everything that a report says about one run."""

    folder: Path
    settings: Row
    origins: Row
    environment: Row
    command: str
    phases: list[Phase]
    evaluations: list[tuple[int, dict[str, Row]]]
    evaluation_seconds: float | None
    events: list[Row]
    control: Record | None = field(default=None)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def every_task(self) -> list[str]:
        """What was evaluated, without the validation part: having guided the run, that is no result of it."""
        found = dict.fromkeys(task for _, summaries in self.evaluations for task in summaries)
        return [task for task in found if task != VALIDATION]

    @property
    def tasks(self) -> list[str]:
        """The tasks that training has measured with greedy answers, before and after."""
        every = self.every_task if self.phases else []
        return [task for task in every if any("greedy" in figures for _, figures in self.measured(task))]

    @property
    def others(self) -> list[str]:
        """The tasks that were evaluated alone, however their answers were drawn."""
        return [task for task in self.every_task if task not in self.tasks]

    @property
    def best(self) -> int | None:
        """The step of the checkpoint that the validation part has chosen; None where none was."""
        chosen = (self.folder / "checkpoints" / "BEST").is_file() and _read_text(self.folder / "checkpoints" / "BEST")
        digits = chosen.strip().rpartition("_")[2] if chosen else ""
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 12 else None

    @property
    def last(self) -> int:
        """The last step on record."""
        return max([phase.last for phase in self.phases] + [step for step, _ in self.evaluations], default=0)

    @property
    def planned(self) -> int | None:
        """The steps that the settings ask for."""
        return max(read_planned_steps(self.settings).values(), default=None)

    @property
    def ending(self) -> Row | None:
        """The event that ended the run; None while there is none, or when the run was taken up again after it."""
        for event in reversed(self.events):
            if event.get("event") in ENDINGS:
                return event
            if event.get("event") == "resumed":
                return None
        return None

    def setting(self, key: str) -> Any:
        """A setting by its dotted name, or None."""
        value: Any = self.settings
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def measured(self, task: str) -> list[tuple[int, Row]]:
        """A task's evaluations in the order of their steps: the figures of each decoding."""
        return [(step, summaries[task]) for step, summaries in self.evaluations if task in summaries]

    def rows(self, step: int, task: str, decoding: str) -> list[Row]:
        """The answers of one decoding of an evaluation, in the order they were asked; none where none were kept."""
        folder = (self.folder / name_step_folder(step)).resolve()
        path = (folder / f"{task}.jsonl").resolve()
        if not path.is_relative_to(folder):
            return []
        stamp = path.stat().st_mtime_ns if path.is_file() else 0
        return [row for row in _read_answers(path, stamp) if row.get("decoding") == decoding]

    def answers(self, step: int, task: str) -> dict[tuple[str, int], Row]:
        """The greedy answers of an evaluation by problem and number."""
        return {(str(row["group_id"]), row.get("sample_id", 0)): row for row in self.rows(step, task, "greedy")}


def read_record(folder: Path) -> Record:
    """A run's folder, or a folder of evaluations alone, as `qed evaluate` writes it.

    Raises:
        DataError: the folder is no run, has neither metrics nor an evaluation, or a file in it is damaged.
    """
    known = ("settings.yaml", "metrics.jsonl")
    measured = any(folder.glob("eval/step_*/summary.json")) if folder.is_dir() else False
    if not measured and not any((folder / name).is_file() for name in known):
        raise DataError(f"{folder} is no run: there is no settings.yaml in it. Name the folder that a run has written.")
    rows = _read_with(folder / "metrics.jsonl", read_metrics)
    if not rows and not measured:
        raise DataError(
            f"{folder} has no metrics: its metrics.jsonl is missing or empty, so there is nothing to report."
        )
    if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
        raise DataError(f"{folder / 'metrics.jsonl'} has a row without a step; it was not written by a run.")
    settings = _read_with(folder / "settings.yaml", _read_yaml)
    spent = [value for row in rows if (value := read_number(row.get("time/evaluate"))) is not None]
    command = folder / "command.txt"
    return Record(
        folder=folder,
        settings=settings,
        origins=_read_with(folder / "settings.origin.json", _read_json),
        environment=_read_with(folder / "env.json", _read_json),
        command=_read_with(command, _read_text).strip(),
        phases=_split_phases(rows, settings),
        evaluations=_read_evaluations(folder),
        evaluation_seconds=sum(spent) if spent else None,
        events=_read_with(folder / "events.jsonl", read_lines),
        control=_read_control(folder / CONTROL),
    )


def read_planned_steps(settings: Row) -> dict[str, int]:
    """The last step of each phase as the settings ask for it, by the phase's name."""
    parts = (
        [settings]
        if "method" in settings
        else [settings.get(n) for n in ("sft", "rl") if not settings.get(f"skip_{n}")]
    )
    ends: dict[str, int] = {}
    total = 0
    for part in parts:
        learner = part.get("learner") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(learner, dict) or not isinstance(learner.get("steps"), int):
            return {}
        total += learner["steps"]
        ends[Path(str(part.get("method", ""))).stem] = total
    return ends


def _split_phases(rows: list[Row], settings: Row) -> list[Phase]:
    """The phases in the order they were run; the rows of evaluations belong to none."""
    trained: dict[str, list[Row]] = {}
    for row in rows:
        if "time/evaluate" not in row and not any(key.startswith("eval/") for key in row):
            trained.setdefault(str(row.get("phase", "")), []).append(row)
    ends = read_planned_steps(settings)
    return [Phase(name, min(row["step"] for row in own) - 1, own, ends.get(name)) for name, own in trained.items()]


def _read_evaluations(folder: Path) -> list[tuple[int, dict[str, Row]]]:
    found = _read_with(folder / "eval", lambda path: list(read_evaluations(path.parent)))
    for step, summaries in found:
        where = f"{folder}: the evaluation at step {step}"
        if not isinstance(summaries, dict):
            raise DataError(f"{where} has no figures by task; its summary.json was not written by qed.")
        for task, decodings in summaries.items():
            for figures in decodings.values() if isinstance(decodings, dict) else [None]:
                _check_figures(figures, f"{where} of {task}")
    return found


def _check_figures(figures: Any, where: str) -> None:
    """What every part of a report relies on; figures that are missing altogether are those of an older version."""
    if not isinstance(figures, dict) or any(read_number(figures.get(name)) is None for name in NEEDED):
        raise DataError(f"{where} lacks one of {', '.join(NEEDED)}.")
    for name in TABLES:
        if not isinstance(figures.get(name, {}), dict):
            raise DataError(f"{where} has {name} that is no table of figures; its summary.json was not written by qed.")


@lru_cache(maxsize=8)
def _read_answers(path: Path, stamp: int) -> list[Row]:
    """The answers in a file, without what takes most of the room; several parts of a report read them, so the last few
    files are kept. `stamp` is the file's time: another one is another file."""
    rows = _read_with(path, read_lines)
    if not all(isinstance(row, dict) and "group_id" in row and "correct" in row for row in rows):
        raise DataError(f"{path} has answers without a problem or a verdict; it was not written by a run.")
    return [{name: value for name, value in row.items() if name not in HEAVY} for row in rows]


def _read_control(folder: Path) -> Record | None:
    """The control run; one that has measured nothing yet has nothing to say."""
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
    found = read_json(path, {})
    return found if isinstance(found, dict) else {}


def _read_yaml(path: Path) -> Row:
    found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if isinstance(found, dict) else {}


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
