"""Turn `learner.epochs` into a number of steps, once a phase knows how much it trains on."""

from __future__ import annotations

import math
from dataclasses import replace

from qed.config.phases import Settings
from qed.loops.setup import Setup
from qed.runs.run import read_lines

EVENT = "epochs"


def settle_steps(setup: Setup, settings: Settings, name: str, items: int, per_step: int) -> Settings:
    """Return the settings of a phase with a number of steps in place of `learner.epochs`, and print it.

    Args:
        setup: of the run.
        settings: of the phase; returned as they are if they give steps.
        name: of the phase.
        items: the phase trains on: problems, demonstrations, windows or pairs.
        per_step: the items of a step.
    """
    epochs = settings.learner.epochs
    if not epochs:
        return settings
    steps = count_steps(epochs, items, per_step)
    setup.run.event(EVENT, phase=name, epochs=epochs, items=items, per_step=per_step, steps=steps)
    setup.console.say(f"{name}: learner.epochs={epochs:g} over {items:,}, {per_step:,} a step: {steps:,} steps.")
    return replace(settings, learner=replace(settings.learner, steps=steps, epochs=0.0))


def count_steps(epochs: float, items: int, per_step: int) -> int:
    """Return the steps of so many epochs, the last of which may be incomplete."""
    return math.ceil(round(epochs * items / per_step, 6))  # rounded first: 0.1 times 30 is a little more than 3


def recall_steps(setup: Setup, settings: Settings, name: str) -> int | None:
    """Return the number of steps of a phase; with epochs the one that the run has recorded, or None before it has."""
    if not settings.learner.epochs:
        return settings.learner.steps
    rows = setup.parallel.run_on_first(lambda: read_lines(setup.run.folder / "events.jsonl"))
    steps = [row["steps"] for row in rows if row["event"] == EVENT and row["phase"] == name]
    return int(steps[-1]) if steps else None
