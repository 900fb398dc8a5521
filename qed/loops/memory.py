"""Estimates the memory of a phase, and tells a sampler that shares the learner's device how much the learner needs."""

from __future__ import annotations

from typing import Any

from torch import nn

from qed.config.phases import Settings
from qed.guards import preflight_rules as rules
from qed.sampling.base import Sampler
from qed.sampling.device_memory import count_training_bytes, count_weight_bytes
from qed.training.learner import Learner


def reserve_training(sampler: Sampler, learner: Learner) -> None:
    """Set `sampler.reserved` to the bytes that training takes besides the policy's weights.

    These are gradients, optimizer moments, a reference model, and the initial weights that an algorithm may restore,
    whether or not they are allocated yet. Samplers without that attribute do not bound their batch by memory.
    """
    if learner.settings.offload_for_sampling:
        learner.sleep()  # a resumed run may evaluate before its first update
    if not hasattr(sampler, "reserved"):
        return
    device = learner.parameters[0].device
    reference = learner.reference if isinstance(learner.reference, nn.Module) else None
    copies = [reference] if reference is not None and next(reference.parameters()).device == device else []
    copies += [learner.model] if learner.algorithm.restarts_each_step else []
    sampler.reserved = count_training_bytes(learner.parameters, learner.settings) + sum(map(count_weight_bytes, copies))


def measure_shape(model: Any) -> rules.Shape:
    """Return the sizes of a model that decide its memory; a model on the meta device has them too."""
    config = model.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return rules.Shape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        keys=2 * head * (getattr(config, "num_key_value_heads", None) or config.num_attention_heads),
        weights=sum(parameter.numel() for parameter in model.parameters()),
        trained=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
    )


def estimate_memory(
    shape: rules.Shape, settings: Settings, prompt: int, reply: int, rows: int, copies: int
) -> tuple[int, int]:
    """Estimate the bytes that a phase needs besides the weights: for its longest micro-batch, and for its KV cache.

    Args:
        shape: of the model.
        settings: of the phase.
        prompt, reply: the tokens of the longest prompt and of the longest written reply.
        rows: the demonstrations or rollouts of a phase that takes all of them in each step.
        copies: frozen copies of the weights, for a reference model.
    """
    sampling, learner = settings.sampling, settings.learner
    online = settings.algorithm.online
    longest = prompt + (sampling.max_tokens if online else reply)
    count = learner.batch_size or (sampling.problems_per_step * sampling.group_size if online else rows)
    tokens = max(longest, min(learner.tokens_per_microbatch, count * longest))
    moments = {"adamw": 2, "adamw_offload": 0}.get(learner.optimizer, 1)
    training = rules.estimate_training_bytes(shape, tokens, moments, copies, settings.model.gradient_checkpointing)
    sequences = min(sampling.rows_per_batch, count) if online else 0
    return training, rules.estimate_sampling_bytes(shape, sequences, longest)
