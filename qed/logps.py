"""Token log-probs and entropy, fused with the output layer and chunked: a [B, T, V] tensor is never made.

The hidden states of the positions that have a trained label are multiplied with the output layer a chunk at a time; the
backward pass makes each chunk's logits again. Memory is one chunk by the vocabulary. Related: arXiv 2411.09009,
2410.10989.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qed.batch import Batch
from qed.errors import ModelError
from qed.packing import packed_states

# A chunk's logits in float32 take 64 MiB at most, whatever the vocabulary.
CHUNK_ELEMENTS = 1 << 24


class _LinearLogps(torch.autograd.Function):
    """log softmax((h W^T + b) / temperature)[label], its entropy and, where asked for, log sum_v p_v^2, by chunks.

    With p the softmax and H the entropy: d logp / dz_j = 1[j = y] - p_j and dH / dz_j = -p_j (log p_j + H). The sum of
    squares has no gradient, and is empty where it was not asked for.
    """

    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        temperature: float,
        squares: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logps, entropies, log_squares = [], [], [hidden.new_zeros(0)]
        narrow = weight.to(hidden.dtype)
        for rows in _chunks(hidden, weight):
            logits = _logits(hidden[rows], narrow, bias, temperature)
            normaliser = logits.logsumexp(-1)
            logps.append(logits.gather(-1, labels[rows, None]).squeeze(-1) - normaliser)
            entropies.append(normaliser - ((logits - normaliser[:, None]).exp() * logits).sum(-1))
            if squares:
                log_squares.append((2 * (logits - normaliser[:, None])).logsumexp(-1))
        context.save_for_backward(hidden, weight, bias, labels)
        context.temperature = temperature
        found = torch.cat(log_squares)
        context.mark_non_differentiable(found)
        return torch.cat(logps), torch.cat(entropies), found

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, bias, labels = context.saved_tensors
        of_logps, of_entropy, _ = gradients
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight) if context.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and context.needs_input_grad[2] else None
        with_entropy = bool(of_entropy.any())
        narrow = weight.to(hidden.dtype)
        for rows in _chunks(hidden, weight):
            log_probs = _logits(hidden[rows], narrow, bias, context.temperature).log_softmax(-1)
            probs = log_probs.exp()
            d_logits = probs * -of_logps[rows, None]
            d_logits.scatter_add_(-1, labels[rows, None], of_logps[rows, None])
            if with_entropy:
                entropy = -(probs * log_probs).sum(-1, keepdim=True)
                d_logits -= of_entropy[rows, None] * probs * (log_probs + entropy)
            d_logits /= context.temperature
            d_hidden[rows] = d_logits.to(hidden.dtype) @ narrow
            if d_weight is not None:
                # Accumulated in the weight's own precision: rounding each chunk would bias the update.
                d_weight.addmm_(d_logits.T.to(d_weight.dtype), hidden[rows].to(d_weight.dtype))
            if d_bias is not None:
                d_bias += d_logits.sum(0).to(d_bias.dtype)
        return d_hidden, d_weight, d_bias, None, None, None


def linear_logps(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float = 1.0, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probs of labels and entropies from hidden states and an output layer.

    Args:
        hidden: [N, H].
        weight: [V, H].
        labels: [N] int64.
        temperature: divides the logits.
        bias: [V] or None.

    Returns:
        two [N] tensors in float32, or float64 where the hidden states are.
    """
    logps, entropy, _ = linear_scores(hidden, weight, labels, temperature, bias)
    return logps, entropy


def linear_scores(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    squares: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with log sum_v p_v^2 as a third, without a gradient; it is empty unless asked for."""
    logps, entropy, log_squares = _LinearLogps.apply(hidden, weight, bias, labels, temperature, squares)
    return logps, entropy, log_squares


def response_logps(model: nn.Module, batch: Batch, temperature: float, packing: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probs of a batch's labels and the policy's entropy, [B, T] each, 0 where the mask is 0."""
    logps, entropy, _ = response_scores(model, batch, temperature, packing=packing)
    return logps, entropy


def response_scores(
    model: nn.Module, batch: Batch, temperature: float, *, squares: bool = False, packing: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same with log sum_v p_v^2 as a third, which is None unless asked for and has no gradient.

    Positions follow from right padding: the first token of a row stands at 0, so absolute and rotary embeddings agree.
    With `packing` short rows are computed side by side in one, which changes no number.
    """
    body, head = decoder_and_head(model)
    chosen = batch.mask.bool()
    hidden = packed_states(body, batch, chosen) if packing else None
    if hidden is None:
        attention = None if bool(batch.attention.all()) else batch.attention
        hidden = body(input_ids=batch.inputs, attention_mask=attention, use_cache=False).last_hidden_state[chosen]
    device = batch.inputs.device.type
    if torch.is_autocast_enabled(device):
        # Autocast does not reach into a backward pass written by hand, so both passes are given its precision here.
        hidden = hidden.to(torch.get_autocast_dtype(device))
    logps, entropy, log_squares = linear_scores(
        hidden, head.weight, batch.labels[chosen], temperature, head.bias, squares
    )
    blank = torch.zeros(batch.labels.shape, dtype=logps.dtype, device=logps.device)
    # masked_scatter keeps the graph even where no label is chosen, so that a backward pass always works.
    return (
        blank.masked_scatter(chosen, logps),
        blank.masked_scatter(chosen, entropy),
        blank.masked_scatter(chosen, log_squares) if squares else None,
    )


def decoder_and_head(model: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """The body of a causal language model and its output layer, whose logits must be a plain linear map."""
    config = getattr(model, "config", None)
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ModelError(
                f"The model transforms its logits ({name}), which qed cannot train yet; Qwen and Llama do not."
            )
    head = model.get_output_embeddings()  # type: ignore[operator]
    prefix = getattr(model, "base_model_prefix", "model")
    body = getattr(model, prefix, None)
    if not isinstance(head, nn.Linear) or not isinstance(body, nn.Module):
        raise ModelError(f"{type(model).__name__} is no causal language model with a linear output layer.")
    return body, head


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = hidden @ weight.T
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    if bias is not None:
        logits = logits + bias
    return logits if temperature == 1.0 else logits / temperature


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // len(weight))
    return [slice(start, start + size) for start in range(0, max(1, len(hidden)), size)]
