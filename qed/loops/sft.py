"""Supervised fine-tuning on demonstrations."""

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
    """Train on the worked solutions of the training problems; see `Phase` for the arguments."""
    phase = Phase(setup, settings, name, offset)
    dataset = build_rows(setup, settings)
    run_preflight(phase, setup.problems, dataset)
    stream = phase.build_stream(dataset, "demonstrations")
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
    """Return the training rows: one for each demonstration, or with `data.window` windows of that many tokens.

    Windows are cut from the concatenated demonstrations, in an order shuffled once.

    Raises:
        UsageError: the window is longer than the model's.
        DataError: there is nothing to train on.
    """
    length, limit = settings.data.window, load.read_window(setup.model)
    if not length:
        return collect_demonstrations(setup, limit)
    if length > limit:
        raise UsageError(f"data.window is {length}, but the model's own window holds only {limit} tokens.")
    demonstrations = collect_demonstrations(setup)  # without a limit, because windows cut long ones
    order = shuffle_indices(len(demonstrations), settings.run.seed, "documents")
    documents = ((*demonstrations[index].prompt, *demonstrations[index].output) for index in order)
    windows = cut_windows(documents, length).tolist()
    count = len(demonstrations)
    if not windows:
        raise DataError(f"All {count} demonstrations together do not fill one window of {length} tokens.")
    updates = math.ceil(len(windows) / (settings.learner.batch_size or len(windows)))
    setup.run.event("windows", demonstrations=count, windows=len(windows), length=length, steps_per_epoch=updates)
    setup.console.say(
        f"{count} demonstrations make {len(windows)} windows of {length} tokens: an epoch is {updates} steps."
    )
    # Every token but the first is a label, so the first token alone is the row's prompt.
    return [
        Rollout(Problem(f"window {number}", "", ""), (first,), tuple(rest), (), "", "stop", "demonstration")
        for number, (first, *rest) in enumerate(windows)
    ]


def collect_demonstrations(setup: Setup, limit: int | None = None) -> list[Rollout]:
    """Return the demonstrations of the training problems, at most `limit` tokens long; print how many are left out.

    Raises:
        DataError: there is none.
    """
    rendered = [setup.template.demonstration(problem) for problem in setup.problems]
    available = [rollout for rollout in rendered if rollout is not None]
    fitting = [rollout for rollout in available if limit is None or len(rollout.prompt) + len(rollout.output) <= limit]
    missing, too_long = len(rendered) - len(available), len(available) - len(fitting)
    if missing or too_long:
        setup.run.event("demonstrations_left_out", without_solution=missing, too_long=too_long, limit=limit)
        setup.console.say(
            f"{len(fitting)} demonstrations; left out: {missing} problems without a worked solution"
            + (f", {too_long} longer than the model's window of {limit} tokens." if limit is not None else ".")
        )
    if not fitting:
        raise DataError(
            "There is no demonstration to imitate: the training problems have no worked solutions that fit."
        )
    return fitting
