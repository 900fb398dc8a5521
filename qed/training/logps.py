"""Token log-probs and entropy of a batch, fused with the output layer, without a [B, T, V] tensor.

Only positions with a trained label pass through the output layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qed.models.families import find_scalar_head, read_logit_transform, split_head
from qed.models.precision import read_compute_dtype
from qed.training.attention import compute_packed_states
from qed.training.batch import Batch
from qed.training.fused_divergence import OutputStates
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

    If the batch has a support, all three use the softmax over it. With right padding, the first token of a row has
    position 0, so absolute and rotary embeddings need no position ids. With a `layout` of the batch, rows are packed,
    which does not change the results. `into_grad` is for callers of `loss.backward()`, see `compute_linear_scores`. A
    model with a scalar head returns values in place of log-probs, and entropies of 0.
    """
    if find_scalar_head(model) is not None:
        (values,) = compute_values(model, batch, layout=layout)
        return values, torch.zeros_like(values), None
    labels = _read_labels(batch)
    states = compute_output_states(model, batch, layout)
    logps, entropy, log_squares = _score_states(states, labels, batch, temperature, squares, into_grad)
    return (
        _spread(logps, batch),
        _spread(entropy, batch),
        _spread(log_squares, batch) if squares else None,
    )


def compute_more_scores(
    model: nn.Module,
    batch: Batch,
    temperature: float,
    *,
    measure: Callable[[OutputStates], Tensor],
    layout: Layout | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log-probs, entropies and one more measure of the same output states for a loss, [B, T] each.

    Args:
        model: the policy.
        batch: batch of rows.
        temperature: divides the logits.
        measure: computes one number per trained label, [N], such as the divergence to a teacher.
        layout: layout of packed rows.
    """
    labels = _read_labels(batch)
    states = compute_output_states(model, batch, layout)
    logps, entropy, _ = _score_states(states, labels, batch, temperature, squares=False, into_grad=True)
    return _spread(logps, batch), _spread(entropy, batch), _spread(measure(states), batch)


def compute_values(
    model: nn.Module, batch: Batch, temperature: float = 1.0, *, layout: Layout | None = None
) -> tuple[Tensor]:
    """Compute the value of a model with a scalar head at each trained label, [B, T], 0 elsewhere.

    The value of a label is read at the input before it, so it does not depend on the label. The head computes at least
    in float32. `temperature` is ignored; it lets a learner call this in place of `compute_scores`.
    """
    return compute_trunk_values(model, batch, temperature, head=split_head(model)[1], layout=layout)


def compute_trunk_values(
    model: nn.Module, batch: Batch, temperature: float = 1.0, *, head: nn.Linear, layout: Layout | None = None
) -> tuple[Tensor]:
    """Compute a value head's values on a policy's trunk at each trained label, [B, T]; see `compute_values`."""
    return (_spread(apply_scalar_head(head, compute_states(model, batch, layout)), batch),)


def apply_scalar_head(head: nn.Linear, hidden: Tensor) -> Tensor:
    """Return the values of hidden states, [N] from [N, H], computed at least in float32."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    bias = None if head.bias is None else head.bias.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        return nn.functional.linear(hidden.to(dtype), head.weight.to(dtype), bias).squeeze(-1)


def _read_labels(batch: Batch) -> Tensor:
    """Return the trained labels, [N]; called before the layers, because this waits for the device's queued work."""
    return batch.labels[batch.mask.bool()]


def _score_states(
    states: OutputStates, labels: Tensor, batch: Batch, temperature: float, squares: bool, into_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return compute_linear_scores(
        states.hidden,
        states.weight,
        labels,
        temperature,
        states.bias,
        squares,
        into_grad,
        states.transform,
        build_label_support(batch.support, batch.mask.bool()),
    )


def _spread(values: Tensor, batch: Batch) -> Tensor:
    """Return the values of the trained labels as a column [B, T], 0 elsewhere."""
    # masked_scatter keeps the graph even without any trained label, so that a backward pass always works.
    blank = torch.zeros(batch.labels.shape, dtype=values.dtype, device=values.device)
    return blank.masked_scatter(batch.mask.bool(), values)


def compute_output_states(
    model: nn.Module, batch: Batch, layout: Layout | None = None, keep: bool = False
) -> OutputStates:
    """Compute the inputs of a model's output layer for a batch's trained labels.

    Args:
        model: causal language model.
        batch: batch of rows.
        layout: layout of packed rows.
        keep: copy the weights, because the model is sharded and gathers them only for this call.
    """
    _, head = split_head(model)
    weight, bias = (None if each is None else each.clone() if keep else each for each in (head.weight, head.bias))
    return OutputStates(compute_states(model, batch, layout), weight, bias, read_logit_transform(model))


def compute_states(model: nn.Module, batch: Batch, layout: Layout | None = None) -> Tensor:
    """Compute the last hidden states at the trained labels of a batch, [N, H], in the compute dtype."""
    body, _ = split_head(model)
    chosen = batch.mask.bool()
    if layout is not None:
        hidden = compute_packed_states(body, layout, layout.place[chosen])
    else:
        attention = None if bool(batch.attention.all()) else batch.attention
        hidden = body(input_ids=batch.inputs, attention_mask=attention, use_cache=False).last_hidden_state[chosen]
    # Autocast does not apply to a custom backward pass, so set the precision of both passes here.
    return hidden.to(read_compute_dtype(hidden))
