"""Tells a sampler that shares the learner's device how much memory the learner needs there."""

from __future__ import annotations

from torch import nn

from qed.sampling.base import Sampler
from qed.sampling.device_memory import count_training_bytes, count_weight_bytes
from qed.training.learner import Learner


def reserve_training(sampler: Sampler, learner: Learner) -> None:
    """Set `sampler.reserved` to the bytes that training takes besides the policy's weights.

    These are gradients, optimizer moments, a reference model, and the initial weights that an algorithm may restore,
    whether or not they are allocated yet. Samplers without that attribute do not bound their batch by memory.
    """
    if not hasattr(sampler, "reserved"):
        return
    copies = [learner.reference] if isinstance(learner.reference, nn.Module) else []
    copies += [learner.model] if learner.algorithm.restarts_each_step else []
    sampler.reserved = count_training_bytes(learner.parameters, learner.settings) + sum(map(count_weight_bytes, copies))
