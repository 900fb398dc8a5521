"""Float32 copies of bfloat16 weights, the masters, which an optimizer updates in place of the weights.

Most updates are smaller than half the distance between two bfloat16 numbers, 2^-9 of the weight, so a weight that is
updated directly would not change at all. A master accumulates such small updates, and is rounded to the weight after
each update (mixed precision training, arXiv 1710.03740).

Gradients are accumulated in float32 too: each micro-batch adds a small part, and in bfloat16 a sum of n parts has a
relative error of about 2^-9 sqrt(n). Autograd does this once `grad_dtype` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from qed.models.weights import is_sharded

MASTER = "master"  # name of a master in an optimizer's state


def needs_master(parameter: Tensor) -> bool:
    """Return whether a trained weight is in half precision."""
    return parameter.dtype in (torch.bfloat16, torch.float16)


def accumulate_in_float32(parameters: Iterable[Tensor]) -> None:
    """Accumulate the gradients of half-precision weights in float32; FSDP handles sharded ones."""
    for parameter in filter(needs_master, parameters):
        if not is_sharded(parameter):
            parameter.grad_dtype = torch.float32


class MasterOptimizer(torch.optim.Optimizer):
    """Applies another optimizer to the masters of half-precision weights; other weights have no master.

    Args:
        groups: parameter groups, as for the other optimizer.
        build: builds the other optimizer from parameter groups.
    """

    def __init__(
        self, groups: list[dict[str, Any]], build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    ) -> None:
        weights = [weight for group in groups for weight in group["params"] if needs_master(weight)]
        self.masters: dict[Tensor, nn.Parameter] = {weight: nn.Parameter(weight.detach().float()) for weight in weights}
        self.inner = build([{**group, "params": [*map(self.get_updated, group["params"])]} for group in groups])
        super().__init__([dict(group) for group in groups], {"lr": self.inner.param_groups[0]["lr"]})

    def get_updated(self, weight: Tensor) -> Tensor:
        """Return the tensor that the other optimizer updates: the master of a weight, or the weight itself."""
        return self.masters.get(weight, weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every master whose weight has a gradient, drop the gradient, and round the master to the weight."""
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner["lr"] = group["lr"]
        for weight, master in self.masters.items():
            # Sharded gradients are in half precision; holding all of them in both would raise the step's peak memory.
            master.grad, weight.grad = None if weight.grad is None else weight.grad.to(master.dtype), None
        self.inner.step()
        for weight, master in self.masters.items():
            if master.grad is not None:
                weight.copy_(master)
                master.grad = None

    def list_states(self) -> dict[Tensor, dict[str, Any]]:
        """Return the state of each weight, with its master."""
        states: dict[Tensor, dict[str, Any]] = {weight: {MASTER: master} for weight, master in self.masters.items()}
        for group in self.param_groups:
            for weight in group["params"]:
                own = self.inner.state.get(self.get_updated(weight), {})
                if own:
                    states[weight] = states.get(weight, {}) | own
        return states

    @torch.no_grad()
    def restore(self, weight: Tensor, entry: str, value: Any) -> None:
        """Restore an entry of a weight's state, as `list_states` returned it."""
        if entry == MASTER:
            self.masters[weight].copy_(value)
        else:
            self.inner.state[self.get_updated(weight)][entry] = value

    @torch.no_grad()
    def reset(self) -> None:
        """Clear the state, and start from the current weights."""
        self.inner.state.clear()
        for weight, master in self.masters.items():
            master.copy_(weight)
