"""Optimizers and the learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from qed.config.settings import LearnerSettings
from qed.errors import UsageError
from qed.training.masters import MASTER, MasterOptimizer, accumulate_in_float32, needs_master
from qed.training.slices import Part, get_local, slice_like, take_rows, wrap_rows

# Elements of a moment per transfer: large enough for the full bandwidth of the bus, small compared to a model. Two
# chunks of two moments are on the device at a time, 128 MiB in float32.
CHUNK = 2**23
MOMENTS = ("exp_avg", "exp_avg_sq")


def make_optimizer(model: nn.Module, settings: LearnerSettings) -> torch.optim.Optimizer:
    """Build AdamW over the trainable parameters, with weight decay on matrices only, not on norms and biases.

    For half-precision weights it updates float32 masters, and their gradients are float32 from now on.

    Raises:
        UsageError: `adamw8bit` without the package bitsandbytes or without a CUDA device.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    split: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in split if group["params"]]
    accumulate_in_float32(trainable)
    if settings.optimizer == "adamw_offload":
        return OffloadedAdamW(groups, settings.lr, settings.betas)
    eight_bit = _import_bitsandbytes(trainable) if settings.optimizer == "adamw8bit" else None

    def build(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if eight_bit is None:
            return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True)
        made: torch.optim.Optimizer = eight_bit.AdamW8bit(groups, lr=settings.lr, betas=settings.betas)
        return made

    return MasterOptimizer(groups, build) if any(map(needs_master, trainable)) else build(groups)


class OffloadedAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) with its state in host memory; a step moves it to the device chunk by chunk.

    The state has the moments and, for half-precision weights, float32 masters. Of a sharded weight, each process
    updates its own shard. Updates and state names are those of `torch.optim.AdamW`, whose functional form it calls.

    Args:
        groups: parameter groups, each with its `weight_decay`; parameters are contiguous and stay on their device.
        lr: learning rate.
        betas: decay rates of the two moments.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8})
        device = self.param_groups[0]["params"][0].device
        count = 2 if device.type == "cuda" else 0
        # Each stream handles every other chunk: copy to the device, update, copy back. One copies while the other
        # computes. Operations of a stream run in order, so a stream can reuse the memory of its last chunk.
        self.streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter with a gradient; when it returns, the host may read the state."""
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))  # which computes the gradients
        streams = cycle(self.streams or [None])
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self._get_state(parameter)
                kept = [state[name] for name in (*MOMENTS, MASTER) if name in state]
                for chunk in _split_chunks(parameter, parameter.grad, *kept):
                    with torch.cuda.stream(next(streams)):
                        _update_weights(group, state["step"].item(), *chunk)
                state["step"] += 1
        for stream in self.streams:
            stream.synchronize()

    def _get_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter, created on the first call."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            names = (*MOMENTS, MASTER) if needs_master(parameter) else MOMENTS
            local = get_local(parameter)
            for name in names:
                state[name] = torch.zeros_like(local, dtype=dtype, device="cpu", pin_memory=local.is_cuda)
            if MASTER in state:
                state[MASTER].copy_(local)
        return state


def _split_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield corresponding chunks of tensors of the same shape; of sharded ones, only this process's shard."""
    local = [get_local(tensor) for tensor in tensors]
    if local[0].numel():  # a weight with fewer rows than there are processes leaves some shards empty
        yield from zip(*(tensor.view(-1).split(CHUNK) for tensor in local), strict=True)  # type: ignore[no-untyped-call]


