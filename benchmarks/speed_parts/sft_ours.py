"""qed's SFT as a worker: the recipe of `qed sft`, one step per round."""

from __future__ import annotations

from qed.loops.setup import open_run
from qed.loops.sft import train_sft
from qed.runs.run import Launch
from speed_parts.floor import ceilings
from speed_parts.pace import Pace
from speed_parts.paced_console import PacedConsole
from speed_parts.step_ours import settings_of


def main() -> None:
    """Open a run, and make a step in each round."""
    pace = Pace()
    settings = settings_of(pace.settings, "sft")

    def figures(metrics: dict[str, float]) -> dict[str, float]:
        # All tokens of a row are computed except the last one, which is only a label.
        tokens = metrics["train/computed_tokens"] + metrics["train/live_rows"]
        return {"tokens": int(tokens), "rows": metrics["train/rows"], "labels": metrics["train/tokens"]}

    with open_run(settings, Launch(json=True), "sft") as setup:
        setup.console = PacedConsole(pace, figures)
        pace.ready(**ceilings(pace.settings["precision"]))
        train_sft(setup, settings, "sft")


if __name__ == "__main__":
    main()
