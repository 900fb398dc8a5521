"""Token log-probs and entropy of a batch, fused with the output layer: a [B, T, V] tensor is never made.

The hidden states of the positions that have a trained label, and no others, meet the output layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qed.models.families import read_logit_transform, split_head
from qed.training.attention import compute_packed_states
from qed.training.batch import Batch
from qed.training.fused_logps import compute_linear_scores
from qed.training.packing import Layout


def compute_logps(
    model: nn.Module, batch: Batch, temperature: float, layout: Layout | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probs of a batch's labels and the policy's entropy, [B, T] each, 0 where the mask is 0."""
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
    """The same with log sum_v p_v^2 as a third, which is None unless asked for and has no gradient.

    Positions follow from right padding: the first token of a row stands at 0, so absolute and rotary embeddings agree.
    With a `layout` of the batch its rows are computed without padding in one, which changes no number. `into_grad` is
    for callers of `loss.backward()`: see `linear_scores`.
    """
    body, head = split_head(model)
    chosen = batch.mask.bool()
    if layout is not None:
        hidden = compute_packed_states(body, layout).index_select(0, layout.place[chosen])
    else:
        attention = None if bool(batch.attention.all()) else batch.attention
        hidden = body(input_ids=batch.inputs, attention_mask=attention, use_cache=False).last_hidden_state[chosen]
    device = batch.inputs.device.type
    if torch.is_autocast_enabled(device):
        # Autocast does not reach into a backward pass written by hand, so both passes are given its precision here.
        hidden = hidden.to(torch.get_autocast_dtype(device))
    logps, entropy, log_squares = compute_linear_scores(
        hidden,
        head.weight,
        batch.labels[chosen],
        temperature,
        head.bias,
        squares,
        into_grad,
        read_logit_transform(model),
    )
    blank = torch.zeros(batch.labels.shape, dtype=logps.dtype, device=logps.device)
    # masked_scatter keeps the graph even where no label is chosen, so that a backward pass always works.
    return (
        blank.masked_scatter(chosen, logps),
        blank.masked_scatter(chosen, entropy),
        blank.masked_scatter(chosen, log_squares) if squares else None,
    )
