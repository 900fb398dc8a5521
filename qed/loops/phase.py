"""A phase of a run: its learner, and the work around each of its steps.

Steps are numbered over the whole run, and a phase owns a range of them. Most runs have one phase; `qed pipeline` has
two. The loops in `online.py`, `sft.py` and `preferences.py` share this structure:

    phase.begin()                          # evaluates the initial policy
    for step in phase.remaining_steps():
        phase.begin_step(step)
        ...                                # the step itself, its stages timed: with timer("update"): ...
        phase.record(step, stats)
        phase.finish_step(step)            # evaluates and saves where that is due
    phase.finish()
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import torch

from qed.algorithms.base import StepContext
from qed.config.phases import Settings
from qed.errors import NothingTrained, UsageError
from qed.guards.signals import check_signals
from qed.loops.background_evaluator import WAITING
from qed.loops.checkpointer import Checkpointer
from qed.loops.critic import open_critic, open_trunk_critic
from qed.loops.ema_reference import EMAReference
from qed.loops.evaluator import Evaluator
from qed.loops.failures import Failures
from qed.loops.memory import reserve_training
from qed.loops.metrics import MetricsWriter, Stats, measure_thoughts, merge_updates, summarize_step
from qed.loops.mismatch import read_figures, rest_servers
from qed.loops.non_finite import SKIPPED, NonFinitePolicy
from qed.loops.out_of_memory import remember_limits
from qed.loops.profile import require_profiled_steps
from qed.loops.reference import load_initial_weights, load_reference
from qed.loops.resume import list_phases
from qed.loops.setup import Setup
from qed.loops.teacher import open_teacher
from qed.models.block_attention import list_faults
from qed.models.load import is_new
from qed.models.precision import read_precision
from qed.rollout.policy import load_policy
from qed.rollout.stages import Stream
from qed.runs.metric_names import read_metrics
from qed.runs.run import Row
from qed.sampling.base import load_remote
from qed.training import checkpoints
from qed.training.critic import ValueLearner
from qed.training.flops import count_sampled_work
from qed.training.learner import Learner
from qed.types import Groups, Rollout


class Phase:
    """One phase of a run, such as SFT or GRPO.

    Args:
        setup: setup of the run.
        settings: settings of this phase.
        name: name of the phase in the metrics, such as `sft` or `grpo`.
        offset: number of steps that the run makes before this phase.
    """

    def __init__(self, setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
        self.setup = setup
        self.settings = settings
        self.name = name
        self.offset = offset
        self.last = setup.last = offset + settings.learner.steps
        setup.boundaries |= {offset, self.last}
        own = open_critic(setup, settings)  # before the learner, which may shard the policy
        self.learner = Learner(
            setup.model,
            settings.algorithm,
            settings.learner,
            temperature=settings.sampling.temperature,
            length=settings.sampling.max_tokens,
            precision=read_precision(settings.model),
            reference=load_reference(setup, settings, offset) if settings.algorithm.reference else None,
            parallel=setup.parallel,
        )
        self.critic = own or open_trunk_critic(self.learner, settings)
        self.learner.served = open_teacher(setup, settings)
        remember_limits(setup, settings, self.learner)
        every, mix = settings.algorithm.reference_moves
        self.ema_reference = EMAReference(self.learner.reference, setup.model, every, mix, parallel=setup.parallel)
        if settings.learner.packing and not self.learner.packing:
            setup.console.say(f"{name}: this model cannot separate packed sequences, so batches are padded.")
        for reason in list_faults():
            setup.console.say(f"{name}: attention of packed rows is computed by spans, with more memory. {reason}")
            setup.run.event("attention_by_spans", phase=name, reason=reason)
        if settings.algorithm.restarts_each_step:
            self.learner.set_initial_weights(load_initial_weights(setup, settings, offset))
        self.non_finite = NonFinitePolicy(setup, settings.run.non_finite_skips)
        self.checkpointer = Checkpointer(
            setup, settings, name, offset, self.learner, self.ema_reference, self.non_finite, self.critic
        )
        self.first = self.checkpointer.first
        if self.first > self.last:
            raise UsageError(
                f"{setup.run.folder} has already made {self.first - offset} steps of {name}, more than the "
                f"{settings.learner.steps} asked for."
            )
        if setup.current == len(list_phases(setup.settings)) - 1:
            require_profiled_steps(setup.settings, self.last)
        recorded = setup.parallel.run_on_first(lambda: read_metrics(setup.run.folder / "metrics.jsonl"))
        of_phase = [row for row in recorded if row.get("phase") == name and row["step"] >= offset]
        self.metrics = MetricsWriter(setup, name, of_phase)
        self.evaluator = Evaluator(setup, settings, (offset, self.last), self.metrics, recorded)
        optimizers = [learner.optimizer for learner in (self.learner, own and own.learner) if learner]
        self.failures = Failures(setup, self.checkpointer, self.evaluator, optimizers)
        setup.save_and_describe_exit, setup.save_after_error = self.save_and_describe_exit, self.failures.save

    def build_stream(self, items: Sequence[Any], purpose: str) -> Stream[Any]:
        """Return the phase's endless shuffled stream of items; a resumed run continues at its checkpoint's position.

        Also tell the sampler how much device memory this phase's learner needs, and send its weights to servers.
        """
        reserve_training(self.setup.sampler, self.learner, self.critic)
        load_remote(self.setup.sampler, self.learner.weights(), self.first)
        position = self.checkpointer.position
        stream = Stream(items, self.settings.run.seed, f"{purpose} {self.offset}", position)
        self.checkpointer.stream = stream
        return stream

    def begin(self) -> None:
        """Evaluate and save before the first step, if that is due.

        A resumed run that was stopped while evaluating or saving makes up for it here.
        """
        self.setup.timer.begin_step(self.first)
        self.end_step(self.first)
        self._repeat_evaluations()
        self._settle_step(self.first)
        if self.first < self.last:
            self.setup.console.phase(f"{self.name}: steps {self.first + 1} to {self.last}", self.first)

    def remaining_steps(self) -> range:
        """Return the numbers of the remaining steps."""
        return range(self.first + 1, self.last + 1)

    def begin_step(self, step: int) -> None:
        """Start a step's timer, update scheduled coefficients and, if it is due, the reference model."""
        self.setup.step = step
        self.setup.timer.begin_step(step)
        self._pop_flops()  # discards those counted between two steps
        steps, seed = self.settings.learner.steps, self.settings.run.seed
        self.learner.algorithm = self.learner.algorithm.at_step(StepContext(step - self.offset, steps, seed))
        if self.setup.profiler is not None:
            self.setup.profiler.begin_step(step)
        self.ema_reference.update_if_due(step - self.offset)
        if self.setup.trackers is not None:
            self.setup.trackers.check()

    def defer_signals(self) -> None:
        """Defer stop signals until the step is complete, because the weights are between two steps."""
        self.setup.stop.deferred = True

    def update(self, rows: Sequence[Rollout], step: int) -> Stats:
        """Make one optimizer step and return its statistics; signals are deferred from then on.

        `run.on_non_finite` decides what happens if the loss or the gradient is not finite.
        """
        if self.settings.sampling.colocate:
            rest_servers(self.setup.sampler)
        stats = self.non_finite.update(self.learner, rows, step, step - self.offset - 1)
        self.defer_signals()
        return stats

    def update_critic(self, critic: ValueLearner, rows: Sequence[Rollout], step: int) -> Stats:
        """Make one optimizer step of the critic and return its statistics; signals are deferred from then on."""
        stats = self.non_finite.update(critic, rows, step, step - self.offset - 1)
        self.defer_signals()
        return {name: value for name, value in stats.items() if name.startswith("critic/") or name == SKIPPED}

    def record(
        self,
        step: int,
        stats: Sequence[Stats],
        groups: Groups = (),
        counts: Stats | None = None,
        trained: Groups | None = None,
    ) -> Row:
        """Write and print the metrics of a step, save its rollouts, and return its row of metrics.jsonl.

        Args:
            step: step number within the run.
            stats: statistics of each update.
            groups: all sampled groups, including those that the algorithm filtered out.
            counts: metrics of rollout collection, such as `groups/rounds`.
            trained: groups that this step's updates train on, all by default.
        """
        updates = merge_updates(stats)
        self.checkpointer.count_signal(any(each.get("train/live_rows") and not each.get(SKIPPED) for each in stats))
        flops = self.learner.flops
        needed = self._pop_flops() + flops.measure(self.setup.model).count_forward(count_sampled_work(groups))
        figures = summarize_step(groups, counts or {}, updates, self.setup.timer.end_step(), self.setup, needed)
        figures |= measure_thoughts(groups, self.setup.template.thought_tags) | read_figures(self.setup.sampler)
        figures |= self.learner.algorithm.moving_weights
        if self.settings.run.save_rollouts and any(groups):
            self.setup.run.rollouts(step, groups, trained)
        self.setup.console.step(step, self.last, figures)
        return self.metrics.write(step, figures)

    def end_step(self, step: int) -> None:
        """Mark a step as complete: checkpoints now save this step, and signals may stop the run again.

        Raises:
            QedError: an error held since the update; see `Failures.hold`.
        """
        with self.failures.hold():
            self.checkpointer.complete_step(step)
        self.setup.stop.deferred = False
        if self.setup.profiler is not None:
            self.setup.profiler.end_step(step)
        self.setup.parallel.agree_on_stop(self.setup.stop)
        self.failures.settle()

    def finish_step(self, step: int) -> None:
        """End a step, evaluate and save if due, and stop if a signal asked for it."""
        self.end_step(step)
        self._settle_step(step)

    def _settle_step(self, step: int) -> None:
        self.evaluate_if_due(step)
        self.save_if_due(step)
        self.stop_if_asked()

    def evaluate_if_due(self, step: int) -> None:
        """Evaluate if it is due: before the first step, after the last, or every `evaluation.every` steps."""
        due = self._is_evaluation_due(step)
        self._settle_evaluations(WAITING)
        if due:
            self._settle_evaluations(WAITING - 1)
            self.evaluator.evaluate(step)
        if step == self.last and self.setup.background is not None:
            self._settle_evaluations(0)
            if due:
                self.evaluator.evaluate_here(step)

    def save_if_due(self, step: int) -> None:
        """Save if the step is the best so far, the last, a multiple of `run.save_every`, or requested by SIGUSR1."""
        best = self.evaluator.is_best(step)
        every = step != self.offset and self._is_due(step, self.settings.run.save_every)
        asked = self.setup.parallel.agree_on_stop(self.setup.stop)
        wanted = best or every or step == self.last or asked
        if wanted or self.evaluator.may_be_best(step):
            self.checkpointer.save(self.evaluator.scores, best, provisional=not wanted)
            self.setup.stop.save = False

    def stop_if_asked(self) -> None:
        """Raise `Interrupted` if the run has received a stop signal."""
        self.setup.parallel.agree_on_stop(self.setup.stop)
        check_signals("step")

    def save_and_describe_exit(self) -> str:
        """After a stop signal, save the last complete step and return a message that says how to resume."""
        self.checkpointer.save(self.evaluator.scores, last=True)
        received = self.setup.stop.received or self.setup.stop.agreed
        name = received.name if received else "a signal"
        return (
            f"Stopped after step {self.checkpointer.step} by {name}; its checkpoint is saved. Resume with the same "
            f"command and --resume --out {shlex.quote(str(self.setup.run.home))}."
        )

    def finish(self) -> None:
        """Close the phase, and warn if none of its steps had a gradient.

        Raises:
            NothingTrained: no step of the whole run had a gradient, and `run.on_no_signal` is `stop`.
        """
        self.setup.console.end_phase()
        if self.checkpointer.signal_steps or not self.settings.learner.steps:
            return
        message = (
            f"No step of {self.name} had a gradient: every group's answers earned the same reward, or none, which "
            f"grading/ in metrics.jsonl counts. Read them in {self.setup.run.folder / 'rollouts'}; an easier task, a "
            "longer phase of SFT or another --prompt may help."
        )
        if not self.settings.algorithm.reads_rewards:
            message = (
                f"No step of {self.name} had a gradient: the teacher agrees with the policy on every token, or no "
                "problem's demonstration could be shown to it (guidance/traces in the metrics). Is it the same model?"
            )
        if limit := self.settings.learner.skip_norm:
            message += f" Updates with a gradient norm above learner.skip_norm={limit:g} are skipped (optim/skipped)."
        self.setup.run.event("no_signal", phase=self.name)
        if not self.setup.signal_steps and self.settings.run.on_no_signal == "stop":
            raise NothingTrained(message)
        self.setup.console.say(f"Warning: {message}")

    def _pop_flops(self) -> int:
        """Return the floating-point operations of the learner and the critic since the last call."""
        return self.learner.flops.pop() + (0 if self.critic is None else self.critic.pop_flops())

    def _settle_evaluations(self, most: int) -> None:
        """Record finished background evaluations, and point BEST to the best step.

        Args:
            most: wait until at most this many are still running.
        """
        for step in self.evaluator.collect(most):
            best = self.evaluator.is_best(step)
            self.checkpointer.settle_evaluation(step, self.evaluator.scores, best)

    def _repeat_evaluations(self) -> None:
        """Repeat, from their checkpoints, the evaluations that were still running when the run was stopped.

        An evaluation recorded after the last checkpoint was saved may also have changed the best step.
        """
        best = self.evaluator.find_best()
        if self.setup.background is not None and best not in (None, self.setup.best) and best <= self.first:
            self.checkpointer.settle_evaluation(best, self.evaluator.scores, True)
        for step in sorted(step for step in self.checkpointer.cut_off if step < self.first):
            model = self._load_step(step)
            if model is None:
                self.evaluator.report_missed(step, "the run was stopped during it, and its weights are gone.")
            else:
                self._settle_evaluations(WAITING - 1)
                self.evaluator.repeat(step, model)

    def _load_step(self, step: int) -> Any:
        """Load the model of a step's checkpoint on the CPU; return None if it cannot be loaded."""
        setup = self.setup
        found = setup.parallel.run_on_first(lambda: checkpoints.has_checkpoint(setup.run.folder, step))
        new_with_adapters = is_new(self.settings.model.name) and self.settings.model.lora_rank > 0
        if setup.background is None or not found or new_with_adapters:
            return None
        folder = checkpoints.name_folder(setup.run.folder, step)
        return load_policy(self.settings, [], torch.device("cpu"), folder).model

    def _is_evaluation_due(self, step: int) -> bool:
        wanted = self.settings.evaluation
        at_an_end = (wanted.at_start and step == self.offset) or (wanted.at_end and step == self.last)
        return at_an_end or (step != self.offset and self._is_due(step, wanted.every))

    def _is_due(self, step: int, every: int) -> bool:
        return every > 0 and (step - self.offset) % every == 0
