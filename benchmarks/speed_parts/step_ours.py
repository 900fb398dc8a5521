"""qed's GRPO step as a worker: the recipe of `qed grpo`, one step per round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.loops.online import train_online
from qed.loops.setup import open_run
from qed.runs.run import Launch
from qed.types import Grade, Group
from speed_parts.floor import ceilings
from speed_parts.pace import Pace
from speed_parts.paced_console import PacedConsole
from speed_parts.rewards import NoisyGrader, digest

STEPS = 1_000_000  # never reached, because the parent ends the worker


class Watching(NoisyGrader):
    """Records the prompts of every step, and when its answers were sampled and graded."""

    def __init__(self, grader: Any, noise: float, pace: Pace) -> None:
        super().__init__(grader, noise)
        self.pace, self.prompts, self.prompt_tokens = pace, 0, 0

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Return the grades of each group's answers."""
        prompts = [group[0].prompt for group in groups]
        self.prompts, self.prompt_tokens = digest(prompts), sum(map(len, prompts))
        grades = super().__call__(groups)
        self.pace.lap("sample")
        return grades


def settings_of(told: dict[str, Any], method: str = "grpo") -> Settings:
    """Return the settings of the run that `qed grpo` or `qed sft` would make: defaults, except for the options of both
    sides."""
    own = {
        "grpo": {
            "data.tasks": f"{told['folder']}/problems.jsonl",
            "sampling.problems_per_step": told.get("problems"),
            "sampling.group_size": told.get("group"),
            "sampling.max_tokens": told.get("tokens"),
        },
        "sft": {"data.tasks": told.get("data"), "sampling.max_tokens": 8, "learner.batch_size": told.get("rows")},
    }
    given = {
        "model.name": f"{told['folder']}/hf",
        "model.device": "cpu",
        "model.precision": told["precision"],
        "data.prompt": "think_answer",
        "evaluation.tasks": "arithmetic",
        "evaluation.problems": 1,
        "learner.steps": STEPS,
        "learner.lr": told["lr"],
        "run.threads": told["threads"],
        "run.out": told["out"],
        **own[method],
        **told["extra"],
    }
    settings = resolve_settings(method, [f"{name}={value}" for name, value in given.items()]).settings
    assert isinstance(settings, Settings)
    return settings


def main() -> None:
    """Open a run, and make a step in each round."""
    pace = Pace()
    settings = settings_of(pace.settings)
    with open_run(settings, Launch(json=True), "grpo") as setup:
        grader = Watching(setup.grader, pace.settings["noise"], pace)
        setup.materials = [replace(setup.materials[0], grader=grader)]

        def figures(metrics: dict[str, float]) -> dict[str, float]:
            return {
                "tokens": int(metrics["length/total"]),
                "rows": metrics["train/rows"],
                "live_rows": metrics["train/live_rows"],
                "signal_share": grader.signal_share,
                "prompts": grader.prompts,
                "prompt_tokens": grader.prompt_tokens,
            }

        setup.console = PacedConsole(pace, figures)
        pace.ready(**ceilings(pace.settings["precision"]))
        train_online(setup, settings, "grpo")


if __name__ == "__main__":
    main()
