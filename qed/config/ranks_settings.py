"""The settings of a run of several ranks: what they share, and where a cluster starts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.config.settings import require


@dataclass(frozen=True)
class ParallelSettings:
    """How several ranks share a model; their number is that of --ranks or of torchrun."""

    shard: Literal["none", "grads", "full"] = "none"
    """What FSDP2 spreads over the ranks: none; grads (gradients and optimizer state); full (the weights too)."""
    reduce: Literal["step", "microbatch"] = "step"
    """When sharded gradients are summed: once a step, or after each micro-batch: less memory, more communication."""


@dataclass(frozen=True)
class ClusterSettings:
    """What a run places on the Ray cluster of --cluster, and how often it starts again."""

    learners: int = 0
    """Learners, one process each; 0 takes one per GPU of the cluster, or one per node where it has none."""
    max_failures: int = 3
    """How often the learners start again from the last checkpoint after one was lost or killed; a server likewise."""
    engines: int = 0
    """Inference servers beside the learners, native or vllm by sampling.sampler; 0 samples in the learners."""
    gpus_per_engine: int = 1
    """GPUs of each of these servers, if the learners have GPUs."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.learners >= 0, "cluster.learners must not be negative.")
        require(self.max_failures >= 0, "cluster.max_failures must not be negative.")
        require(self.engines >= 0, "cluster.engines must not be negative.")
        require(self.gpus_per_engine >= 0, "cluster.gpus_per_engine must not be negative.")
