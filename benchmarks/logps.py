"""Memory and time of log-probs and their backward pass with a large vocabulary, against TRL and the full logits.

    python benchmarks/logps.py [--against trl] [--tokens 2048 --vocabulary 151936 --width 256] [--rounds 5]

Each method runs in a separate process, to measure its own peak memory; the methods take turns. Extra memory is
what a process holds at its peak beyond the weight, its gradient and the hidden states, which exist before, as in the
second micro-batch of a step. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from grading_parts.card import machine
from results import add_json, print_result
from torch import Tensor
from torch.nn.functional import linear

from qed.training.fused_logps import compute_linear_scores

Way = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
MIB = 2**20


def main() -> None:
    """Run every method in turns, print the table, then one line of JSON."""
    asked = _parser().parse_args()
    if asked.way:
        print(json.dumps(_measure(asked)))
        return
    names = [name for name in WAYS if not name.startswith("trl") or asked.against == "trl"]
    if asked.against == "trl" and find_spec("trl") is None:
        sys.exit("TRL is not installed: omit --against, or install the version to compare with.")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(asked.rounds):
        for name in names:
            print(f"round {turn + 1} of {asked.rounds}: {name}", file=sys.stderr, flush=True)
            runs[name].append(_alone(name))
    figures = _figures(asked, runs)
    _show(figures)
    print_result(figures, asked.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json(parser)
    parser.add_argument("--against", choices=("trl",), help="also measure TRL's methods, if TRL is installed")
    parser.add_argument("--tokens", type=int, default=2048, help="trained tokens per micro-batch")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=256, help="width of the hidden states")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="precision of matrix products"
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes per method")
    parser.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    return parser


def _ours(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute as the learner does: the weight's gradient is accumulated in place."""
    hidden = hidden.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else hidden
    logps, entropy, _ = compute_linear_scores(hidden, weight, labels, into_grad=True)
    return logps, entropy


def _whole(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log_softmax of all logits, and the entropy without gradient."""
    log_probs = linear(hidden, weight).float().log_softmax(-1)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, labels[:, None]).squeeze(-1), entropy


def _trl_selective(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute TRL's selective_log_softmax of all logits, and entropy_from_logits."""
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax  # noqa: PLC0415 -- only in its process

    logits = linear(hidden, weight)[None]
    with torch.no_grad():
        entropy = entropy_from_logits(logits)[0]
    return selective_log_softmax(logits, labels[None])[0], entropy


def _trl_fused(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute with TRL's replacement of a model's output layer, with the outputs that GRPO requests."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction  # noqa: PLC0415 -- only this method's process
    from trl.trainer import utils  # noqa: PLC0415 -- only this method's process

    size = utils._CHUNKED_LOGPROB_CHUNK_SIZE
    outputs = ("log_probs", "entropy")
    logps, entropy, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, labels, 1.0, size, None, 1.0, outputs)
    return logps, entropy


WAYS: dict[str, Way] = {
    "qed": _ours,
    "whole logits": _whole,
    "trl selective_log_softmax": _trl_selective,
    "trl fused": _trl_fused,
}


def _alone(name: str) -> dict[str, float]:
    """Return one method's figures, measured in a separate process."""
    command = [sys.executable, *sys.argv, "--way", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} ended with exit code {done.returncode}; -9 means that the machine ran out of memory.")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measure(asked: argparse.Namespace) -> dict[str, float]:
    """Measure the peak memory, time and sums of one method in this process."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    way, half = WAYS[asked.way], asked.precision == "bfloat16"
    _step(way, *_inputs(8, 64, 8), half)  # imports and first calls do not count as extra memory
    inputs = _inputs(asked.tokens, asked.vocabulary, asked.width)
    before = _now()
    wall, processor = time.perf_counter(), time.process_time()
    logps, entropy = _step(way, *inputs, half)
    hidden, weight, *_ = inputs
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "extra_mib": (_peak() - before) / MIB,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - processor,
        "logps": float(logps.detach().sum()),
        "entropy": float(entropy.detach().sum()),
        "d_hidden": float(hidden.grad.norm()),
        "d_weight": float(weight.grad.norm()),
    }


def _inputs(tokens: int, vocabulary: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden states, the weight with an existing gradient, labels, and the gradient of the log-probs.

    The gradients are filled, because memory becomes resident only when it is written to.
    """
    torch.manual_seed(0)
    weight = (torch.randn(vocabulary, width) * 0.02).requires_grad_()
    weight.grad = torch.zeros_like(weight).fill_(0.0)
    hidden = torch.randn(tokens, width).requires_grad_()
    hidden.grad = torch.zeros_like(hidden).fill_(0.0)
    return hidden, weight, torch.randint(0, vocabulary, (tokens,)), torch.randn(tokens)


def _step(
    way: Way, hidden: Tensor, weight: Tensor, labels: Tensor, factors: Tensor, half: bool
) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        logps, entropy = way(hidden, weight, labels)
    (logps * factors).sum().backward()
    return logps, entropy


def _now() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _figures(asked: argparse.Namespace, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    ways = {
        name: {key: median(run[key] for run in own) for key in own[0]}
        | {"spread_mib": max(run["extra_mib"] for run in own) - min(run["extra_mib"] for run in own)}
        for name, own in runs.items()
    }
    ours, size = ways["qed"], {name: getattr(asked, name) for name in ("tokens", "vocabulary", "width", "precision")}
    ratios = {
        name: {key: ours[key] / own[key] for key in ("extra_mib", "cpu", "wall")}
        for name, own in ways.items()
        if name != "qed"
    }
    return {**size, "rounds": asked.rounds, "machine": machine(), "torch": torch.__version__, "ways": ways} | {
        "ours_over": ratios,
        "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),
        "logits_mib": asked.tokens * asked.vocabulary * 4 / MIB,
    }


def _show(figures: dict[str, Any]) -> None:
    print(
        f"\n{figures['machine']}, torch {figures['torch']}, {figures['threads']} threads, {figures['precision']}\n"
        f"{figures['tokens']:,} tokens, vocabulary {figures['vocabulary']:,}, width {figures['width']}: the logits in "
        f"float32 take {figures['logits_mib']:,.0f} MiB; medians of {figures['rounds']}\n"
    )
    print(f"{'':<28}{'extra MiB':>12}{'qed / it':>12}{'CPU s':>10}{'qed / it':>12}{'wall s':>10}")
    for name, own in figures["ways"].items():
        ratio = figures["ours_over"].get(name, {"extra_mib": 1.0, "cpu": 1.0})
        print(
            f"{name:<28}{own['extra_mib']:>12,.0f}{ratio['extra_mib']:>12.3f}"
            f"{own['cpu']:>10.1f}{ratio['cpu']:>12.2f}{own['wall']:>10.1f}"
        )


if __name__ == "__main__":
    main()
