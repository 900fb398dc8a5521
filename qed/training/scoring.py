"""Scores tokens as the learner does, but without gradients or an algorithm, and in any precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from qed.errors import ModelError
from qed.models.families import split_head
from qed.models.fast_float32 import compute_batches_in
from qed.training.batch import Batch, collate, cut_microbatches
from qed.training.logps import compute_logps
from qed.training.out_of_memory import MicrobatchBudget
from qed.training.packing import cut_packed_microbatches, pack_batch
from qed.training.support import build_label_support
from qed.types import Rollout

SCORED_TOKENS = 16_384  # per forward pass, padding included; fewer if these do not fit
CHUNK_ROWS = 2048  # rows of logits whose log-softmax is computed at once
# Computes the log-probs of each row's output in a precision.
Score = Callable[[Sequence[Rollout], torch.dtype], list[tuple[float, ...]]]


def score_with(model: nn.Module, temperature: float, packing: bool = False, tokens: int = SCORED_TOKENS) -> Score:
    """Build a function that scores tokens with a model.

    Args:
        model: model on its device; every call uses its current weights.
        temperature: divides the logits.
        packing: compute packed rows, as a learner with `learner.packing` does.
        tokens: tokens per forward pass, padding included.
    """

    budget = MicrobatchBudget(tokens)

    @torch.no_grad()
    def score(rows: Sequence[Rollout], precision: torch.dtype) -> list[tuple[float, ...]]:
        parameter = next(model.parameters())
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        batch = collate(rows, dtype=dtype).to(parameter.device)
        cut = cut_packed_microbatches if packing else cut_microbatches

        def compute() -> list[tuple[float, ...]]:
            scored: list[tuple[float, ...]] = [()] * len(rows)
            for numbers in budget.watch(cut(batch, budget.tokens), batch):
                part = batch.select(numbers)
                with compute_batches_in(parameter.device.type, precision):
                    logps = _compute_part_logps(model, part, temperature, packing)
                for number, values, mask in zip(numbers, logps.cpu(), part.mask.bool().cpu(), strict=True):
                    scored[number] = tuple(values[mask].tolist())
            return scored

        return budget.repeat(compute)

    return score


def _compute_part_logps(model: nn.Module, part: Batch, temperature: float, packing: bool) -> Tensor:
    """Compute the log-probs of labels, [B, T]."""
    try:
        split_head(model)
    except ModelError:
        # The learner cannot train such a model, but it can be evaluated from its own logits.
        return _compute_from_logits(model, part, temperature)
    return compute_logps(model, part, temperature, pack_batch(part) if packing else None)[0]


def _compute_from_logits(model: nn.Module, part: Batch, temperature: float) -> Tensor:
    """Compute log-probs from the model's logits, one row at a time, because logits need much memory."""
    logps = torch.zeros_like(part.mask)
    for row, mask in enumerate(part.mask.bool()):
        inputs = part.inputs[row : row + 1, : int(part.attention[row].sum())]
        first, count = int(mask.long().argmax()), int(mask.sum())
        kept = inputs.shape[1] - first  # from the first trained label on; those between may not be trained
        logits = model(input_ids=inputs, use_cache=False, logits_to_keep=kept).logits[0, -kept:]
        logits = logits[mask[first : inputs.shape[1]]]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        support = build_label_support(part.support[row : row + 1], mask[None])
        if support is not None:
            support.hide(logits, slice(0, count), 0)
        logps[row, mask] = compute_label_logps(logits, part.labels[row, mask]).to(logps.dtype)
    return logps


@torch.no_grad()
def list_most_likely(
    model: nn.Module,
    prompt: Sequence[int],
    output: Sequence[int],
    temperature: float,
    count: int,
    precision: torch.dtype,
) -> list[list[tuple[int, float]]]:
    """Return the most likely tokens at each position of an output with their log-probs, most likely first."""
    device = next(model.parameters()).device
    inputs = torch.tensor([[*prompt, *output[:-1]]], device=device)
    with compute_batches_in(device.type, precision):
        logits = model(input_ids=inputs, use_cache=False, logits_to_keep=len(output)).logits[0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    values, tokens = logits.log_softmax(-1).topk(min(count, logits.shape[-1]))
    rows = zip(tokens.tolist(), values.tolist(), strict=True)
    return [list(zip(own_tokens, own_values, strict=True)) for own_tokens, own_values in rows]


def compute_label_logps(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute log softmax(logits)[label] in the shape of `labels`; in float32 for half-precision logits.

    Args:
        logits: [..., V].
        labels: [...] int64.
    """
    flat, column = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, 1)
    chunks = zip(torch.split(flat, CHUNK_ROWS), torch.split(column, CHUNK_ROWS), strict=True)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logps = [rows.to(dtype).log_softmax(-1).gather(-1, chosen) for rows, chosen in chunks]
    return torch.cat(logps).reshape(labels.shape)
