"""The rollouts of an update: answers of qed's sampler with random rewards."""

from __future__ import annotations

import gc
import json
import random
from pathlib import Path
from typing import Any

import torch

from qed.randomness import derive_seed
from qed.rollout.policy import load_policy
from qed.sampling.base import Sampling
from qed.types import Problem
from speed_parts import places
from speed_parts.step_ours import settings_of


def sample_rollouts(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Sample answers from the policy, group by group, with advantages that are never 0 and sum to 0 in a group."""
    settings = settings_of(told)
    policy = load_policy(settings, [], torch.device("cpu"), None)
    lines = Path(told["folder"], places.DATA).read_text(encoding="utf-8").splitlines()[: told["problems"]]
    problems = [Problem(str(number), json.loads(line)["question"], "") for number, line in enumerate(lines)]
    prompts = [policy.template.tokens(policy.template.prompt(problem)) for problem in problems]
    seeds = [[derive_seed(problem.id, place) for place in range(told["group"])] for problem in problems]
    groups = policy.sampler.generate(prompts, seeds, Sampling(1.0, told["tokens"]))
    del policy
    gc.collect()  # the sides need the memory
    chance, rows = random.Random(0), []
    for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        rewards = [chance.gauss(0, 1) for _ in group]
        mean = sum(rewards) / len(rewards)
        for answer, reward in zip(group, rewards, strict=True):
            row = {"problem": number, "prompt": prompt, "output": answer.tokens, "logps": answer.logps}
            rows.append({**row, "advantage": reward - mean})
    return rows
