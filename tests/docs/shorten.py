"""Stand in for `qed` where a page's commands are tested: training is cut to two steps, nothing else changes.

A training command keeps its own arguments, except for those that say how long it runs, and gets the ones of `SHORT`.
An evaluation of a model asks four problems for sixteen tokens. Other commands run as they are written.
"""

from __future__ import annotations

import sys

from qed.cli.main import main
from qed.config import plugins

PER_STEP = {
    "--sampling.problems_per_step": "4",
    "--sampling.group_size": "2",
    "--sampling.max_tokens": "16",
}
# Two groups of two answers a step; a run that learns nothing in two steps is not a mistake here.
SHORT = {**PER_STEP, "--evaluation.problems": "4", "--evaluation.every": "0", "--run.on_no_signal": "warn"}
PHASE = {"learner.steps": "2", "learner.batch_size": "0", "learner.warmup_steps": "0"}
SFT_ROWS = {"learner.batch_size": "4"}
# Other spellings of what is cut.
SHORTCUTS = {"--steps": "--learner.steps"}
EVALUATION = {"--limit": "4", "--max-tokens": "16", "--samples": "2"}
AS_WRITTEN = {"--dry-run", "--help", "--help-all", "--resume"}
TOGETHER = ("quickstart", "pipeline")  # commands of two phases
IMITATION = ("sft", "dft", "dpo", "reward_model")


def shortened(arguments: list[str]) -> list[str]:
    """Return a command's arguments with the settings that make it short."""
    if not arguments or AS_WRITTEN & set(arguments):
        return arguments
    command = arguments[0]
    if command == "evaluate":
        return arguments if "--responses" in arguments else replaced(arguments, EVALUATION)
    if command in TOGETHER:
        phases = {f"--sft.{name}": value for name, value in (PHASE | SFT_ROWS).items()}
        return replaced(arguments, SHORT | phases | {f"--rl.{name}": value for name, value in PHASE.items()})
    if command.replace("-", "_") in plugins.list_leaves("algorithms"):
        rows = SFT_ROWS if command in IMITATION else {}
        return replaced(arguments, SHORT | {f"--{name}": value for name, value in (PHASE | rows).items()})
    return arguments


def replaced(arguments: list[str], settings: dict[str, str]) -> list[str]:
    """Return the arguments without the options that `settings` gives, and with these at the end."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        name = SHORTCUTS.get(argument, argument)
        if not skip and name not in settings:
            kept.append(argument)
        skip = not skip and name in settings
    return [*kept, *(part for option in settings.items() for part in option)]


if __name__ == "__main__":
    main(shortened(sys.argv[1:]))
