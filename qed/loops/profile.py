"""Records some steps of a run with torch's profiler: a trace for Perfetto and a snapshot for torch's memory viewer.

Each rank writes `profile/rank_K.trace.json.gz`, in the Chrome trace format with a step's stages as annotations, and
`profile/rank_K.memory.pickle`, a snapshot for https://docs.pytorch.org/memory_viz. On a CUDA device the snapshot is
torch's own; on a CPU it is built from the allocations in the trace, each with the enclosing operations in place of a
Python stack.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as build_profiler

from qed.config.phases import PipelineSettings, Settings
from qed.errors import UsageError
from qed.guards.timer import StageTimer
from qed.loops.resume import list_phases

if TYPE_CHECKING:
    from qed.loops.setup import Setup

FOLDER = "profile"
MEMORY = "[memory]"  # the name of allocations in a trace
OPERATIONS = ("cpu_op", "user_annotation")  # categories of events that may enclose an allocation
ENTRIES = 1_000_000  # most allocations to record on a CUDA device


class StepProfiler:
    """Records the steps of `run.profile`.

    Args:
        steps: first and last step to profile.
        folder: folder of the run.
        rank: rank of this process.
        device: device of the model.
        timer: timer whose stages the trace shows.
        say: prints a line.
    """

    def __init__(
        self,
        steps: tuple[int, int],
        folder: Path,
        rank: int,
        device: torch.device,
        timer: StageTimer,
        say: Callable[[str], object],
    ) -> None:
        self.steps = steps
        self.stem = folder / FOLDER / f"rank_{rank}"
        self.device = device
        self.timer = timer
        self.say = say
        self._recording: Any = None
        self._began = self._last = 0

    def close(self) -> None:
        """Write the recording if an error or a signal has ended the run before the last step to profile."""
        if self._recording is not None:
            self._write()

    def begin_step(self, step: int) -> None:
        """Start recording if the step is to be profiled; a resumed run may start in the middle."""
        if not self.steps[0] <= step <= self.steps[1]:
            return
        self._last = step
        if self._recording is None:
            self._began = step
            self._start()

    def end_step(self, step: int) -> None:
        """Write the files after the last step to profile."""
        if self._recording is not None and step >= self.steps[1]:
            with self.timer("profile"):
                self._write()

    def _start(self) -> None:
        # Otherwise Kineto prints messages meant for its developers.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.memory._record_memory_history(max_entries=ENTRIES, device=self.device)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        self._recording = build_profiler(activities=activities, record_shapes=True, profile_memory=not cuda)
        self._recording.start()
        self.timer.annotate = record_function

    def _write(self) -> None:
        """Stop recording and write both files; if the disk is full, warn and continue."""
        recording, self._recording = self._recording, None
        self.timer.annotate = StageTimer().annotate
        recording.stop()
        trace, memory = (self.stem.with_name(f"{self.stem.name}.{kind}") for kind in ("trace.json.gz", "memory.pickle"))
        try:
            trace.parent.mkdir(exist_ok=True)
            recording.export_chrome_trace(str(trace))
            if self.device.type == "cuda":
                torch.cuda.memory._dump_snapshot(str(memory))  # type: ignore[no-untyped-call]
            else:
                with gzip.open(trace, "rt", encoding="utf-8") as file:
                    snapshot = build_snapshot(json.load(file)["traceEvents"])
                memory.write_bytes(pickle.dumps(snapshot))
        except OSError as error:
            self.say(f"Warning: the profile could not be written: {error}. The run continues without it.")
        else:
            self.say(
                f"Profiled steps {self._began} to {self._last}. Open {trace} at https://ui.perfetto.dev, and "
                f"{memory.name} in the same folder at https://docs.pytorch.org/memory_viz."
            )
        finally:
            if self.device.type == "cuda":
                torch.cuda.memory._record_memory_history(enabled=None, device=self.device)


@contextmanager
def open_profiler(setup: Setup) -> Iterator[None]:
    """Record the steps of `run.profile`, even if an error interrupts them."""
    steps = setup.settings.run.profile_steps
    if steps is None:
        yield
        return
    rank = setup.parallel.rank
    profiler = StepProfiler(steps, setup.run.folder, rank, setup.device, setup.timer, setup.console.say)
    setup.profiler = profiler
    try:
        yield
    finally:
        profiler.close()


def require_profiled_steps(settings: Settings | PipelineSettings, last: int | None = None) -> None:
    """Require that the run has the steps of `run.profile`.

    Args:
        settings: settings of the run.
        last: last step of the run; by default the sum over its phases, unless one of them is given in epochs.

    Raises:
        UsageError: a step to profile comes after the last one.
    """
    learners = [phase.learner for phase in list_phases(settings)]
    if last is None and not any(learner.epochs for learner in learners):
        last = sum(learner.steps for learner in learners)
    steps = settings.run.profile_steps
    if steps is not None and last is not None and steps[1] > last:
        raise UsageError(
            f"run.profile is {settings.run.profile}, but the run has only {last} steps. Name steps from 1 to {last}."
        )


def build_snapshot(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Build a memory snapshot in the format of `torch.cuda.memory._snapshot` from the allocations of a trace.

    The frames of an allocation are the operations that enclose it, innermost first.
    """
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("name") == MEMORY or (event.get("ph") == "X" and event.get("cat") in OPERATIONS):
            threads[event["tid"]].append(event)
    entries = []
    for own in threads.values():
        enclosing: list[Mapping[str, Any]] = []
        # An operation sorts before the events within it, even if they start at the same time.
        for event in sorted(own, key=lambda event: (event["ts"], -event.get("dur", -1))):
            while enclosing and enclosing[-1]["ts"] + enclosing[-1]["dur"] < event["ts"]:
                enclosing.pop()
            if event["name"] == MEMORY:
                entries.append(_build_entry(event, enclosing))
            else:
                enclosing.append(event)
    return {"segments": [], "device_traces": [sorted(entries, key=lambda entry: entry["time_us"])]}


def _build_entry(event: Mapping[str, Any], enclosing: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the entry of an allocation or a release of memory; `enclosing` lists its operations, outermost first."""
    size = event["args"]["Bytes"]
    return {
        "action": "alloc" if size > 0 else "free_completed",
        "addr": event["args"]["Addr"],
        "size": abs(size),
        "stream": 0,
        "time_us": int(event["ts"]),
        "frames": [{"name": each["name"], "filename": "", "line": 0} for each in reversed(enclosing)],
    }
