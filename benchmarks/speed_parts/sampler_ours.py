"""qed's sampler as a worker: that of a run, over the folder's model, one batch a round."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qed.draws import seed_of
from qed.recipes.policy import load_policy
from qed.samplers.base import Sampling
from speed_parts.pace import Pace
from speed_parts.step_ours import settings_of

SECONDS = 0.5  # that each ceiling is measured for


def ceilings(precision: torch.dtype) -> dict[str, float]:
    """What this machine does at best in a CPU second: multiplications of large matrices, reads of memory."""
    size = 1024
    left, right = (torch.randn(size, size).to(precision) for _ in range(2))
    memory = torch.ones(1 << 26)
    return {
        "gflop_per_cpu_s": 2 * size**3 / _seconds(lambda: nn.functional.linear(left, right)) / 1e9,
        "gb_per_cpu_s": 4 * len(memory) / _seconds(memory.sum) / 1e9,
    }


def _seconds(work: Callable[[], Any]) -> float:
    """The least processor time that the work takes."""
    found, end = [], time.process_time() + SECONDS
    while time.process_time() < end or len(found) < 3:
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    """Sample answers to the same prompts with other draws each round."""
    pace = Pace()
    told = pace.settings
    settings = settings_of(told)
    policy = load_policy(settings, [], torch.device("cpu"), None)
    prompts = json.loads(Path(told["prompts"]).read_text(encoding="utf-8"))
    precision = torch.bfloat16 if told["precision"] == "bfloat16" else torch.float32
    pace.ready(**ceilings(precision))
    number = 0
    while True:
        seeds = [[seed_of(number, which, place) for place in range(told["group"])] for which in range(len(prompts))]
        answers = policy.sampler.generate(prompts, seeds, Sampling(1.0, told["tokens"], policy.template.stop))
        lengths = [len(answer.tokens) for group in answers for answer in group]
        pace.done(tokens=sum(lengths), rows=len(lengths), longest=max(lengths))
        number += 1


if __name__ == "__main__":
    main()
