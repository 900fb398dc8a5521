"""Offline preference learning (DPO and its relatives) on pairs of a chosen and a rejected reply to one question."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from statistics import fmean

from qed.config.phases import Settings
from qed.console.progress import report_progress
from qed.data.demonstrations import parallel_tokenizer
from qed.data.splits import NO_PAIR, VALIDATION
from qed.errors import DataError
from qed.loops.epochs import settle_steps
from qed.loops.evaluator import Measure
from qed.loops.metrics import Stats
from qed.loops.phase import Phase
from qed.loops.preflight import run_preflight
from qed.loops.reference import precompute_logps
from qed.loops.scores import calibrate, mark_scores, measure_ranking
from qed.loops.setup import Setup
from qed.models import load
from qed.rollout.stages import flatten
from qed.training.best import PREFERRED
from qed.training.learner import Learner
from qed.types import Group, Problem, Rollout

PAIRS_AT_ONCE = 512  # tokenised in one call


def train_preferences(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Train on the preference pairs of the training problems; see `Phase` for the arguments.

    Raises:
        DataError: there is no pair to learn from.
    """
    train_pairs = build_pairs(setup, setup.problems, "training")
    validation_pairs = build_pairs(setup, setup.validation, VALIDATION)
    scored = settings.algorithm.has_scalar_head
    if scored:
        train_pairs, validation_pairs = (
            mark_scores(pairs, settings.algorithm.margin) for pairs in (train_pairs, validation_pairs)
        )
    if not train_pairs:
        raise DataError(NO_PAIR)
    pairs_per_step = -(-settings.learner.batch_size // 2) or len(train_pairs)
    settings = settle_steps(setup, settings, name, len(train_pairs), pairs_per_step)
    phase = Phase(setup, settings, name, offset)
    learner = phase.learner
    if not scored and settings.algorithm.precompute_reference:
        parts = [flatten(pairs) for pairs in (train_pairs, validation_pairs)]
        train_pairs, validation_pairs = map(_pair_rollouts, precompute_logps(setup, settings, learner, offset, parts))
    run_preflight(phase, setup.problems, flatten(train_pairs))
    stream = phase.build_stream(train_pairs, "pairs")
    if validation_pairs:
        compute = partial(measure_ranking if scored else measure_preferences, learner, validation_pairs)
        phase.evaluator.measure = Measure(PREFERRED, compute, "{:.1%} of the pairs ranked right")
    if scored:
        phase.checkpointer.before_saving = partial(calibrate, setup, learner, train_pairs)
    phase.begin()
    for step in phase.remaining_steps():
        phase.begin_step(step)
        rows = flatten(stream.take(pairs_per_step))
        with setup.timer("score"):
            learner.score(rows, old=False)
        with setup.timer("update"):
            stats = phase.update(rows, step)
        phase.record(step, [stats])
        phase.finish_step(step)
    phase.finish()


def build_pairs(setup: Setup, problems: Sequence[Problem], of: str) -> list[Group]:
    """Return the chosen and the rejected reply of each problem; print how many are left out, and why.

    Pairs that are missing, identical or too long are left out. No reply is truncated, because the pair would then
    compare a complete reply with a part of one.
    """
    preferences = [problem for problem in problems if problem.is_preference]
    rendered = _render_pairs(setup, preferences, of)
    different = [pair for pair in rendered if pair[0].output != pair[1].output]
    limit = load.read_window(setup.model)
    fitting = [pair for pair in different if all(len(reply.prompt) + len(reply.output) <= limit for reply in pair)]
    left_out = {
        "without_preference": len(problems) - len(preferences),
        "alike": len(rendered) - len(different),
        "too_long": len(different) - len(fitting),
    }
    if any(left_out.values()):
        setup.run.event("pairs_left_out", problems=of, limit=limit, **left_out)
        setup.console.say(
            f"{len(fitting)} {of} pairs; left out: {left_out['without_preference']} problems without a chosen and a "
            f"rejected reply, {left_out['alike']} whose two replies are the same, {left_out['too_long']} longer than "
            f"the model's window of {limit} tokens."
        )
    return fitting


def _render_pairs(setup: Setup, preferences: Sequence[Problem], of: str) -> list[Group]:
    """Return the two replies to each problem as rollouts; for large data, print progress."""
    rendered: list[Group] = []
    numbered = report_progress(preferences, setup.console.say, "Tokenising", f"{of} pairs", len(preferences))
    with parallel_tokenizer() if len(preferences) > PAIRS_AT_ONCE else nullcontext():
        while part := list(islice(numbered, PAIRS_AT_ONCE)):
            answers = [(problem, problem.meta[side]) for _, problem in part for side in ("chosen", "rejected")]
            rendered += _pair_rollouts(setup.template.build_rollouts(answers))
    return rendered


def _pair_rollouts(rollouts: Sequence[Rollout]) -> list[Group]:
    return [list(pair) for pair in zip(rollouts[0::2], rollouts[1::2], strict=True)]


def measure_preferences(learner: Learner, pairs: Sequence[Group]) -> Stats:
    """Return the share of pairs whose chosen reply has the larger implicit reward, and the share by log-prob.

    The implicit reward is the policy's log-prob minus the reference's; it is 0 before the first step.
    """
    rollouts = flatten(pairs)
    learner.score(rollouts, old=True)
    logps = [sum(rollout.old_logps or ()) for rollout in rollouts]
    rewards = [logp - sum(rollout.ref_logps or ()) for logp, rollout in zip(logps, rollouts, strict=True)]
    return {
        PREFERRED: fmean(chosen > rejected for chosen, rejected in zip(rewards[0::2], rewards[1::2], strict=True)),
        f"eval/{VALIDATION}/likelier": fmean(
            chosen > rejected for chosen, rejected in zip(logps[0::2], logps[1::2], strict=True)
        ),
    }
