"""A server with many clients against the sampler in this process and vLLM: tokens per second, in turns.

    python benchmarks/serving.py --model new:tiny --threads 4
    python benchmarks/serving.py --model new:half --precision bfloat16 --against vllm --python VENV/bin/python

Every side samples the same number of answers to the same prompts, with as many at a time as there are clients.
The sampler gets all of them in one call; a server gets one request for each, from 64 clients that wait for their
answer before they send the next. `qed batch` is what a run with `sampling.servers` does: one request for all answers.
`new:half` has the shape of a 0.5 B model, except for a smaller vocabulary. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grading_parts.card import machine
from results import print_result
from sampler import read_prompts
from serving_parts import sides
from speed_parts import figures, options, places
from speed_parts.machine import find_versions
from speed_parts.process import Worker

from qed.models.load import SIZES, Size

# The shape of Qwen2.5-0.5B, whose vocabulary has 151,936 tokens.
SIZES["half"] = Size(layers=24, width=896, heads=14, kv_heads=2, vocabulary=32000, window=2048)
GOAL = 0.9  # share of the sampler's tokens per second


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _asked()
    folder = options.folder_of(asked)
    prompts = read_prompts(folder, asked.problems)
    told = {**options.plain(asked), "folder": str(folder)}
    told["extra"] = {"sampling.rows_per_batch": str(asked.clients), **told["extra"]}
    with tempfile.TemporaryDirectory() as out, ExitStack() as stack:
        file = Path(out) / "prompts.json"
        file.write_text(json.dumps(prompts), encoding="utf-8")
        told |= {"prompts": str(file), "out": f"{out}/run"}
        worker = stack.enter_context(Worker("sampler_ours", told, asked.threads))
        rounds: dict[str, Callable[[], dict[str, Any]]] = {"sampler": worker.round}
        _ = worker.ready
        specs = {"qed serve": sides.build_native, **({"vllm": sides.build_vllm} if asked.against else {})}
        for name, build in specs.items():
            server = stack.enter_context(sides.serve(build(folder, told, Path(out) / "logs")))
            if name == "qed serve":
                rounds["qed batch"] = sides.Learner(server, prompts, told).round
            rounds[name] = sides.Clients(server, prompts, told).round
        found = _take_turns(rounds, asked.rounds)
    result = _summarize(found, told)
    _show(result, told)
    print_result(result, asked.json)


def _asked() -> argparse.Namespace:
    parser = options.parser(__doc__, rivals=("vllm",))
    options.add_answers(parser, places.UNEVEN)
    parser.add_argument("--clients", type=int, default=64, help="number of clients, each with one request at a time")
    parser.add_argument("--python", default="", help="Python of an environment with vLLM")
    parser.set_defaults(problems=32, rounds=3)
    return parser.parse_args()


def _take_turns(rounds: dict[str, Callable[[], dict[str, Any]]], count: int) -> dict[str, list[dict[str, Any]]]:
    """Run the rounds of all sides in turns; the first round is a warm-up."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rounds}
    for number in range(count + 1):
        for name, measure in rounds.items():
            one = measure()
            told = f"{one['wall']:8.3f} s {one['tokens']:8,} tokens {one['tokens'] / one['wall']:10,.0f} tokens/s"
            print(f"{number or 'warm-up':>8} {name:<10}{told}", file=sys.stderr)
            if number:
                found[name].append(one)
    return found


def _summarize(found: dict[str, list[dict[str, Any]]], told: dict[str, Any]) -> dict[str, Any]:
    speeds = {name: [one["tokens"] / one["wall"] for one in each] for name, each in found.items()}
    medians = {name: statistics.median(each) for name, each in speeds.items()}
    # Within a round, the machine is in the same state for all sides.
    paired = {
        name: statistics.median(one / base for one, base in zip(each, speeds["sampler"], strict=True))
        for name, each in speeds.items()
        if name != "sampler"
    }
    return {
        "tokens_per_s": medians,
        "rounds": speeds,
        "share_of_sampler": paired,
        "settings": told,
        "machine": machine(),
        "python": platform.python_version(),
        "versions": find_versions(),
    }


def _show(result: dict[str, Any], told: dict[str, Any]) -> None:
    print(f"\nServing, {figures.describe_answers(told)}, {told['precision']}, {told['threads']} threads,")
    print(f"{told['clients']} clients, {told['rounds']} rounds in turns; {result['machine']}, {result['versions']}\n")
    for name, speed in result["tokens_per_s"].items():
        each, share = result["rounds"][name], result["share_of_sampler"].get(name)
        beside = "" if share is None else f"   {share:.2f} of the sampler in the same rounds"
        print(f"{name:<10}{speed:10,.0f} tokens/s ({min(each):,.0f} to {max(each):,.0f}){beside}")
    # The goal applies to a server with many clients.
    reached = result["share_of_sampler"]["qed serve"] >= GOAL
    print(f"qed serve {'reaches' if reached else 'does not reach'} {GOAL:g} of the sampler")


if __name__ == "__main__":
    main()
