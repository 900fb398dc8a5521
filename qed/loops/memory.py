"""What a sampler that shares the learner's device must know of the learner: the bytes that it takes there."""

from __future__ import annotations

from torch import nn

from qed.sampling.base import Sampler
from qed.sampling.device_memory import count_training_bytes, count_weight_bytes
from qed.training.learner import Learner


def reserve_training(sampler: Sampler, learner: Learner) -> None:
    """Tell a sampler that bounds its rows by memory what training takes beside the policy's weights.

    That is gradients, the optimizer's moments, a reference model, and the weights that a phase may go back to; whether
    or not they are there yet.
    """
    if not hasattr(sampler, "reserved"):
        return
    copies = [learner.reference] if isinstance(learner.reference, nn.Module) else []
    copies += [learner.model] if learner.algorithm.restarts_each_step else []
    sampler.reserved = count_training_bytes(learner.parameters, learner.settings) + sum(map(count_weight_bytes, copies))
