"""Reports limits that a run lowered after running out of memory, and keeps them across phases and resumes."""

from __future__ import annotations

from typing import Any

from qed.config.phases import Settings
from qed.loops.setup import Setup
from qed.runs.run import read_lines
from qed.training.learner import Learner

EVENT = "out_of_memory"
TOKENS, ROWS = "learner.tokens_per_microbatch", "sampling.rows_per_batch"


def remember_limits(setup: Setup, settings: Settings, learner: Learner) -> None:
    """Apply the limits that this run has lowered to a phase's learner and sampler, and report further reductions.

    A lowered limit no longer applies once its setting has been changed.
    """
    wanted = {TOKENS: settings.learner.tokens_per_microbatch, ROWS: settings.sampling.rows_per_batch}
    limits = setup.parallel.run_on_first(lambda: _read_limits(setup, wanted))  # the same on all ranks
    sampler: Any = setup.sampler
    learner.budget.tokens = limits[TOKENS]
    learner.budget.report = lambda limit: _report(setup, TOKENS, wanted[TOKENS], limit)
    if hasattr(sampler, "on_fewer_rows"):
        sampler.rows_per_batch = min(sampler.rows_per_batch, limits[ROWS])
        sampler.on_fewer_rows = lambda limit: _report(setup, ROWS, wanted[ROWS], limit)


def _read_limits(setup: Setup, wanted: dict[str, int]) -> dict[str, int]:
    """Return the lowest limit that this run has reported for the current value of each setting."""
    limits = dict(wanted)
    for row in read_lines(setup.run.folder / "events.jsonl"):
        if row["event"] == EVENT and wanted.get(row["setting"]) == row["configured"]:
            limits[row["setting"]] = min(limits[row["setting"]], row["limit"])
    return limits


def _report(setup: Setup, setting: str, configured: int, limit: int) -> None:
    """Print a lower limit, and record it in events.jsonl."""
    setup.run.event(EVENT, step=setup.step, setting=setting, configured=configured, limit=limit)
    same = "the gradient is" if setting == TOKENS else "the answers are"
    setup.console.say(
        f"The device ran out of memory: {setting} is {limit:,} for the rest of the run, not {configured:,}, and {same} "
        f"the same. Set it to this value to avoid the failed attempt next time."
    )
