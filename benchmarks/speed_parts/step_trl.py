"""TRL's GRPO step as a worker: GRPOTrainer on the same folder, one step per round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from qed.data.prompts import think_answer
from qed.rewards import grader
from qed.types import Problem, Rollout
from speed_parts.pace import Pace
from speed_parts.rewards import NoisyGrader, digest
from speed_parts.trl_trainer import train


class Rewarding:
    """qed's reward as a reward function for TRL."""

    __name__ = "reward"

    def __init__(self, pace: Pace) -> None:
        self.pace, self.group = pace, pace.settings["group"]
        self.grader = NoisyGrader(grader.make_grader([think_answer.REWARD]), pace.settings["noise"])
        self.tokens = 0

    def __call__(self, completions: Any, answer: Any, completion_ids: Any, **_: Any) -> list[float]:
        """Return the rewards of all completions, with those of a problem one after the other."""
        rows = [
            Rollout(Problem("", "", gold), (), tuple(ids), (), completion[0]["content"], "stop")
            for completion, gold, ids in zip(completions, answer, completion_ids, strict=True)
        ]
        self.tokens = sum(len(row.output) for row in rows)
        grades = self.grader([rows[start : start + self.group] for start in range(0, len(rows), self.group)])
        self.pace.lap("sample")
        return [grade.reward for group in grades for grade in group]


class Watched(GRPOTrainer):
    """Records the prompts and the rows that a step trains."""

    seen: int = 0
    rows: int = 0

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        """Return the loss unchanged."""
        there = inputs["prompt_mask"].bool()
        self.seen = digest([ids[mask].tolist() for ids, mask in zip(inputs["prompt_ids"], there, strict=True)])
        self.rows = len(there)
        return super().compute_loss(model, inputs, *arguments, **named)


def options(told: dict[str, Any], scale_rewards: str = "group") -> dict[str, Any]:
    """Return options for one update per batch of answers, without a KL."""
    return {
        "per_device_train_batch_size": told["problems"] * told["group"],
        "gradient_accumulation_steps": 1,
        "num_generations": told["group"],
        "max_completion_length": told["tokens"],
        "beta": 0.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "loss_type": "grpo",
        "scale_rewards": scale_rewards,
        "shuffle_dataset": False,
        "log_completions": False,
    }


def main() -> None:
    """Make a trainer, and a step in each round."""
    pace = Pace()
    rewarding = Rewarding(pace)
    rows = [json.loads(line) for line in Path(pace.settings["order"]).read_text(encoding="utf-8").splitlines()]
    asked = [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in rows]

    def figures(trainer: Watched, _: Any) -> dict[str, Any]:
        counts = {"tokens": rewarding.tokens, "rows": trainer.rows, "live_rows": trainer.rows}
        return {**counts, "signal_share": rewarding.grader.signal_share, "prompts": trainer.seen}

    train(pace, Watched, GRPOConfig, options(pace.settings), asked, figures, reward_funcs=[rewarding])


if __name__ == "__main__":
    main()
