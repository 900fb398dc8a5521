"""The optimizer and its schedule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qed.settings import LearnerSettings


def make_optimizer(model: nn.Module, settings: LearnerSettings) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; weight decay on matrices only, not on norms and biases."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.lr, betas=settings.betas, fused=True)


def learning_rate(settings: LearnerSettings, step: int) -> float:
    """The learning rate of step 0, 1, …: a linear warm-up, then constant, or down to zero after the last step."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    done = min(1.0, done)
    return settings.lr * (1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as flat tensors, `parameter name/entry`, for a checkpoint."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{entry}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took out; moments go to their parameter's device."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, entry = key.rsplit("/", 1)
        parameter = parameters[name]
        optimizer.state[parameter][entry] = value.to(parameter.device).clone()
