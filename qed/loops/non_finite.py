"""Handles updates with NaN or infinite values: dumps the batch, then skips the update or ends the run."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qed.errors import Diverged
from qed.guards.finite import find_not_finite
from qed.loops.setup import Setup
from qed.runs import manifest
from qed.runs.run import build_row
from qed.training.batch import COUNTS
from qed.training.critic import ValueLearner
from qed.training.learner import Learner
from qed.types import Column, Rollout

SKIPPED = "optim/skipped"  # number of updates that a step has skipped


@dataclass
class NonFinitePolicy:
    """Makes updates, and skips non-finite ones, at most `max_skips` in a row.

    `in_a_row` counts the latest consecutive skips, and is saved in every checkpoint.
    """

    setup: Setup
    max_skips: int
    in_a_row: int = 0

    def update(
        self, learner: Learner | ValueLearner, rows: Sequence[Rollout], step: int, place: int
    ) -> dict[str, float]:
        """Make one optimizer step, or skip it, and return its statistics.

        Args:
            learner: learner of the policy or of a critic, which makes the step.
            rows: rollouts of the update.
            step: step number within the run.
            place: position in the learning rate schedule, from 0.

        Raises:
            Diverged: the loss or the gradient is not finite, and no more updates may be skipped.
        """
        try:
            stats = learner.update(rows, place)
        except Diverged as error:
            if self.in_a_row >= self.max_skips:
                raise
            self.in_a_row += 1
            dump = dump_batch(self.setup, step, error.rollouts)
            self.setup.run.event("not_finite", step=step, reason=str(error), dump=str(dump), in_a_row=self.in_a_row)
            self.setup.console.say(
                f"Step {step}: skipped an update ({self.in_a_row} in a row, at most {self.max_skips}). {error} The "
                f"batch is in {dump}."
            )
            return {**dict.fromkeys(COUNTS, 0.0), "train/rows": len(rows), SKIPPED: 1.0}
        self.in_a_row = 0
        return {SKIPPED: 0.0, **stats} if self.max_skips else stats


def describe_end(setup: Setup, error: Diverged) -> Diverged:
    """Return the error that ends a run, with its step, the path of the dumped batch and how to resume."""
    where = f" The batch is in {dump_batch(setup, setup.step, error.rollouts)}." if error.rollouts else ""
    saved = manifest.read_pointer(setup.run.folder, "LATEST")  # ranks may differ here; it affects only the message
    home = shlex.quote(str(setup.run.home))
    resume = f" The checkpoint of step {saved} is complete; resume from it with --resume --out {home}."
    return Diverged(f"Step {setup.step}: {error}{where}{'' if saved is None else resume}", error.rollouts)


def is_of_rewards(error: Diverged) -> bool:
    """Return whether only rewards are not finite, so that the weights are still valid."""
    return {name for rollout in error.rollouts for name in find_not_finite(rollout)} == {"reward"}


def dump_batch(setup: Setup, step: int, rollouts: Sequence[Rollout]) -> Path:
    """Write all fields of a batch's rollouts to the run's folder as ASCII JSON lines, and return the file's path."""
    folder = setup.run.folder / "dumps"
    count = len(list(folder.glob(f"step_{step:06d}*")))
    name = f"dumps/step_{step:06d}{f'-{count + 1}' if count else ''}.jsonl"
    rows = (_build_row(_restore_text(rollout, setup.tokenizer), step) for rollout in rollouts)
    lines = "".join(json.dumps(_to_strict_json(row)) + "\n" for row in rows)
    setup.run.write(name, lines.encode())
    return setup.run.folder / name


def _restore_text(rollout: Rollout, tokenizer: Any) -> Rollout:
    """Return a rollout with the text of its tokens, which SFT rows lack."""
    text = rollout.text or tokenizer.decode(list(rollout.output), skip_special_tokens=True)
    return replace(rollout, text=text, prompt_text=rollout.prompt_text or tokenizer.decode(list(rollout.prompt)))


def _build_row(rollout: Rollout, step: int) -> dict[str, Any]:
    return {
        **build_row(rollout, step),
        "not_finite": find_not_finite(rollout),
        "prompt_tokens": rollout.prompt,
        "old_logps": rollout.old_logps,
        "ref_logps": rollout.ref_logps,
        "values": rollout.values,
        "returns": rollout.returns,
    }


def _to_strict_json(value: Any) -> Any:
    """Convert a value to strict JSON: non-finite numbers become strings such as "nan"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple | Column):
        return [_to_strict_json(inner) for inner in value]
    return {key: _to_strict_json(inner) for key, inner in value.items()} if isinstance(value, dict) else value
