"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from qed.config.phases import Settings
from qed.data.demonstrations import Demonstrations, Windows, require_fitting, tokenize_problems
from qed.errors import DataError, UsageError
from qed.loops.epochs import settle_steps
from qed.loops.evaluator import Measure
from qed.loops.metrics import Stats
from qed.loops.phase import Phase
from qed.loops.preflight import run_preflight
from qed.loops.setup import Setup
from qed.models import load
from qed.models.precision import read_precision
from qed.randomness import shuffle_indices
from qed.training.best import LOSS, PERPLEXITY
from qed.training.scoring import score_with
from qed.types import Rollout

ROWS_AT_ONCE = 256  # scored in one call
NO_DEMONSTRATION = (
    "There is no demonstration to imitate: the training problems have no worked solutions with an answer that fit."
)
LARGEST_EXPONENT = 700.0  # exp of more overflows


def train_sft(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Train on the worked solutions of the training problems; see `Phase` for the arguments."""
    dataset = build_rows(setup, settings)
    rows_per_step = settings.learner.batch_size or len(dataset)
    settings = settle_steps(setup, settings, name, len(dataset), rows_per_step)
    phase = Phase(setup, settings, name, offset)
    run_preflight(phase, setup.problems, dataset)
    stream = phase.build_stream(dataset, "demonstrations")
    if held_out := collect_held_out(setup):
        compute = partial(measure_loss, setup, settings, held_out)
        phase.evaluator.measure = Measure(LOSS, compute, "held-out loss {:.4f} nats a token")
    phase.begin()
    for step in phase.remaining_steps():
        phase.begin_step(step)
        rows = stream.take(rows_per_step)
        with setup.timer("update"):
            stats = phase.update(rows, step)
        phase.record(step, [stats])
        phase.finish_step(step)
    phase.finish()


def collect_held_out(setup: Setup) -> Demonstrations:
    """Return the demonstrations of the validation problems that fit the model's window."""
    store = tokenize_problems(setup.template, setup.validation, setup.console.say)
    return Demonstrations(store, setup.validation, load.read_window(setup.model), setup.template)


def measure_loss(setup: Setup, settings: Settings, rows: Sequence[Rollout]) -> Stats:
    """Return the demonstrations' mean negative log-prob a token, in nats, and its exponential, the perplexity.

    All tokens of the replies weigh the same, end tokens included; the temperature is 1.
    """
    score = score_with(setup.model, temperature=1.0)
    precision = read_precision(settings.model)

    def score_rows(own: Sequence[Rollout]) -> list[float]:
        parts = (own[start : start + ROWS_AT_ONCE] for start in range(0, len(own), ROWS_AT_ONCE))
        return [value for part in parts for row in score(part, precision) for value in row]

    with setup.parallel.gather_weights(setup.model):
        logps = setup.parallel.map_split(score_rows, rows)
    loss = -math.fsum(logps) / len(logps)
    return {LOSS: loss, PERPLEXITY: math.exp(min(loss, LARGEST_EXPONENT))}


def build_rows(setup: Setup, settings: Settings) -> Demonstrations | Windows:
    """Return the training rows: one per demonstration or, with `data.window`, windows of that many tokens.

    Windows are cut from the demonstrations, concatenated in an order that is shuffled once.

    Raises:
        UsageError: the window is longer than the model's.
        DataError: there is nothing to train on.
    """
    length, limit = settings.data.window, load.read_window(setup.model)
    if length and setup.template.environment.reply_tags:
        raise UsageError(
            "data.window trains on every token, including what an environment would say: remove data.window or "
            "data.environment."
        )
    if not length:
        return collect_demonstrations(setup, limit)
    if length > limit:
        raise UsageError(f"data.window is {length}, but the model's context window has only {limit} tokens.")
    demonstrations = collect_demonstrations(setup)  # without a limit, because windows cut long ones
    count = len(demonstrations)
    windows = Windows(demonstrations.store, shuffle_indices(count, settings.run.seed, "documents"), length)
    if not windows:
        raise DataError(f"All {count} demonstrations together do not fill one window of {length} tokens.")
    updates = math.ceil(len(windows) / (settings.learner.batch_size or len(windows)))
    setup.run.event("windows", demonstrations=count, windows=len(windows), length=length, steps_per_epoch=updates)
    setup.console.say(
        f"{count} demonstrations make {len(windows)} windows of {length} tokens: an epoch is {updates} steps."
    )
    return windows


def collect_demonstrations(setup: Setup, limit: int | None = None) -> Demonstrations:
    """Return the demonstrations of the training problems, at most `limit` tokens long; print how many were left out.

    Raises:
        DataError: there are none.
    """
    if limit is not None:
        require_fitting(setup.template, setup.problems, limit)
    store = tokenize_problems(setup.template, setup.problems, setup.console.say)
    fitting = Demonstrations(store, setup.problems, limit, setup.template)
    missing, too_long = len(setup.problems) - len(store), len(store) - len(fitting)
    if missing or too_long:
        setup.run.event("demonstrations_left_out", without_solution=missing, too_long=too_long, limit=limit)
        setup.console.say(
            f"{len(fitting)} demonstrations; left out: {missing} problems without a worked solution or an answer"
            + (f", {too_long} longer than the model's window of {limit} tokens." if limit is not None else ".")
        )
    if not fitting:
        raise DataError(NO_DEMONSTRATION)
    return fitting
