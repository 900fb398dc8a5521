"""qed's SFT as a worker: the recipe of `qed sft` itself, one step a round."""

from __future__ import annotations

from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.loops.setup import open_run
from qed.loops.sft import train_sft
from qed.runs.run import Launch
from speed_parts.floor import ceilings
from speed_parts.pace import Pace, PacedConsole


def main() -> None:
    """Open a run and make its steps when told."""
    pace = Pace()
    told = pace.settings
    given = {
        "model.name": f"{told['folder']}/hf",
        "model.device": "cpu",
        "model.precision": told["precision"],
        "data.tasks": told["data"],
        "data.prompt": "think_answer",
        "evaluation.tasks": "arithmetic",
        "evaluation.problems": 1,
        "sampling.max_tokens": 8,
        "learner.steps": 1_000_000,
        "learner.batch_size": told["rows"],
        "learner.lr": told["lr"],
        "run.threads": told["threads"],
        "run.out": told["out"],
        **told["extra"],
    }
    settings = resolve_settings("sft", [f"{name}={value}" for name, value in given.items()]).settings
    assert isinstance(settings, Settings)

    def figures(metrics: dict[str, float]) -> dict[str, float]:
        # What is computed of a row is all but its last token, which is a label alone.
        tokens = metrics["train/computed_tokens"] + metrics["train/live_rows"]
        return {"tokens": int(tokens), "rows": metrics["train/rows"], "labels": metrics["train/tokens"]}

    with open_run(settings, Launch(json=True), "sft") as setup:
        setup.console = PacedConsole(pace, figures)
        pace.ready(**ceilings(pace.settings["precision"]))
        train_sft(setup, settings, "sft")


if __name__ == "__main__":
    main()
