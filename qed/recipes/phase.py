"""The bookkeeping around the steps of a phase: metrics, evaluation, checkpoints, signals, the live line.

A run counts its steps through; a phase owns a range of them. `train` is a run of a single phase.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

import torch

from qed import checkpoints
from qed.algorithms.parts.field_names import changed_fields, replace_fields
from qed.errors import NothingTrained
from qed.gathering import Gatherer
from qed.guards.alarms import Alarms
from qed.guards.signals import poll
from qed.guards.watchdog import enter
from qed.learner import COUNTS, Learner
from qed.model import precision
from qed.phases import Settings
from qed.recipes.best import VALIDATED, is_best, retain, scores
from qed.recipes.divergence import SKIPPED, Tolerance
from qed.recipes.evaluate import as_metrics, evaluate
from qed.recipes.moving import Moving
from qed.recipes.problems import VALIDATION
from qed.recipes.reference import beginning, reference
from qed.recipes.setup import Setup
from qed.rollouts import Stream, describe, flat
from qed.runs import Row, evaluations, read_lines
from qed.types import Groups, Rollout

Stats = dict[str, float]
EVALUATED = "time/evaluation_s"  # in the row of a whole evaluation


class Phase:
    """One phase of a run: `steps()` yields the numbers of its steps and does after each what is due.

    Args:
        setup: of the run.
        settings: of this phase.
        name: in the metrics, such as `sft` or `grpo`.
        offset: the run's steps before this phase.
    """

    def __init__(self, setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
        self.setup = setup
        self.settings = settings
        self.name = name
        self.offset = offset
        self.last = offset + settings.learner.steps
        self.learner = Learner(
            setup.model,
            settings.algorithm,
            settings.learner,
            temperature=settings.sampling.temperature,
            length=settings.sampling.max_tokens,
            precision=precision(settings.model),
            reference=reference(setup, settings, offset) if settings.algorithm.reference else None,
        )
        self.moving = Moving(self.learner.reference, setup.model, *settings.algorithm.reference_moves)
        if settings.learner.packing and not self.learner.packing:
            setup.console.say(f"{name}: this model does not keep packed rows apart, so it computes padding too.")
        if settings.algorithm.restarts:
            self.learner.begin_from(beginning(setup, settings, offset))
        self.stream: Stream[Any] | None = None
        self.gatherer: Gatherer | None = None
        tensors, state = setup.state()
        self.first = max(offset, state["step"])
        self.position, self.signal_steps = 0, 0  # of this phase alone
        setup.signal_steps = max(setup.signal_steps, state.get("run_signal_steps", 0))
        self.goes_on = offset < state["step"] <= self.last and state.get("phase") == name
        self.tolerance = Tolerance(setup, settings.run.non_finite_skips)
        if self.goes_on:
            self.tolerance.in_a_row = state.get("skipped_in_a_row", 0)
            self.learner.load_state(self.moving.load(tensors, state.get("reference_moves", 0)))
            self.learner.algorithm = replace_fields(settings.algorithm, state.get("algorithm", {}))
            self.position, self.signal_steps = state["position"], state["signal_steps"]
        self.alarms = Alarms()
        recorded = read_lines(setup.run.folder / "metrics.jsonl")
        for row in recorded:
            if row.get("phase") == name and row["step"] >= offset:
                self.alarms.look(row)  # what a run has told before it was resumed is not told again
        self.laps: dict[str, float] = {}
        # A phase before this one, or the run before it was resumed, has saved the step that this one begins from.
        self.saved = self.first if checkpoints.has(setup.run.folder, self.first) else -1
        self.whole = self.first  # the last step that is finished, and how the phase stood then
        self.whole_position = self.position
        self.whole_gatherer: Gatherer | None = None
        setup.leave = self.leave
        # What the recipe itself measures on the validation part, and its figures so far by step; `VALIDATED` is among
        # them.
        self.measure: Callable[[], Stats] | None = None
        self.measured = {row["step"]: row[VALIDATED] for row in recorded if VALIDATED in row}
        self.evaluated = {row["step"] for row in recorded if EVALUATED in row}
        self.scores = scores(setup.run.folder)

    def over(self, items: Sequence[Any], purpose: str) -> Stream[Any]:
        """The phase's stream of items, going on where a resumed run stands."""
        self.stream = Stream(items, self.settings.run.seed, f"{purpose} {self.offset}", self.position)
        return self.stream

    def holding(self, gatherer: Gatherer) -> None:
        """Save what a gatherer holds with every checkpoint, and give it back when the phase goes on from one."""
        self.gatherer = gatherer
        if self.goes_on and self.setup.resumed is not None:
            gatherer.restore(checkpoints.read_rows(self.setup.resumed))

    def steps(self) -> Iterator[int]:
        """The numbers of the steps that are to be made; after each come evaluation, checkpoint and signals."""
        console = self.setup.console
        # A run that was stopped while it evaluated has the figures of its last step still to come.
        self._conclude(self.first)
        if self.first == self.last:
            return
        console.phase(f"{self.name}: steps {self.first + 1} to {self.last}", self.first)
        for step in range(self.first + 1, self.last + 1):
            self.setup.step = step
            enter("sample" if self.settings.algorithm.online else "train", step)
            self.clock = time.perf_counter()
            self.moving.before(step - self.offset)
            yield step
            self._conclude(step)
        console.end_phase()

    def _conclude(self, step: int) -> None:
        """What is due once a step is finished; before a phase's first step that is an evaluation alone."""
        self.whole, self.whole_position = step, self.stream.position if self.stream else 0
        self.whole_gatherer = self.gatherer and self.gatherer.copy()
        self.setup.stop.held = False
        begins, done = step == self.offset, step == self.last
        if begins or done or self._due(step, self.settings.evaluation.every):
            self._evaluate_once(step)
        evaluated = not begins and (step in self.evaluated or step in self.measured)
        if evaluated:
            self.scores = scores(self.setup.run.folder)
        best = evaluated and is_best(self.scores, step)
        asked = self.setup.stop.save
        if best or done or asked or (not begins and self._due(step, self.settings.run.save_every)):
            self._save(step, best)
            self.setup.stop.save = False
        poll("step")

    def updates(self, parts: Sequence[list[Rollout]]) -> Iterator[list[Rollout]]:
        """The rows of each of a step's updates; once the first has moved the weights, a signal waits for the last."""
        for number, part in enumerate(parts):
            self.setup.stop.held |= number > 0
            yield part

    def leave(self) -> str:
        """Save the last step that is finished, as a signal has asked to stop, and say how to go on."""
        self._save(self.whole)
        name = self.setup.stop.received.name if self.setup.stop.received else "a signal"
        return (
            f"Stopped after step {self.whole} by {name}; its checkpoint is saved. Go on with the same command and "
            f"--resume --out {self.setup.run.home}."
        )

    def update(self, rows: Sequence[Rollout], step: int) -> Stats:
        """One optimizer step of a step of the run; what is not finite is met as `run.on_non_finite` says."""
        return self.tolerance.update(self.learner, rows, step, step - self.offset - 1)

    def lap(self, stage: str) -> None:
        """The time since the last lap was spent on this stage of the step."""
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self.clock
        self.clock = now
        enter("train", self.setup.step)

    def record(self, step: int, stats: Sequence[Stats], groups: Groups = (), counts: Stats | None = None) -> Row:
        """Write a step: the means of its updates, what its rollouts look like and how they were gathered, times and
        memory."""
        rollouts = flat(groups)
        self.lap("train")
        merged = {
            name: fmean(s[name] for s in stats if name in s) for name in dict.fromkeys(n for s in stats for n in s)
        }
        merged |= {name: sum(s.get(name, 0.0) for s in stats) for name in (*COUNTS, SKIPPED) if name in merged}
        self.signal_steps += merged["train/live_rows"] > 0
        self.setup.signal_steps += merged["train/live_rows"] > 0
        seconds = sum(self.laps.values())
        tokens = sum(len(rollout.output) for rollout in rollouts) or merged["train/tokens"]
        row: Row = {"step": step, "phase": self.name, **describe(groups), **(counts or {}), **merged}
        row |= {f"time/{stage}_s": value for stage, value in self.laps.items()}
        row |= {"time/step_s": seconds, "perf/tokens_per_s": tokens / seconds, **memory(self.setup.device)}
        if self.settings.run.save_rollouts and rollouts:
            self.setup.run.rollouts(step, rollouts)
        self.setup.console.step(step, self.last, row)
        self._note(row)
        self.laps = {}
        return row

    def _note(self, row: Row) -> None:
        """Write a row of metrics, and say what is alarming by now."""
        self.setup.run.metrics(row)
        for alarm in self.alarms.look(row):
            self.setup.run.event("alarm", name=alarm.name, step=row["step"], phase=self.name, told=alarm.told)
            self.setup.console.say(f"Warning, step {row['step']}: {alarm.told}")

    def _due(self, step: int, every: int) -> bool:
        return every > 0 and (step - self.offset) % every == 0

    def _evaluate_once(self, step: int) -> None:
        """Evaluate the policy as it is after a step, unless the step has been evaluated.

        Between the start and the end only the validation part is asked, where there is one: what a run reports should
        not be looked at so often that it guides the run.
        """
        if self.measure is not None and step not in self.measured:
            figures = self.measure()
            self.measured[step] = figures[VALIDATED]
            self._note({"step": step, "phase": self.name, **figures})
            self.setup.console.say(f"  step {step}, {VALIDATION}: {figures[VALIDATED]:.1%} of the pairs ranked right")
        answerable = [problem for problem in self.setup.validation if problem.answer]
        validation = {VALIDATION: answerable} if answerable else {}
        between = validation and step not in (self.offset, self.last)
        benches = validation if between else {**self.setup.benches, **validation}
        told = dict(evaluations(self.setup.run.folder)).get(step, {})
        if step in self.evaluated and set(told) >= set(benches):
            return
        enter("evaluate", step)
        began = time.perf_counter()
        summaries = evaluate(self.setup, self.settings, step, benches)
        self._note(
            {
                "step": step,
                "phase": self.name,
                **as_metrics(summaries),
                EVALUATED: time.perf_counter() - began,
            }
        )
        self.evaluated.add(step)

    def _save(self, step: int, best: bool = False) -> None:
        known = checkpoints.pointed(self.setup.run.folder, "BEST")
        if step == self.saved and (known == step or not best):
            return
        enter("save", step)
        state = {
            "phase": self.name,
            "position": self.whole_position,
            "signal_steps": self.signal_steps,
            "run_signal_steps": self.setup.signal_steps,
            "skipped_in_a_row": self.tolerance.in_a_row,
            "seed": self.settings.run.seed,
            "algorithm": self._adapted(),
            "reference_moves": self.moving.moves,
            "best": step if best else known,
        }
        rows = self.whole_gatherer.rows() if self.whole_gatherer else []
        model, tokenizer = self.setup.model, self.setup.tokenizer
        tensors = {**self.learner.state(), **self.moving.state()}
        checkpoints.save(self.setup.run, step, model, tokenizer, tensors, state, rows)
        self.saved = step
        if best:
            checkpoints.point(self.setup.run, "BEST", step)
        retain(self.setup.run, self.settings.run, self.scores, self.setup.boundaries)

    def _adapted(self) -> dict[str, Any]:
        """The coefficients that the algorithm has set itself since the phase began."""
        return changed_fields(self.learner.algorithm, self.settings.algorithm)

    def finish(self) -> None:
        """Say when no step of the phase had a gradient.

        Raises:
            NothingTrained: nor had any step of the phases before it, and the settings do not ask for a warning alone.
        """
        if self.signal_steps or not self.settings.learner.steps:
            return
        told = (
            f"No step of {self.name} had a gradient: every group's answers earned the same reward. Look at them in "
            f"{self.setup.run.folder / 'rollouts'}; an easier task, a longer phase of SFT or another --prompt may help."
        )
        self.setup.run.event("no_signal", phase=self.name)
        if not self.setup.signal_steps and self.settings.run.on_no_signal == "stop":
            raise NothingTrained(told)
        self.setup.console.say(f"Warning: {told}")


def memory(device: torch.device) -> Stats:
    """The peak memory of the process, and of the device, in GiB."""
    # Linux counts in KiB, macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    found = {"mem/rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if device.type == "cuda":
        found["mem/gpu_gb"] = torch.cuda.max_memory_allocated(device) / 2**30
    return found
