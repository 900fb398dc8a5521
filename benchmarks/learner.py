"""The update alone, on the same rollouts: qed's learner beside a plain loop, and beside TRL's GRPOTrainer.

    python benchmarks/learner.py --against trl
    python benchmarks/learner.py --model new:small --problems 8 --tokens 128 --lengths uneven --precision bfloat16

qed's learner runs as it is by default, and once more for each setting that may make it faster; every row has a
gradient. Peak memory is that of a process of its own for each. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from results import print_result
from speed_parts import figures, floor, options, places
from speed_parts.process import Worker, in_turns
from speed_parts.step_ours import settings_of

from qed.randomness import derive_seed
from qed.rollout.policy import load_policy
from qed.sampling.base import Sampling
from qed.types import Problem


def main() -> None:
    """Measure, print the card, then one line of JSON."""
    asked = _asked()
    with tempfile.TemporaryDirectory() as out, ExitStack() as stack:
        file = Path(out) / "rollouts.json"
        told = {**options.plain(asked), "folder": str(options.folder_of(asked)), "rollouts": str(file), "out": out}
        rollouts = _rollouts(told)
        file.write_text(json.dumps(rollouts, default=list), encoding="utf-8")  # columns of numbers
        workers = {
            side: stack.enter_context(Worker(module, {**told, "extra": {**told["extra"], **extra}}, asked.threads))
            for side, (module, extra) in _sides(asked.against).items()
        }
        ceilings = workers["qed"].ready
        sides = {side: figures.summary(own) for side, own in in_turns(workers, asked.rounds).items()}
    ours, rival = sides["qed"], sides.get("trl") or sides["plain"]
    read = sum(len(row["prompt"]) for row in rollouts) / asked.group
    work = floor.Floor(Path(told["folder"]), len(rollouts), ours["tokens"], read)
    flops = (1 + floor.BACKWARD) * work.forward(read / asked.problems)
    compared = {side: {**one, "ratios": figures.ratios(one, rival)} for side, one in sides.items()}
    share = floor.share(flops, ours, ceilings)
    result = figures.result(options.plain(asked), ours, rival, floor=share, sides=compared)
    _card(result)
    print_result(result, asked.json)


def _asked() -> argparse.Namespace:
    parser = options.parser(__doc__)
    options.add_answers(parser, places.UNEVEN)
    return parser.parse_args()


def _sides(against: str | None) -> dict[str, tuple[str, dict[str, str]]]:
    """The module of every side, and the settings that set it apart."""
    sides: dict[str, tuple[str, dict[str, str]]] = {
        "qed": ("learner_ours", {}),
        "packing off": ("learner_ours", {"learner.packing": "false"}),
        "plain": ("learner_plain", {}),
    }
    return {**sides, "trl": ("learner_trl", {})} if against else sides


def _rollouts(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers that the policy sampled, group by group, with advantages that are never 0 and add up to 0 in a group."""
    settings = settings_of(told)
    policy = load_policy(settings, [], torch.device("cpu"), None)
    lines = Path(told["folder"], places.DATA).read_text(encoding="utf-8").splitlines()[: told["problems"]]
    problems = [Problem(str(number), json.loads(line)["question"], "") for number, line in enumerate(lines)]
    prompts = [policy.template.tokens(policy.template.prompt(problem)) for problem in problems]
    seeds = [[derive_seed(problem.id, place) for place in range(told["group"])] for problem in problems]
    groups = policy.sampler.generate(prompts, seeds, Sampling(1.0, told["tokens"]))
    chance, rows = random.Random(0), []
    for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        rewards = [chance.gauss(0, 1) for _ in group]
        mean = sum(rewards) / len(rewards)
        for answer, reward in zip(group, rewards, strict=True):
            row = {"problem": number, "prompt": prompt, "output": answer.tokens, "logps": answer.logps}
            rows.append({**row, "advantage": reward - mean})
    return rows


def _card(result: dict[str, Any]) -> None:
    figures.show(f"Update, {figures.describe_answers(result['settings'])}", result, result["sides"])
    for side, one in result["sides"].items():
        ratios = one["ratios"]
        print(
            f"{side:<20} gradient {one['norm']:.4f}; the rival needs {ratios['ratio']:.2f} times its CPU seconds, "
            f"{ratios['ratio_wall']:.2f} times its time, {ratios['ratio_rss']:.2f} times its memory"
        )


if __name__ == "__main__":
    main()
