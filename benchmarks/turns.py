"""Turns: how long the second turn of many answers takes, recomputed and with the KV cache kept in place.

    python benchmarks/turns.py --model new:tiny --answers 256

Every answer has a first turn of random length and a reply of three tokens; its second turn has four tokens, so that the
cost of the tokens before them dominates. The last line is JSON.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from contextlib import nullcontext

import torch
from results import add_json, print_result

from qed.models.load import build_model
from qed.sampling.base import Sampling, keep_prefixes
from qed.sampling.native.sampler import NativeSampler

FIRST, SECOND, REPLY = 200, 4, (5, 6, 7)  # maximum tokens of each turn, and the reply between them
ENDS = range(100, 110)  # among about 270 tokens, so that answers of a random model end


def main() -> None:
    """Measure, print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_json(parser)
    parser.add_argument("--model", default="new:tiny")
    parser.add_argument("--answers", type=int, default=256)
    parser.add_argument("--prompts", type=int, nargs="+", default=[40, 400], help="tokens per prompt")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = build_model(asked.model, ["one two 1 2 3"], seed=0)
    sampler = NativeSampler(model.eval(), tokenizer, (tokenizer.eos_token_id, *ENDS))
    rows = []
    for length in asked.prompts:
        # The sides take turns, so that a slow moment of the machine does not affect only one side.
        found = [[measure(sampler, length, asked.answers, keep) for keep in (False, True)] for _ in range(asked.rounds)]
        anew, in_place = (statistics.median(one[side] for one in found) for side in (0, 1))
        rows.append({"prompt": length, "anew_s": anew, "in_place_s": in_place, "times": anew / in_place})
        print(f"{length:5d} tokens  anew {anew:.3f} s  in place {in_place:.3f} s  {anew / in_place:.1f} times")
    print_result({"model": asked.model, "answers": asked.answers, "rounds": asked.rounds, "rows": rows}, asked.json)


def measure(sampler: NativeSampler, length: int, answers: int, keep: bool) -> float:
    """Return the seconds of the second turn."""
    source = random.Random(0)
    prompts = [tuple(source.randrange(10, 90) for _ in range(length)) for _ in range(answers)]
    with keep_prefixes(sampler) if keep else nullcontext():
        first = sampler.generate(prompts, [[number] for number in range(answers)], Sampling(1.0, FIRST))
        both = zip(prompts, first, strict=True)
        further = [(*prompt, *row[0].tokens, *REPLY) for prompt, row in both if row[0].stop_reason == "stop"]
        began = time.perf_counter()
        sampler.generate(further, [[number] for number in range(len(further))], Sampling(1.0, SECOND))
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
