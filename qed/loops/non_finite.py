"""What a run does where a figure is not finite: dump the batch, then end, or pass over the update."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.errors import Diverged
from qed.guards.finite import find_not_finite
from qed.loops.setup import Setup
from qed.runs.run import build_row
from qed.training import checkpoints
from qed.training.learner import COUNTS, Learner
from qed.types import Rollout

SKIPPED = "optim/skipped"  # updates that a step has passed over


@dataclass
class NonFinitePolicy:
    """Makes updates, and passes over at most `most` of them one after another that are not finite.

    `in_a_row` is how many it has just passed over; it is part of every checkpoint.
    """

    setup: Setup
    most: int
    in_a_row: int = 0

    def update(self, learner: Learner, rows: Sequence[Rollout], step: int, place: int) -> dict[str, float]:
        """One optimizer step.

        Args:
            learner: makes it.
            rows: of the update.
            step: of the run.
            place: in the schedule, from 0.

        Raises:
            Diverged: something is not finite, and no update, or no further one, may be passed over.
        """
        try:
            stats = learner.update(rows, place)
        except Diverged as error:
            if self.in_a_row >= self.most:
                raise
            self.in_a_row += 1
            dumped = dump_batch(self.setup, step, error.rollouts)
            self.setup.run.event("not_finite", step=step, reason=str(error), dump=str(dumped), in_a_row=self.in_a_row)
            self.setup.console.say(
                f"Step {step}: an update is passed over ({self.in_a_row} in a row, {self.most} may be). {error} The "
                f"batch is in {dumped}."
            )
            return {**dict.fromkeys(COUNTS, 0.0), "train/rows": len(rows), SKIPPED: 1.0}
        self.in_a_row = 0
        return {SKIPPED: 0.0, **stats} if self.most else stats


def describe_end(setup: Setup, error: Diverged) -> Diverged:
    """The error that ends a run: in which step it was met, and where the batch is."""
    where = f" The batch is in {dump_batch(setup, setup.step, error.rollouts)}." if error.rollouts else ""
    saved = checkpoints.read_pointer(setup.run.folder, "LATEST")
    resume = f" The checkpoint of step {saved} is whole: go on from it with --resume --out {setup.run.home}."
    return Diverged(f"Step {setup.step}: {error}{where}{'' if saved is None else resume}", error.rollouts)


def dump_batch(setup: Setup, step: int, rollouts: Sequence[Rollout]) -> Path:
    """Write the rows of a batch in full into the run's folder, as JSON of ASCII letters alone."""
    folder = setup.run.folder / "dumps"
    before = len(list(folder.glob(f"step_{step:06d}*")))
    name = f"dumps/step_{step:06d}{f'-{before + 1}' if before else ''}.jsonl"
    lines = "".join(json.dumps(_convert_strict(_build_row(rollout, step))) + "\n" for rollout in rollouts)
    setup.run.write(name, lines.encode())
    return setup.run.folder / name


def _build_row(rollout: Rollout, step: int) -> dict[str, Any]:
    return {
        **build_row(rollout, step),
        "not_finite": find_not_finite(rollout),
        "prompt_tokens": rollout.prompt,
        "old_logps": rollout.old_logps,
        "ref_logps": rollout.ref_logps,
    }


def _convert_strict(value: Any) -> Any:
    """A value as JSON can say it: numbers that are not finite become texts such as "nan"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_convert_strict(inner) for inner in value]
    return {key: _convert_strict(inner) for key, inner in value.items()} if isinstance(value, dict) else value
