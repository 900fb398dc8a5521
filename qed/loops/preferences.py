"""Learning from preference pairs that are there beforehand: a better and a worse reply to the same question."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from qed.config.phases import Settings
from qed.data.splits import VALIDATION
from qed.errors import DataError
from qed.loops.metrics import Stats
from qed.loops.phase import Phase
from qed.loops.preflight import run_preflight
from qed.loops.reference import precompute_logps
from qed.loops.setup import Setup
from qed.models import load
from qed.rollout.stages import flatten
from qed.training.best import VALIDATED
from qed.training.learner import Learner
from qed.types import Group, Problem, Rollout


def train_preferences(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Learn from the pairs of the training problems; see `Phase` for the arguments.

    Raises:
        DataError: there is no pair to learn from.
    """
    trained, held = build_pairs(setup, setup.problems, "training"), build_pairs(setup, setup.validation, VALIDATION)
    if not trained:
        raise DataError(
            "There is no preference pair to learn from: the training data needs rows with a prompt, a chosen and a "
            "rejected reply that fit the model. On problems with answers, qed online-dpo makes pairs of its own."
        )
    phase = Phase(setup, settings, name, offset)
    learner = phase.learner
    if settings.algorithm.precompute_reference:
        trained, held = (
            _pair_rollouts(precompute_logps(setup, settings, learner, offset, flatten(some)))
            for some in (trained, held)
        )
    run_preflight(phase, setup.problems, flatten(trained))
    stream = phase.build_stream(trained, "pairs")
    if held:
        phase.evaluator.measure = partial(measure_preferences, learner, held)
    count = -(-settings.learner.batch_size // 2) or len(trained)
    phase.begin()
    for step in phase.remaining_steps():
        phase.begin_step(step)
        rows = flatten(stream.take(count))
        with setup.timer("score"):
            learner.score(rows, old=False)
        with setup.timer("update"):
            stats = phase.update(rows, step)
        phase.record(step, [stats])
        phase.end_step(step)
        phase.evaluate_if_due(step)
        phase.save_if_due(step)
        phase.stop_if_asked()
    phase.finish()


def build_pairs(setup: Setup, problems: Sequence[Problem], of: str) -> list[Group]:
    """The chosen and the rejected answer of each problem; those missing, alike or too long are counted and said.

    No answer is ever cut: a pair of which one is longer than the model's window would compare a whole with a part.
    """
    given = [problem for problem in problems if problem.is_preference]
    written = [[setup.template.build_rollout(one, one.meta[side]) for side in ("chosen", "rejected")] for one in given]
    different = [pair for pair in written if pair[0].output != pair[1].output]
    limit = load.read_window(setup.model)
    kept = [pair for pair in different if all(len(answer.prompt) + len(answer.output) <= limit for answer in pair)]
    left_out = {
        "without_preference": len(problems) - len(given),
        "alike": len(written) - len(different),
        "too_long": len(different) - len(kept),
    }
    if any(left_out.values()):
        setup.run.event("pairs_left_out", problems=of, limit=limit, **left_out)
        setup.console.say(
            f"{len(kept)} {of} pairs; left out: {left_out['without_preference']} problems without a chosen and a "
            f"rejected reply, {left_out['alike']} whose two replies are the same, {left_out['too_long']} longer than "
            f"the model's window of {limit} tokens."
        )
    return kept


def _pair_rollouts(rollouts: Sequence[Rollout]) -> list[Group]:
    return [list(pair) for pair in zip(rollouts[0::2], rollouts[1::2], strict=True)]


def measure_preferences(learner: Learner, held: Sequence[Group]) -> Stats:
    """On held-out pairs, the share whose chosen answer has the larger reward, and the share whose is the likelier.

    The reward is what the policy has added to the reference's log-prob; before the first step there is none yet.
    """
    rollouts = flatten(held)
    learner.score(rollouts, old=True)
    likely = [sum(rollout.old_logps or ()) for rollout in rollouts]
    added = [logp - sum(rollout.ref_logps or ()) for logp, rollout in zip(likely, rollouts, strict=True)]
    return {
        VALIDATED: fmean(chosen > rejected for chosen, rejected in zip(added[0::2], added[1::2], strict=True)),
        f"eval/{VALIDATION}/likelier": fmean(
            chosen > rejected for chosen, rejected in zip(likely[0::2], likely[1::2], strict=True)
        ),
    }
