"""Computes the scores of a micro-batch that a loss reads, including a teacher's contribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from qed.algorithms.base import Algorithm
from qed.models.families import require_known_logits, split_head
from qed.models.lora import AdapterDisabled, disable_adapters
from qed.training.attention import supports_packing
from qed.training.batch import Batch
from qed.training.flops import FlopCounter
from qed.training.fused_divergence import OutputStates, compute_linear_divergence
from qed.training.logps import apply_scalar_head, compute_more_scores, compute_output_states, compute_scores
from qed.training.offload import lend_device
from qed.training.packing import Layout, pack_batch
from qed.training.parallel import call_scores


def can_pack_teacher(teacher: nn.Module, policy: nn.Module) -> bool:
    """Return whether a teacher can compute packed rows if the policy can; tested unless both have the same family.

    Raises:
        ModelError: it is unknown how the teacher computes logits from hidden states.
    """
    body, own = split_head(teacher)[0], split_head(policy)[0]
    if type(body) is type(own):
        return True
    with lend_device(teacher, next(policy.parameters()).device):
        require_known_logits(teacher)
        return supports_packing(body)


def compute_part_scores(
    model: nn.Module,
    algorithm: Algorithm,
    part: Batch,
    temperature: float,
    layout: Layout | None,
    observe: Callable[[Batch], OutputStates],
    value_head: nn.Linear | None = None,
) -> tuple[Tensor, Tensor, Batch]:
    """Compute log-probs and entropies with gradients; return them with the part, extended by what the algorithm reads.

    Args:
        model: the policy; for a critic or a reward model see `compute_scores`.
        algorithm: determines whether `log_squares` or the divergence to a teacher is needed.
        part: the micro-batch.
        temperature: divides the logits.
        layout: layout of packed rows; None for padded ones.
        observe: computes the teacher's output states for the micro-batch; called if the divergence is needed.
        value_head: value head of a critic on the model's trunk; None without one.
    """
    score_more = partial(call_scores, model, compute_more_scores, part, temperature, layout=layout)
    if value_head is not None:
        logps, entropy, predicted = score_more(measure=lambda states: apply_scalar_head(value_head, states.hidden))
        return logps, entropy, replace(part, predicted=predicted)
    if algorithm.teacher_divergence is not None:
        measure = partial(
            compute_linear_divergence,
            teacher=observe(part),
            temperature=temperature,
            into_grad=True,
            **algorithm.teacher_divergence._asdict(),
        )
        logps, entropy, divergence = score_more(measure=measure)
        return logps, entropy, replace(part, divergence=divergence)
    logps, entropy, log_squares = call_scores(
        model, compute_scores, part, temperature, squares=algorithm.log_squares, layout=layout, into_grad=True
    )
    return logps, entropy, part if log_squares is None else replace(part, log_squares=log_squares)


@torch.no_grad()
def observe_teacher(
    teacher: nn.Module | AdapterDisabled, part: Batch, device: torch.device, packing: bool, sharded: bool
) -> OutputStates:
    """Compute a teacher's output states at a micro-batch's trained labels, given the prompts that it sees.

    Args:
        teacher: a frozen model, which may stay on the host, the policy itself, or the policy without its adapters.
        part: the micro-batch.
        device: device of the computation.
        packing: whether rows are packed.
        sharded: whether the ranks share the teacher's weights.
    """
    if isinstance(teacher, AdapterDisabled):
        with disable_adapters(teacher.model):
            return observe_teacher(teacher.model, part, device, packing, sharded)
    seen = part if part.teacher is None else part.teacher
    layout = pack_batch(seen) if packing else None
    # A model on the host takes its weights back, and a sharded one frees them, before the states are used.
    gone = sharded or next(teacher.parameters()).device != device
    with lend_device(teacher, device):
        return call_scores(teacher, compute_output_states, seen, layout, keep=gone)


@torch.no_grad()
def count_teacher(flops: FlopCounter, algorithm: Algorithm, teacher: nn.Module | AdapterDisabled, batch: Batch) -> None:
    """Count the operations of a teacher's pass over a step's rows, if the algorithm reads a divergence to it."""
    if algorithm.teacher_divergence is not None:
        network = teacher.model if isinstance(teacher, AdapterDisabled) else teacher
        flops.add(network, batch if batch.teacher is None else batch.teacher)
