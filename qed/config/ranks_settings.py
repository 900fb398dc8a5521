"""The settings of a run of several ranks: what they share, and where a cluster starts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.config.settings import require


@dataclass(frozen=True)
class ParallelSettings:
    """How several ranks share a model; --ranks or torchrun sets their number."""

    shard: Literal["none", "grads", "full"] = "none"
    """What FSDP2 shards over the ranks: none; grads (gradients and optimizer state); full (the weights too)."""
    reduce: Literal["step", "microbatch"] = "step"
    """Sum sharded gradients once a step, or after each micro-batch, with less memory and more communication."""


@dataclass(frozen=True)
class ClusterSettings:
    """What a run places on the Ray cluster of --cluster, and how often it restarts."""

    learners: int = 0
    """Number of learners, one process each; 0: one per GPU of the cluster, or one per node if it has no GPUs."""
    max_failures: int = 3
    """How often the learners restart from the last checkpoint after one is lost or killed; likewise each server."""
    engines: int = 0
    """Inference servers besides the learners, native or vllm as sampling.sampler says; 0 samples in the learners."""
    gpus_per_engine: int = 1
    """GPUs of each inference server, if the learners have GPUs."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.learners >= 0, "cluster.learners must not be negative.")
        require(self.max_failures >= 0, "cluster.max_failures must not be negative.")
        require(self.engines >= 0, "cluster.engines must not be negative.")
        require(self.gpus_per_engine >= 0, "cluster.gpus_per_engine must not be negative.")
