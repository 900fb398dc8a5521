"""Token log-probs and entropy of a batch, fused with the output layer, without a [B, T, V] tensor.

Only positions with a trained label pass through the output layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qed.models.families import read_logit_transform, split_head
from qed.training.attention import compute_packed_states
from qed.training.batch import Batch
from qed.training.fused_logps import compute_linear_scores
from qed.training.packing import Layout
from qed.training.support import build_label_support


def compute_logps(
    model: nn.Module, batch: Batch, temperature: float, layout: Layout | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the log-probs of a batch's labels and the policy's entropy, [B, T] each, 0 where the mask is 0."""
    logps, entropy, _ = compute_scores(model, batch, temperature, layout=layout)
    return logps, entropy


def compute_scores(
    model: nn.Module,
    batch: Batch,
    temperature: float,
    *,
    squares: bool = False,
    layout: Layout | None = None,
    into_grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute log-probs, entropies and log sum_v p_v^2; the latter has no gradient, and is None without `squares`.

    Where the batch has a support, all three are of the softmax over it. With right padding the first token of a row has
    position 0, so absolute and rotary embeddings need no position ids.
    With a `layout` of the batch the rows are packed, which does not change the results. `into_grad` is for callers of
    `loss.backward()`, see `compute_linear_scores`.
    """
    _, head = split_head(model)
    chosen = batch.mask.bool()
    hidden = compute_states(model, batch, layout)
    logps, entropy, log_squares = compute_linear_scores(
        hidden,
        head.weight,
        batch.labels[chosen],
        temperature,
        head.bias,
        squares,
        into_grad,
        read_logit_transform(model),
        build_label_support(batch.support, chosen),
    )
    blank = torch.zeros(batch.labels.shape, dtype=logps.dtype, device=logps.device)
    # masked_scatter keeps the graph even without any trained label, so that a backward pass always works.
    return (
        blank.masked_scatter(chosen, logps),
        blank.masked_scatter(chosen, entropy),
        blank.masked_scatter(chosen, log_squares) if squares else None,
    )


def compute_states(model: nn.Module, batch: Batch, layout: Layout | None = None) -> Tensor:
    """Compute the last hidden states at the trained labels of a batch, [N, H], in the precision of the computation."""
    body, _ = split_head(model)
    chosen = batch.mask.bool()
    if layout is not None:
        hidden = compute_packed_states(body, layout).index_select(0, layout.place[chosen])
    else:
        attention = None if bool(batch.attention.all()) else batch.attention
        hidden = body(input_ids=batch.inputs, attention_mask=attention, use_cache=False).last_hidden_state[chosen]
    device = batch.inputs.device.type
    # Autocast does not apply to a custom backward pass, so the precision of both passes is set here.
    return hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden
