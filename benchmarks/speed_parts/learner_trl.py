"""TRL's update as a worker: GRPOTrainer is given the rollouts, and a round begins when they have their rewards."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from speed_parts.pace import Pace
from speed_parts.step_trl import configuration


class Rounds(TrainerCallback):
    """Ends a round with what a step logs, which is the last that it does."""

    def __init__(self, pace: Pace, tokens: int, rows: int) -> None:
        self.pace, self.tokens, self.rows = pace, tokens, rows

    def on_log(self, *arguments: Any, logs: dict[str, float], **_: Any) -> None:
        """End the round."""
        self.pace.done(tokens=self.tokens, rows=self.rows, norm=float(logs.get("grad_norm", 0.0)))


def main() -> None:
    """Make a trainer and its steps when told."""
    pace = Pace()
    told = pace.settings
    rows = json.loads(Path(told["rollouts"]).read_text(encoding="utf-8"))

    def given(prompts: Any, trainer: Any) -> dict[str, list[list[Any]]]:
        """The rollouts in the place of sampling."""
        names = {"prompt_ids": "prompt", "completion_ids": "output", "logprobs": "logps"}
        return {name: [row[own] for row in rows] for name, own in names.items()}

    def reward(completions: Any, **_: Any) -> list[float]:
        """The advantages, whose mean in a group is 0 already; what came before is not the update's."""
        pace.restart()
        return [row["advantage"] for row in rows]

    problems = [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(told["problems"])]
    folder = f"{told['folder']}/hf"
    with tempfile.TemporaryDirectory() as out:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            args=configuration(told, out, scale_rewards="none"),
            train_dataset=Dataset.from_list(problems),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=[reward],
            rollout_func=given,
            callbacks=[Rounds(pace, sum(len(row["output"]) for row in rows), len(rows))],
        )
        trainer.remove_callback(PrinterCallback)
        pace.ready()
        trainer.train()


if __name__ == "__main__":
    main()
