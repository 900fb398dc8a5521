"""qed's learner as a worker: one update per round on the same rollouts, with the settings of a run."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from qed.models import threads
from qed.models.precision import read_precision
from qed.rollout.policy import load_policy
from qed.training.learner import Learner
from qed.types import Problem, Rollout
from speed_parts.floor import ceilings
from speed_parts.pace import Pace
from speed_parts.step_ours import settings_of


def main() -> None:
    """Update the model in each round."""
    pace = Pace()
    told = pace.settings
    settings = settings_of(told)
    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    policy = load_policy(settings, [], torch.device("cpu"), None)
    learner = Learner(
        policy.model,
        settings.algorithm,
        settings.learner,
        length=settings.sampling.max_tokens,
        precision=read_precision(settings.model),
    )
    rollouts = [
        Rollout(
            Problem(str(row["problem"]), "", ""),
            tuple(row["prompt"]),
            tuple(row["output"]),
            tuple(row["logps"]),
            "",
            "stop",
            advantage=row["advantage"],
        )
        for row in json.loads(Path(told["rollouts"]).read_text(encoding="utf-8"))
    ]
    pace.ready(**ceilings(pace.settings["precision"]))
    step = 0
    while True:
        stats = learner.update(rollouts, step)
        pace.done(tokens=int(stats["train/tokens"]), rows=stats["train/live_rows"], norm=stats["optim/grad_norm"])
        step += 1


if __name__ == "__main__":
    main()
