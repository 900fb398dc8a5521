"""Turn `learner.epochs` into a number of steps, once a phase has loaded its data."""

from __future__ import annotations

import math
from dataclasses import replace

from qed.config.phases import Settings
from qed.loops.setup import Setup
from qed.runs.run import read_lines

EVENT = "epochs"


def settle_steps(setup: Setup, settings: Settings, name: str, items: int, per_step: int) -> Settings:
    """Return a phase's settings with a number of steps in place of `learner.epochs`, and print that number.

    Args:
        setup: setup of the run.
        settings: settings of the phase; returned unchanged if they set steps.
        name: name of the phase.
        items: number of training items: problems, demonstrations, windows or pairs.
        per_step: number of items per step.
    """
    epochs = settings.learner.epochs
    if not epochs:
        return settings
    steps = count_steps(epochs, items, per_step)
    setup.run.event(EVENT, phase=name, epochs=epochs, items=items, per_step=per_step, steps=steps)
    setup.console.say(f"{name}: learner.epochs={epochs:g} over {items:,}, {per_step:,} a step: {steps:,} steps.")
    if per_step > items:
        setup.console.say(f"A step takes more than there are, so each is used {steps * per_step / items:.1f} times.")
    return replace(settings, learner=replace(settings.learner, steps=steps, epochs=0.0))


def count_steps(epochs: float, items: int, per_step: int) -> int:
    """Return the number of steps of `epochs` epochs, the last of which may be incomplete."""
    return math.ceil(round(epochs * items / per_step, 6))  # rounded first, because 0.1 * 30 is slightly more than 3


def recall_steps(setup: Setup, settings: Settings, name: str) -> int | None:
    """Return a phase's number of steps; with epochs, the recorded number, or None if not recorded yet."""
    if not settings.learner.epochs:
        return settings.learner.steps
    rows = setup.parallel.run_on_first(lambda: read_lines(setup.run.folder / "events.jsonl"))
    steps = [row["steps"] for row in rows if row["event"] == EVENT and row["phase"] == name]
    return int(steps[-1]) if steps else None
