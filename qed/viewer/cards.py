"""The cards in the list of runs: a summary of each run, read from the ends and samples of its files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from qed.guards.redaction import redact
from qed.report.numbers import read_number
from qed.report.record import ENDINGS, VALIDATION, find_ending, read_planned_steps
from qed.report.settings_file import find_value, list_phases, read_settings
from qed.runs.folder import LOCK
from qed.runs.manifest import parse_step
from qed.runs.metric_names import rename_old_metrics
from qed.runs.run import name_step_folder
from qed.viewer.cleaning import clean_value
from qed.viewer.library import Library, RunPlace
from qed.viewer.line_file import Row, draw_rows, parse_line, read_first_rows, read_last_rows, sample_lines
from qed.viewer.params import Params, Refused
from qed.viewer.states import Heartbeat, State, judge_state, read_heartbeat

SPARKS = ("reward/mean", "train/loss")  # a card shows the first of these that the run has
FIGURES = (
    *("reward/mean", "train/loss", "format", "policy/entropy", "length/mean", "length/truncated_frac"),
    *("groups/zero_std", "kl/ref", "mismatch/kl", "optim/grad_norm", "optim/lr", "time/step", "perf/tokens_per_s"),
)
PLANNING = ("method", "learner", "sft", "rl", "skip_sft", "skip_rl")  # settings that say how many steps are planned
LAST_BYTES = 24_576  # of the metrics: about a dozen rows
PHASE = re.compile(rb'"phase": ?"([^"\\]+)"')
SAMPLED = 96  # lines of a long metrics file
SPARK_ROWS = 48
SPARK_EVALUATIONS = 6  # of a run: each is a file to read, and a list may have hundreds of runs
TRIED = 3  # evaluations at each end that are searched for figures
MOST_ALARMS = 20
MOST_SUMMARY = 8_000_000  # bytes of a summary.json
LONGEST = 200  # characters of a text on a card


def list_cards(library: Library, params: Params) -> dict[str, Any]:
    """Answer `runs`: the card of each run, and the folders that are not shown."""
    return {
        "runs": [build_card(library, run) for run in library.runs()],
        "problems": [{"folder": each.folder, "reason": each.reason} for each in library.problems()],
    }


def build_card(library: Library, run: RunPlace) -> dict[str, Any]:
    """Return the card of a run; a run that cannot be read has the status `unknown` and the reason."""
    try:
        return _Reader(library, run).build()
    except Refused as error:
        return _build_blank(run, str(error))
    except (OSError, ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RecursionError) as error:
        return _build_blank(run, f"It cannot be read: {type(error).__name__}: {str(error)[:LONGEST]}")


def _build_blank(run: RunPlace, reason: str) -> dict[str, Any]:
    return {
        **{"key": run.key, "name": run.name, "folder": str(run.folder), "kind": "run", "status": "unknown"},
        **{"reason": reason, "method": "", "model": "", "task": "", "seed": None, "phases": [], "step": 0},
        **{"planned": None, "started": None, "updated": None, "resumed": False, "tokens_per_s": None},
        **{"accuracy": None, "first_accuracy": None, "reward": None, "figures": {}, "sparks": {}, "alarms": []},
    }


@dataclass(frozen=True)
class _Settings:
    """What a card shows of the settings; `tree` is for the planned steps, `trouble` says why there are no settings."""

    tree: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    phases: tuple[str, ...] = ()
    model: str = ""
    tasks: tuple[str, ...] = ()
    seed: int | None = None
    patience: float = 0.0
    trouble: str = ""


@dataclass(frozen=True)
class _Metrics:
    """What a card shows of the metrics."""

    step: int = 0
    phases: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    sparks: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Events:
    """What a card needs of the events: the times of the first and the last, and some of the events themselves."""

    first: float | None = None
    last: float | None = None
    needed: Sequence[Row] = ()


class _Reader:
    """Reads the card of a run; each part is cached until its file changes."""

    def __init__(self, library: Library, run: RunPlace) -> None:
        self.library, self.run = library, run
        run.locate()  # refuses a folder that no longer exists, or has become a link
        with os.scandir(run.folder) as entries:
            found = [entry for entry, _ in zip(entries, range(1_000), strict=False)]
        self.files = {one.name: Path(one.path) for one in found if one.is_file(follow_symlinks=False)}
        # A link is followed only within the run.
        self.files |= {one.name: run.locate(one.name) for one in found if one.is_symlink() and _leads_to_file(run, one)}

    def build(self) -> dict[str, Any]:
        """Return the card."""
        settings = self._remember("settings.yaml", _summarize_settings, _Settings())
        metrics = self._remember("metrics.jsonl", _summarize_metrics, _Metrics())
        found = self._remember("events.jsonl", _read_events, _Events())
        events = found.needed
        evaluations = self._list_evaluations()
        first_accuracy = self._read_accuracy(evaluations[:TRIED], settings.tasks)
        accuracy = self._read_accuracy(evaluations[: -TRIED - 1 : -1], settings.tasks)
        is_training = "metrics.jsonl" in self.files or bool(settings.method)
        changed, beat = self._find_change(), read_heartbeat(self.files.get("heartbeat.json"))
        state = self._judge(settings, events, changed, beat) if is_training else State("done")
        started, updated = self._find_times(found, beat, changed, state)
        step = max(metrics.step, accuracy["step"] if accuracy else 0)
        return {
            **_build_blank(self.run, state.reason or settings.trouble),
            "kind": "run" if is_training else "evaluation",
            "status": state.status,
            "method": settings.method or " → ".join(metrics.phases),
            "model": settings.model,
            "task": ", ".join(settings.tasks) or (accuracy["task"] if accuracy else ""),
            "seed": settings.seed,
            "phases": list(metrics.phases or settings.phases),
            "step": step,
            "planned": max(read_planned_steps(dict(settings.tree), events).values(), default=None),
            "started": started,
            "updated": updated,
            "resumed": any(event["event"] == "resumed" for event in events),
            "tokens_per_s": metrics.figures.get("perf/tokens_per_s"),
            "accuracy": accuracy,
            "first_accuracy": first_accuracy,
            "reward": metrics.figures.get("reward/mean"),
            "figures": dict(metrics.figures),
            "sparks": {**metrics.sparks, **self._read_trend(evaluations, accuracy, settings.tasks)},
            "alarms": _list_alarms(events),
        }

    def _remember(self, name: str, read: Any, missing: Any) -> Any:
        """Return what a function reads from a file, or `missing` if there is no file."""
        path = self.files.get(name)
        if path is None:
            return missing
        return self.library.memo.read(("card", path), [path], lambda: read(path))

    def _judge(self, settings: _Settings, events: Sequence[Row], changed: float, beat: Heartbeat) -> State:
        return judge_state(self.files.get(LOCK), beat, events, changed, settings.patience)

    def _find_change(self) -> float:
        times = [0.0]
        for name in ("metrics.jsonl", "events.jsonl", "settings.yaml"):
            with suppress(OSError):
                times.append(self.files[name].stat().st_mtime if name in self.files else 0.0)
        return max(times)

    def _find_times(
        self, found: _Events, beat: Heartbeat, changed: float, state: State
    ) -> tuple[float | None, float | None]:
        """Return when the run began and last wrote, preferably by its own times, because a copy has newer files."""
        said = [time for time in (found.last, beat.said) if time is not None]
        is_told = find_ending(found.needed) is not None or (beat.said is not None and state.status != "live")
        updated = max(said if said and is_told else [*said, changed])
        started = self._find_age() if found.first is None else found.first
        return (started if started is not None and started <= updated else None), updated or None

    def _find_age(self) -> float | None:
        path = self.files.get("settings.yaml")
        return None if path is None else path.stat().st_mtime

    def _list_evaluations(self) -> list[int]:
        """Return the steps of the evaluations with figures, without reading them."""
        names = self.run.list_names("eval")
        return sorted(step for name in names if (step := parse_step(name)) is not None)

    def _read_accuracy(self, steps: Sequence[int], tasks: Sequence[str]) -> dict[str, Any] | None:
        """Return the accuracy at the first of some steps that has one: a running evaluation has no figures yet."""
        for step in steps:
            path = self.run.locate(name_step_folder(step), "summary.json")
            read = partial(_find_accuracy, path, step, tasks)
            accuracy: dict[str, Any] | None = self.library.memo.read(("accuracy", path, *tasks), [path], read)
            if accuracy is not None:
                return accuracy
        return None

    def _read_trend(
        self, steps: Sequence[int], last: Mapping[str, Any] | None, tasks: Sequence[str]
    ) -> dict[str, list[float]]:
        """Return the accuracies at evenly spread steps, for the task and decoding of the last one."""
        gaps = SPARK_EVALUATIONS - 1
        spread = sorted({steps[at * (len(steps) - 1) // gaps] for at in range(SPARK_EVALUATIONS)}) if steps else []
        found = [self._read_accuracy([step], tasks) for step in spread]
        same = [one for one in found if one and last and all(one[name] == last[name] for name in ("task", "decoding"))]
        return {"accuracy": [one["value"] for one in same]} if len(same) > 1 else {}


def _leads_to_file(run: RunPlace, entry: os.DirEntry[str]) -> bool:
    with suppress(Refused, OSError):
        return run.locate(entry.name).is_file()
    return False


def _summarize_settings(path: Path) -> _Settings:
    try:
        tree = read_settings(path)
    except (ValueError, TypeError, OSError) as error:
        return _Settings(trouble=f"Its settings.yaml cannot be read: {' '.join(str(error).split())[:LONGEST]}")
    parts = [part for part in list_phases(tree) if isinstance(part, dict)] or [tree]
    methods = [Path(method).stem for part in parts if (method := _read_text(part, "method"))]
    tasks = [str(task)[:LONGEST] for part in parts for task in _read_list(part, "data", "tasks")]
    return _Settings(
        tree={name: tree[name] for name in PLANNING if name in tree},
        method=" → ".join(methods),
        phases=tuple(methods),
        model=_read_text(tree, "model", "name"),
        tasks=tuple(dict.fromkeys(tasks)),
        seed=seed if isinstance(seed := find_value(tree, "run", "seed"), int) else None,
        patience=read_number(find_value(tree, "run", "watchdog")) or 0.0,
    )


def _read_text(tree: Any, *names: str) -> str:
    value = find_value(tree, *names)
    return redact(value)[:LONGEST] if isinstance(value, str) else ""


def _read_list(tree: Any, *names: str) -> list[Any]:
    value = find_value(tree, *names)
    return value[:20] if isinstance(value, list) else []


def _summarize_metrics(path: Path) -> _Metrics:
    last = [rename_old_metrics(row) for row in read_last_rows(path, LAST_BYTES) or read_last_rows(path)]
    samples = sample_lines(path, SAMPLED)
    drawn = draw_rows(samples, SPARK_ROWS, SPARKS)
    phases = [
        found[1].decode("utf-8", "replace")[:LONGEST] for line in chain(*samples) if (found := PHASE.search(line))
    ]
    figures: dict[str, float] = {}
    for row in last:
        figures |= {name: value for name in FIGURES if (value := read_number(row.get(name))) is not None}
    sparks = {name: [value for row in drawn if (value := read_number(row.get(name))) is not None] for name in SPARKS}
    return _Metrics(
        step=max((row["step"] for row in last if isinstance(row.get("step"), int)), default=0),
        phases=tuple(dict.fromkeys(phases)),
        figures=figures,
        sparks={name: values for name, values in sparks.items() if len(values) > 1},
    )


def _read_events(path: Path) -> _Events:
    """Read the first and the last events."""
    first, last = read_first_rows(path), read_last_rows(path)
    needed = [row for row in first if row.get("event") == "epochs"]
    needed += [row for row in last if row.get("event") in ("alarm", "resumed", *ENDINGS)]
    begun, ended = (
        [time for row in rows if (time := read_number(row.get("time"))) is not None] for rows in (first, last)
    )
    return _Events(begun[0] if begun else None, ended[-1] if ended else None, list(map(clean_value, needed)))


def _list_alarms(events: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the last alarms, each once: a resumed run repeats steps and their alarms."""
    alarms = {
        (_read_count(event.get("step")), str(event.get("name"))): str(event.get("told", ""))[:500]
        for event in events
        if event.get("event") == "alarm"
    }
    return [{"step": step, "name": name[:LONGEST], "message": said} for (step, name), said in alarms.items()][
        -MOST_ALARMS:
    ]


def _read_count(value: Any) -> int | None:
    number = read_number(value)
    return None if number is None else int(number)


def _find_accuracy(path: Path, step: int, tasks: Sequence[str]) -> dict[str, Any] | None:
    """Return the accuracy of a summary: of the run's first task if it has it, and of greedy decoding if it has it."""
    try:
        with path.open("rb") as file:
            summary = parse_line(file.read(MOST_SUMMARY)) or {}
    except OSError:
        return None
    ordered = [*(task for task in tasks if task in summary), *(task for task in summary if task != VALIDATION)]
    for task in (*ordered, *summary):
        decodings = summary[task] if isinstance(summary[task], dict) else {}
        for decoding in dict.fromkeys(name for name in ("greedy", *decodings) if name in decodings):
            figures = decodings[decoding] if isinstance(decodings[decoding], dict) else {}
            value = read_number(figures.get("accuracy"))
            if value is not None:
                bounds = {"lo": read_number(figures.get("ci_lo")), "hi": read_number(figures.get("ci_hi"))}
                names = {"task": task[:LONGEST], "decoding": decoding[:LONGEST], "step": step, "value": value}
                return {**names, **bounds, "n": _read_count(figures.get("n"))}
    return None