def _update_weights(group: dict[str, Any], step: float, weights: Tensor, gradient: Tensor, *kept: Tensor) -> None:
    """Take an AdamW step on a chunk of weights, after `step` earlier ones.

    `kept` has both moments and, for half-precision weights, the master. They move to the device and back.
    """
    # Only CUDA streams guarantee that an asynchronous copy finishes before its use.
    fetched = [tensor.to(weights.device, non_blocking=weights.is_cuda) for tensor in kept]
    mean, square, updated = (*fetched, weights)[:3]
    adamw(
        [updated],
        [gradient.to(updated.dtype)],
        exp_avgs=[mean],
        exp_avg_sqs=[square],
        max_exp_avg_sqs=[],
        state_steps=[torch.full((), step, dtype=torch.float32, device=weights.device)],
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
    if updated is not weights:
        weights.copy_(updated)
    for tensor, new in zip(kept, fetched, strict=True):
        tensor.copy_(new, non_blocking=weights.is_cuda)  # a no-op if it is already on the device


def _import_bitsandbytes(parameters: list[nn.Parameter]) -> Any:
    """Import the optimizers of bitsandbytes, which require CUDA devices."""
    install = "pip install 'qed[8bit]' on a machine with one, or use learner.optimizer adamw_offload or adamw."
    try:
        import bitsandbytes  # noqa: PLC0415 -- an extra, which may be absent
    except ImportError as error:
        raise UsageError(
            f"learner.optimizer adamw8bit needs the package bitsandbytes, and a CUDA device: {install}"
        ) from error
    if not all(parameter.is_cuda for parameter in parameters):
        raise UsageError(
            f"learner.optimizer adamw8bit needs a CUDA device, but the model is on {parameters[0].device}: {install}"
        )
    return bitsandbytes.optim


def compute_learning_rate(settings: LearnerSettings, step: int) -> float:
    """Compute the learning rate of step 0, 1, …: linear warm-up, then constant or decaying to 0 after the last step."""
    warmup_steps = settings.count_warmup_steps()
    if step < warmup_steps:
        return settings.lr * (step + 1) / warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    done = (step - warmup_steps) / max(1, settings.steps - warmup_steps)
    done = min(1.0, done)
    return settings.lr * (1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def read_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Part]:
    """Return the optimizer's state as flat tensors, `parameter name/entry`, for a checkpoint; counts become int64."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    states = optimizer.list_states() if isinstance(optimizer, MasterOptimizer) else optimizer.state
    return {
        f"{names[parameter]}/{entry}": slice_like(value, parameter)
        if isinstance(value, Tensor)
        else torch.tensor(value)
        for parameter, state in states.items()
        for entry, value in state.items()
    }


@torch.no_grad()
def list_state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of the optimizer's state, each once; of sharded ones, this process's shards."""
    states = optimizer.list_states() if isinstance(optimizer, MasterOptimizer) else optimizer.state
    values = (value for state in states.values() for value in state.values() if isinstance(value, Tensor))
    return list({id(tensor): tensor for tensor in map(get_local, values)}.values())


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Part]) -> None:
    """Load what `read_optimizer_tensors` returned, for this optimizer or another with the same entries.

    Moments go to their parameter's device, or to host memory if the optimizer keeps them there. For a sharded parameter
    they may be complete or the rows of this rank.
    """
    parameters = dict(model.named_parameters())
    offloaded = isinstance(optimizer, OffloadedAdamW)
    for key, part in tensors.items():
        name, entry = key.rsplit("/", 1)
        parameter = parameters[name]
        value = take_rows(part, parameter)
        device = torch.device("cpu") if offloaded else parameter.device
        loaded = torch.empty_like(value, device=device, pin_memory=offloaded and parameter.is_cuda).copy_(value)
        if not offloaded:  # OffloadedAdamW works on the rows of each rank
            loaded = wrap_rows(loaded, parameter)
        # bitsandbytes counts steps in a Python int, which is the only integer in a checkpoint.
        restored = int(loaded) if value.dtype == torch.int64 else loaded
        if isinstance(optimizer, MasterOptimizer):
            optimizer.restore(parameter, entry, restored)
        else:
            optimizer.state[parameter][entry] = restored


def reset_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Clear the optimizer's state, and start from the current weights."""
    if isinstance(optimizer, MasterOptimizer):
        optimizer.reset()
    else:
        optimizer.state.clear()
