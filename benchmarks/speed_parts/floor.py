"""The minimum time that the machine needs: its peak speed, and the amount of work."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from qed.models.precision import compute_in
from speed_parts.process import Figures

SECONDS = 0.5  # duration of each ceiling's measurement
BACKWARD = 2  # a backward pass multiplies twice as much as the forward pass


def ceilings(precision: str) -> dict[str, float]:
    """Measure this machine's peak per CPU second: multiplications of large matrices, and memory reads."""
    size, dtype = 1024, getattr(torch, precision)
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    memory = torch.ones(1 << 26)
    with compute_in("cpu", dtype):
        seconds = _seconds(lambda: nn.functional.linear(left, right))
    return {
        "gflop_per_cpu_s": 2 * size**3 / seconds / 1e9,
        "gb_per_cpu_s": 4 * len(memory) / _seconds(memory.sum) / 1e9,
    }


def _seconds(work: Callable[[], Any]) -> float:
    """Return the minimum CPU time that the work takes."""
    found, end = [], time.process_time() + SECONDS
    while time.process_time() < end or len(found) < 3:
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


class Floor:
    """The minimum work of a round, for a model of the Qwen2 family.

    Args:
        folder: folder with the model in `hf/`.
        rows: number of answers per round.
        tokens: number of tokens in all answers.
        prompts: number of tokens in all prompts, each counted once, because a group can share its prompt.
    """

    def __init__(self, folder: Path, rows: float, tokens: float, prompts: float) -> None:
        config = AutoConfig.from_pretrained(folder / "hf")
        self.layers, self.width = config.num_hidden_layers, config.hidden_size
        self.kv_width = 2 * config.num_key_value_heads * self.width // config.num_attention_heads
        self.feed_forward = 3 * self.width * config.intermediate_size  # of a layer
        self.blocks = self.layers * (self.width * (2 * self.width + self.kv_width) + self.feed_forward)
        self.head = config.vocab_size * self.width
        self.tokens, self.prompts, self.rows = tokens, prompts, rows

    def forward(self, prompt: float) -> float:
        """Return the operations of a forward pass with log-probs of the answers, each after `prompt` tokens."""
        attended = (prompt + self.tokens / self.rows / 2) * self.tokens
        # The last layer's output at a prompt is not used.
        through = 2 * self.blocks * (self.tokens + self.prompts) - 2 * self.feed_forward * self.prompts
        return through + 2 * self.head * self.tokens + 4 * self.layers * self.width * attended

    def moved(self, longest: float, bytes_each: int) -> float:
        """Return the bytes read by sampling: weights for every token of the longest answer, and keys and values."""
        behind = (self.prompts + self.tokens / 2) / self.rows
        numbers = (self.blocks + self.head) * longest + self.layers * self.kv_width * behind * self.tokens
        return bytes_each * numbers


def share(flops: float, ours: Figures, ceilings: Figures, moved: float = 0.0) -> Figures:
    """Return the floor in CPU seconds, the maximum of the multiplications' and of memory's, and qed's share of it."""
    by = {"by_gemm": flops / ceilings["gflop_per_cpu_s"] / 1e9, "by_memory": moved / ceilings["gb_per_cpu_s"] / 1e9}
    least = max(by.values())
    return {"cpu": least, **by, "gflop": flops / 1e9, "gb": moved / 1e9, "share": least / ours["cpu"], **ceilings}
