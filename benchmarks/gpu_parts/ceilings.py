"""The peak performance of a card, and the minimum work of sampling and of an update."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpu_parts.shapes import Shape

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 22}
MATRIX = {"cuda": 8192, "cpu": 256}
REPEATS, BEST_OF = 10, 3
HALF = 2  # bytes of a weight, a key or a value in bfloat16


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_work(work: Callable[[], Any], device: torch.device) -> float:
    """Return the shortest time that the work takes, in seconds."""
    work()
    found = []
    for _ in range(BEST_OF):
        wait_for(device)
        began = time.perf_counter()
        for _ in range(REPEATS):
            work()
        wait_for(device)
        found.append((time.perf_counter() - began) / REPEATS)
    return min(found)


def measure_ceilings(device: torch.device) -> dict[str, float]:
    """Measure copies on the device, in bytes read and written per second, and bfloat16 matrix products, in FLOP/s."""
    source = torch.empty(COPY_BYTES[device.type], dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / time_work(lambda: target.copy_(source), device)
    size = MATRIX[device.type]
    # Random numbers, because multiplying zeros takes less power and is faster.
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    products = 2 * size**3 / time_work(lambda: left @ right, device)
    return {"bytes_per_s": copied, "flop_per_s": products}


@dataclass(frozen=True)
class Work:
    """The minimum work of a step: every prompt is computed once per group, and logits only for answers."""

    shape: Shape

    @property
    def blocks(self) -> int:
        """The weights of all layers' linear projections."""
        shape = self.shape
        kv_width = 2 * shape.kv_heads * (shape.width // shape.heads)
        return shape.layers * shape.width * (2 * shape.width + kv_width + 3 * shape.inner)

    @property
    def head(self) -> int:
        """The weights of the output layer."""
        return self.shape.width * self.shape.vocabulary

    @property
    def rows(self) -> int:
        """The answers of a step."""
        return self.shape.problems * self.shape.group

    @property
    def tokens(self) -> int:
        """The tokens of a step's answers."""
        return self.rows * self.shape.answer

    def count_forward(self) -> int:
        """Count the operations of a forward pass over a step with log-probs of its answers."""
        shape = self.shape
        computed = shape.problems * shape.prompt + self.tokens
        seen = shape.problems * shape.prompt**2 // 2 + self.tokens * (shape.prompt + shape.answer // 2)
        return 2 * self.blocks * computed + 2 * self.head * self.tokens + 4 * shape.layers * shape.width * seen

    def count_update(self) -> int:
        """Count the operations of forward and backward; with adapters, the base weights have no gradients."""
        return (2 if self.shape.lora else 3) * self.count_forward()

    def count_sampled_bytes(self) -> int:
        """Count the minimum bytes that sampling reads: in each step, all weights, and the keys and values so far.

        The answers of a group share the keys and values of their prompt.
        """
        shape = self.shape
        of_token = 2 * HALF * shape.layers * shape.kv_heads * (shape.width // shape.heads)
        cached = self.rows * shape.answer * (shape.answer - 1) // 2 + shape.problems * shape.prompt * shape.answer
        return shape.answer * HALF * (self.blocks + self.head) + cached * of_token

    def find_sampling_floor(self, ceilings: dict[str, float]) -> float:
        """Return the minimum seconds that sampling takes: memory reads, and the multiplications of the prompts."""
        prefill = 2 * self.blocks * self.shape.problems * self.shape.prompt
        return self.count_sampled_bytes() / ceilings["bytes_per_s"] + prefill / ceilings["flop_per_s"]
