"""Estimates the memory of a phase, and tells a sampler that shares the learner's device how much the learner needs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from torch import nn

from qed.config.phases import Settings
from qed.errors import QedError
from qed.models.load import is_new, load_outline
from qed.models.shapes import ModelShape, measure_shape
from qed.sampling.base import Sampler
from qed.sampling.device_memory import count_training_bytes, count_weight_bytes
from qed.training.critic import ValueLearner
from qed.training.learner import Learner
from qed.training.memory import Memory, SamplingPlan, StepPlan, estimate_sampling, estimate_training
from qed.training.value_head import OpenCritic


def reserve_training(sampler: Sampler, learner: Learner, critic: OpenCritic | None = None) -> None:
    """Set `sampler.reserved` to the bytes that training needs besides the policy's weights.

    These hold gradients, optimizer moments, a reference model, the initial weights that an algorithm may restore, and a
    critic, allocated or not. Samplers without that attribute do not limit their batch by memory.
    """
    if learner.settings.offload_for_sampling:
        learner.sleep()  # a resumed run may evaluate before its first update
    if not hasattr(sampler, "reserved"):
        return
    device = learner.parameters[0].device
    reference = learner.reference if isinstance(learner.reference, nn.Module) else None
    copies = [reference] if reference is not None and next(reference.parameters()).device == device else []
    copies += [learner.model] if learner.algorithm.restarts_each_step else []
    taken = count_training_bytes(learner.parameters, learner.settings) + sum(map(count_weight_bytes, copies))
    if isinstance(critic, ValueLearner) and not critic.offload:
        own = critic.learner
        taken += count_training_bytes(own.parameters, own.settings) + count_weight_bytes(own.model)
    if learner.parallel.shards:
        # The sampler reads complete weights, and the rank's shard stays allocated as well.
        taken = (taken + count_weight_bytes(learner.model)) // learner.parallel.world
    sampler.reserved = taken


def estimate_memory(
    shape: ModelShape, settings: Settings, prompt: int, reply: int, rows: int, device: str, ranks: int = 1
) -> tuple[Memory, Memory]:
    """Estimate the memory of a phase on each of its ranks, at the peaks of a learner's step and of sampling.

    Args:
        shape: shape of the model, with its adapters.
        settings: settings of the phase.
        prompt, reply: lengths of the longest prompt and the longest written reply, in tokens.
        rows: number of demonstrations or rollouts, all of which may be used in each step.
        device: type of the model's device, such as cpu.
        ranks: number of processes that train together.

    Returns:
        The memory of training and of sampling, each with the weights and all that stays allocated between steps.
    """
    step = plan_step(shape, settings, prompt, reply, rows, device, ranks)
    sampling, online = settings.sampling, settings.algorithm.online
    answers = sampling.problems_per_step * sampling.group_size if online else settings.evaluation.problems
    sampler = SamplingPlan(
        rows=min(sampling.rows_per_batch, -(-answers // ranks)),
        prompt=prompt,
        answer=sampling.max_tokens,
        group=sampling.group_size if online else 1,
        precision=settings.model.precision,
    )
    return estimate_training(shape, step), estimate_sampling(shape, sampler, step)


def plan_step(
    shape: ModelShape, settings: Settings, prompt: int, reply: int, rows: int, device: str, ranks: int = 1
) -> StepPlan:
    """Plan a learner's step from the settings, for `estimate_training`; arguments as in `estimate_memory`."""
    sampling, learner, model = settings.sampling, settings.learner, settings.model
    online = settings.algorithm.online
    # The last token of a row is only a label.
    longest = max(1, prompt + (sampling.max_tokens if online else reply) - 1)
    step_rows = sampling.problems_per_step * sampling.group_size if online else rows
    count = min(learner.batch_size, step_rows) if learner.batch_size else step_rows
    own = -(-count // ranks)  # rows of a rank
    tokens = max(longest, min(learner.tokens_per_microbatch, own * longest))
    dtype = "float64" if model.precision == "float64" else model.dtype
    algorithm = settings.algorithm
    # Otherwise the reference is the model without its adapters.
    separate = not shape.adapters or algorithm.reference_moves[0] > 0 or bool(algorithm.reference_name)
    reference = dtype if model.reference_dtype == "same" else model.reference_dtype
    return StepPlan(
        tokens=tokens,
        row=longest,
        microbatches=-(-own * longest // tokens),
        shared_prompts=online and learner.packing,
        checkpointing=model.gradient_checkpointing,
        optimizer=learner.optimizer,
        dtype=dtype,
        precision=model.precision,
        quantized=model.quantization != "none",
        copies=int(algorithm.restarts_each_step),
        reference=reference if algorithm.reference and separate else "",
        reference_weights=_count_named_weights(settings),
        critic=algorithm.value_model is not None and algorithm.value_model.trunk == "copy",
        critic_offload=algorithm.value_model is not None and algorithm.value_model.offload,
        divergence=algorithm.teacher_divergence is not None,
        reference_offload=model.reference_offload,
        offload_for_sampling=learner.offload_for_sampling,
        on_cpu=device == "cpu",
        kernels=device == "cuda" and learner.packing and not learner.compile,
        ranks=ranks,
        shard=settings.parallel.shard,
        reduce=settings.parallel.reduce,
    )


def _count_named_weights(settings: Settings) -> int:
    """Count the parameters of a teacher or another named reference model; return 0 if its config cannot be read.

    A missing file is reported when the model is loaded.
    """
    name = settings.algorithm.reference_name
    if not name or is_new(name):
        return 0
    with suppress(QedError):
        model, _ = load_outline(replace(settings.model, name=name, revision=""))
        return measure_shape(model).weights
    return 0
