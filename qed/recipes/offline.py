"""Learning from demonstrations that are there beforehand: supervised fine-tuning."""

from __future__ import annotations

from qed import model
from qed.errors import DataError
from qed.recipes.phase import Phase
from qed.recipes.setup import Setup
from qed.settings import Settings
from qed.types import Rollout


def offline(setup: Setup, settings: Settings, name: str, offset: int = 0) -> None:
    """Imitate the worked solutions of the training problems; see `Phase` for the arguments."""
    phase = Phase(setup, settings, name, offset)
    stream = phase.over(demonstrations(setup), "demonstrations")
    for step in phase.steps():
        rows = stream.take(settings.learner.batch_size or len(stream.items))
        stats = phase.learner.update(rows, step - offset - 1)
        phase.record(step, [stats])
    phase.finish()


def demonstrations(setup: Setup) -> list[Rollout]:
    """The demonstrations of the training problems; those missing or too long for the model are counted and said.

    Raises:
        DataError: there is none to imitate.
    """
    written = [setup.template.demonstration(problem) for problem in setup.problems]
    there = [rollout for rollout in written if rollout is not None]
    limit = model.window(setup.model)
    kept = [rollout for rollout in there if len(rollout.prompt) + len(rollout.output) <= limit]
    missing, too_long = len(written) - len(there), len(there) - len(kept)
    if missing or too_long:
        setup.run.event("demonstrations_left_out", without_solution=missing, too_long=too_long, limit=limit)
        setup.console.say(
            f"{len(kept)} demonstrations; left out: {missing} problems without a worked solution, {too_long} "
            "longer than the "
            f"model's window of {limit} tokens."
        )
    if not kept:
        raise DataError(
            "There is no demonstration to imitate: the training problems have no worked solutions that fit."
        )
    return kept
