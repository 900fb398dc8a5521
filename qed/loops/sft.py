"""Learning from demonstrations that are there beforehand: supervised fine-tuning."""

from __future__ import annotations

import math

from qed.config.phases import Settings
from qed.errors import DataError, UsageError
from qed.loops.phase import Phase
from qed.loops.preflight import run_preflight
from qed.loops.setup import Setup
from qed.models import load
from qed.randomness import shuffle_indices
from qed.training.packing import cut_windows
from qed.types import Problem, Rollout


def train_sft(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Imitate the worked solutions of the training problems; see `Phase` for the arguments."""
    phase = Phase(setup, settings, name, offset)
    trained = build_rows(setup, settings)
    run_preflight(phase, setup.problems, trained)
    stream = phase.build_stream(trained, "demonstrations")
    phase.begin()
    for step in phase.remaining_steps():
        phase.begin_step(step)
        rows = stream.take(settings.learner.batch_size or len(stream.items))
        with setup.timer("update"):
            stats = phase.update(rows, step)
        phase.record(step, [stats])
        phase.end_step(step)
        phase.evaluate_if_due(step)
        phase.save_if_due(step)
        phase.stop_if_asked()
    phase.finish()


def build_rows(setup: Setup, settings: Settings) -> list[Rollout]:
    """The demonstrations, each a row, or the windows of their stream that `data.window` asks for.

    Raises:
        DataError: there is nothing to imitate.
    """
    length, limit = settings.data.window, load.read_window(setup.model)
    if not length:
        return collect_demonstrations(setup, limit)
    if length > limit:
        raise UsageError(f"data.window is {length}, but the model's own window holds only {limit} tokens.")
    shown = collect_demonstrations(setup)  # none is too long, because windows cut them
    order = shuffle_indices(len(shown), settings.run.seed, "documents")
    cut = cut_windows(((*shown[index].prompt, *shown[index].output) for index in order), length).tolist()
    if not cut:
        raise DataError(f"All {len(shown)} demonstrations together do not fill one window of {length} tokens.")
    updates = math.ceil(len(cut) / (settings.learner.batch_size or len(cut)))
    setup.run.event("windows", demonstrations=len(shown), windows=len(cut), length=length, steps_per_epoch=updates)
    setup.console.say(
        f"{len(shown)} demonstrations make {len(cut)} windows of {length} tokens: an epoch is {updates} steps."
    )
    # Every token but the first is a label, so the first is all of the row's prompt.
    return [
        Rollout(Problem(f"window {number}", "", ""), (first,), tuple(rest), (), "", "stop", "demonstration")
        for number, (first, *rest) in enumerate(cut)
    ]


def collect_demonstrations(setup: Setup, limit: int | None = None) -> list[Rollout]:
    """The demonstrations of the training problems; those missing or longer than `limit` tokens are counted and said.

    Raises:
        DataError: there is none to imitate.
    """
    written = [setup.template.demonstration(problem) for problem in setup.problems]
    there = [rollout for rollout in written if rollout is not None]
    kept = [rollout for rollout in there if limit is None or len(rollout.prompt) + len(rollout.output) <= limit]
    missing, too_long = len(written) - len(there), len(there) - len(kept)
    if missing or too_long:
        setup.run.event("demonstrations_left_out", without_solution=missing, too_long=too_long, limit=limit)
        setup.console.say(
            f"{len(kept)} demonstrations; left out: {missing} problems without a worked solution"
            + (f", {too_long} longer than the model's window of {limit} tokens." if limit is not None else ".")
        )
    if not kept:
        raise DataError(
            "There is no demonstration to imitate: the training problems have no worked solutions that fit."
        )
    return kept
