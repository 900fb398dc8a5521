"""TRL's update as a worker: GRPOTrainer gets the rollouts, and a round begins when they have their rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from speed_parts.pace import Pace
from speed_parts.step_trl import options
from speed_parts.trl_trainer import train


def main() -> None:
    """Make a trainer, and a step in each round."""
    pace = Pace()
    told = pace.settings
    rows = json.loads(Path(told["rollouts"]).read_text(encoding="utf-8"))

    def given(prompts: Any, trainer: Any) -> dict[str, list[list[Any]]]:
        """Return the rollouts instead of sampling."""
        names = {"prompt_ids": "prompt", "completion_ids": "output", "logprobs": "logps"}
        return {name: [row[own] for row in rows] for name, own in names.items()}

    def reward(completions: Any, **_: Any) -> list[float]:
        """Return the advantages, whose mean in a group is already 0; the time before does not belong to the update."""
        pace.restart()
        return [row["advantage"] for row in rows]

    def figures(_: Any, logs: dict[str, float]) -> dict[str, Any]:
        tokens = sum(len(row["output"]) for row in rows)
        return {"tokens": tokens, "rows": len(rows), "norm": float(logs.get("grad_norm", 0.0))}

    problems = [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(told["problems"])]
    own = options(told, scale_rewards="none")
    if told["micro"]:
        own["per_device_train_batch_size"] = told["micro"]
        own["gradient_accumulation_steps"] = len(rows) // told["micro"]
    train(pace, GRPOTrainer, GRPOConfig, own, problems, figures, reward_funcs=[reward], rollout_func=given)


if __name__ == "__main__":
    main()
