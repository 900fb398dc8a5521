"""A phase of a run: what its steps work with, and what happens around each of them.

A run counts its steps through; a phase owns a range of them. `train` is a run of a single phase. The loops in
`online.py`, `offline.py` and `preferences.py` have the same frame:

    phase.begin()                          # evaluates the policy as it is before the first step
    for step in phase.remaining_steps():
        phase.begin_step(step)
        ...                                # the step itself, its stages timed: with timer("update"): ...
        phase.record(step, stats)
        phase.end_step(step)               # the step is complete
        phase.evaluate_if_due(step)
        phase.save_if_due(step)
        phase.stop_if_asked()
    phase.finish()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qed.config.phases import Settings
from qed.errors import NothingTrained
from qed.guards.signals import check_signals
from qed.loops.checkpointer import Checkpointer
from qed.loops.ema_reference import EMAReference
from qed.loops.evaluator import Evaluator
from qed.loops.memory import reserve_training
from qed.loops.metrics import MetricsWriter, Stats, merge_updates, summarize_step
from qed.loops.non_finite import NonFinitePolicy
from qed.loops.reference import load_initial_weights, load_reference
from qed.loops.setup import Setup
from qed.models.load import read_precision
from qed.rollout.collector import RolloutCollector
from qed.rollout.stages import Stream, flatten
from qed.runs.metric_names import read_metrics
from qed.runs.run import Row
from qed.training.learner import Learner
from qed.types import Groups, Rollout


class Phase:
    """One phase of a run.

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
            precision=read_precision(settings.model),
            reference=load_reference(setup, settings, offset) if settings.algorithm.reference else None,
        )
        self.moving = EMAReference(self.learner.reference, setup.model, *settings.algorithm.reference_moves)
        if settings.learner.packing and not self.learner.packing:
            setup.console.say(f"{name}: this model does not keep packed rows apart, so it computes padding too.")
        if settings.algorithm.restarts_each_step:
            self.learner.set_initial_weights(load_initial_weights(setup, settings, offset))
        self.tolerance = NonFinitePolicy(setup, settings.run.non_finite_skips)
        self.checkpointer = Checkpointer(
            setup, settings, name, offset, self.learner, self.moving, tolerance=self.tolerance
        )
        self.first = self.checkpointer.first
        recorded = read_metrics(setup.run.folder / "metrics.jsonl")
        own = [row for row in recorded if row.get("phase") == name and row["step"] >= offset]
        self.metrics = MetricsWriter(setup, name, own)
        self.evaluator = Evaluator(setup, settings, (offset, self.last), self.metrics, recorded)
        setup.save_and_describe_exit = self.save_and_describe_exit

    def build_stream(self, items: Sequence[Any], purpose: str) -> Stream[Any]:
        """Return the phase's stream of items, which goes on where a resumed run stands.

        What samples from now on leaves room for the phase's learner.
        """
        reserve_training(self.setup.sampler, self.learner)
        position = self.checkpointer.position
        stream = Stream(items, self.settings.run.seed, f"{purpose} {self.offset}", position)
        self.checkpointer.stream = stream
        return stream

    def attach_collector(self, gatherer: RolloutCollector) -> None:
        """Save what a gatherer holds with every checkpoint, and give it back when the phase goes on from one."""
        self.checkpointer.restore_collector(gatherer)

    def begin(self) -> None:
        """Do what is due before the first step: evaluate, unless the phase goes on and that has been done.

        A run that was stopped while it evaluated or saved does here what was left of it.
        """
        self.setup.timer.begin_step(self.first)
        self.end_step(self.first)
        self.evaluate_if_due(self.first)
        self.save_if_due(self.first)
        self.stop_if_asked()
        if self.first < self.last:
            self.setup.console.phase(f"{self.name}: steps {self.first + 1} to {self.last}", self.first)

    def remaining_steps(self) -> range:
        """Return the numbers of the steps that are to be made."""
        return range(self.first + 1, self.last + 1)

    def begin_step(self, step: int) -> None:
        """Start the clock of a step, and move the reference model if that is due."""
        self.setup.step = step
        self.setup.timer.begin_step(step)
        self.moving.before(step - self.offset)

    def defer_signals(self) -> None:
        """Let a signal that asks to stop wait until the step is complete: the weights are between two steps."""
        self.setup.stop.deferred = True

    def update(self, rows: Sequence[Rollout], step: int) -> Stats:
        """Make one optimizer step, after which signals are deferred; returns its statistics.

        What is not finite is treated as `run.on_non_finite` says.
        """
        stats = self.tolerance.update(self.learner, rows, step, step - self.offset - 1)
        self.defer_signals()
        return stats

    def record(self, step: int, stats: Sequence[Stats], groups: Groups = (), counts: Stats | None = None) -> Row:
        """Write the metrics and the rollouts of a step, show it, and return its row of metrics.

        Args:
            step: of the run.
            stats: of each of its updates.
            groups: all that was sampled for it.
            counts: how they were collected.
        """
        updates = merge_updates(stats)
        self.checkpointer.count_signal(updates["train/live_rows"] > 0)
        figures = summarize_step(groups, counts or {}, updates, self.setup.timer.end_step(), self.setup.device)
        rollouts = flatten(groups)
        if self.settings.run.save_rollouts and rollouts:
            self.setup.run.rollouts(step, rollouts)
        self.setup.console.step(step, self.last, figures)
        return self.metrics.write(step, figures)

    def end_step(self, step: int) -> None:
        """Declare a step complete: this is what is saved from now on, and signals may stop the run again."""
        self.checkpointer.complete_step(step)
        self.setup.stop.deferred = False

    def evaluate_if_due(self, step: int) -> None:
        """Evaluate before the first step, after the last, and every `evaluation.every` steps between."""
        if step in (self.offset, self.last) or self._is_due(step, self.settings.evaluation.every):
            self.evaluator.evaluate(step)

    def save_if_due(self, step: int) -> None:
        """Save a step that is the best so far, the last, one of every `run.save_every`, or that SIGUSR1 asks for."""
        best = self.evaluator.is_best(step)
        every = step != self.offset and self._is_due(step, self.settings.run.save_every)
        if best or every or step == self.last or self.setup.stop.save:
            self.checkpointer.save(self.evaluator.scores, best)
            self.setup.stop.save = False

    def stop_if_asked(self) -> None:
        """Raise `Interrupted` if a signal has asked the run to stop."""
        check_signals("step")

    def save_and_describe_exit(self) -> str:
        """Save the last complete step, because a signal has asked to stop; returns how to go on."""
        self.checkpointer.save(self.evaluator.scores)
        name = self.setup.stop.received.name if self.setup.stop.received else "a signal"
        return (
            f"Stopped after step {self.checkpointer.step} by {name}; its checkpoint is saved. Go on with the same "
            f"command and --resume --out {self.setup.run.home}."
        )

    def finish(self) -> None:
        """Close the phase, and say if none of its steps had a gradient.

        Raises:
            NothingTrained: nor had any step of the phases before it, and the settings do not ask for a warning alone.
        """
        self.setup.console.end_phase()
        if self.checkpointer.signal_steps or not self.settings.learner.steps:
            return
        message = (
            f"No step of {self.name} had a gradient: every group's answers earned the same reward. Look at them in "
            f"{self.setup.run.folder / 'rollouts'}; an easier task, a longer phase of SFT or another --prompt may help."
        )
        self.setup.run.event("no_signal", phase=self.name)
        if not self.setup.signal_steps and self.settings.run.on_no_signal == "stop":
            raise NothingTrained(message)
        self.setup.console.say(f"Warning: {message}")

    def _is_due(self, step: int, every: int) -> bool:
        return every > 0 and (step - self.offset) % every == 0
