"""qed's sampler as a worker: a run's sampler on the folder's model, one batch per round."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from qed.models import threads
from qed.randomness import derive_seed
from qed.rollout.policy import load_policy
from qed.sampling.base import Sampling
from speed_parts.floor import ceilings
from speed_parts.pace import Pace
from speed_parts.step_ours import settings_of


def main() -> None:
    """Sample answers to the same prompts with new random draws each round."""
    pace = Pace()
    told = pace.settings
    settings = settings_of(told)
    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    policy = load_policy(settings, [], torch.device("cpu"), None)
    prompts = json.loads(Path(told["prompts"]).read_text(encoding="utf-8"))
    temperature, top_p = told.get("temperature", 1.0), told.get("top_p", 1.0)  # other benchmarks omit them
    sampling = Sampling(temperature, told["tokens"], policy.template.stop, top_p=top_p)
    pace.ready(**ceilings(told["precision"]))
    number = 0
    while True:
        seeds = [[derive_seed(number, which, place) for place in range(told["group"])] for which in range(len(prompts))]
        answers = policy.sampler.generate(prompts, seeds, sampling)
        lengths = [len(answer.tokens) for group in answers for answer in group]
        pace.done(tokens=sum(lengths), rows=len(lengths), longest=max(lengths))
        number += 1


if __name__ == "__main__":
    main()
