"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) by peft, injected into the model as it stands.

The weights of the model are frozen, and beside each chosen linear layer W learns B A of rank r, scaled by alpha / r.
With the adapters switched off the model is its own reference. A checkpoint holds the merged weights, which any program
loads, and the adapters in peft's own layout, from which a run goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qed.config.settings import ModelSettings
from qed.errors import ModelError, UsageError, nearest
from qed.models import qlora
from qed.randomness import seed_of

NAME = "default"  # peft's own name of a single adapter
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Without:
    """A model as it is without its adapters: the reference of a run that trains nothing else."""

    model: nn.Module

    def state_dict(self) -> dict[str, Tensor]:
        """The weights that the adapters leave as they are."""
        return {name: tensor for name, tensor in self.model.state_dict().items() if ".lora_" not in name}


def add(model: nn.Module, settings: ModelSettings, seed: int) -> nn.Module:
    """The model with fresh adapters, which change nothing yet; the same seed gives the same ones.

    Raises:
        UsageError: a layer to adapt is not in the model.
    """
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 -- takes seconds, and few runs have adapters

    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    targets = settings.lora_targets or tuple(sorted(linear))
    if unknown := [name for name in targets if name not in linear]:
        raise UsageError(
            f"model.lora_targets names {unknown[0]}, which is no linear layer of {settings.name}."
            f"{nearest(unknown[0], sorted(linear))} There are: {', '.join(sorted(linear))}."
        )
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha or 2 * settings.lora_rank,
        lora_dropout=0.0,
        target_modules=list(targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=settings.name,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "adapters"))
        adapted: nn.Module = inject_adapter_in_model(config, model)
    if settings.precision == "bfloat16":
        _narrow(adapted, head)
    return adapted


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has adapters."""
    return any(True for _ in _layers(model))


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """While it lasts the model computes without its adapters."""
    try:
        for _, layer in _layers(model):
            layer.enable_adapters(False)
        yield
    finally:
        for _, layer in _layers(model):
            # This makes the adapters trainable again too.
            layer.enable_adapters(True)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The weights that the model computes with, under the names that it has without adapters."""
    state = {name: tensor for name, tensor in qlora.in_full(model).items() if ".lora_" not in name}
    state = {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in state.items()}
    for name, layer in _layers(model):
        key = f"{name}.base_layer.weight"
        state[key] = state[key] + layer.get_delta_weight(NAME).to(state[key].dtype)
    return {name.replace(".base_layer.", "."): tensor for name, tensor in state.items()}


def save(model: Any, folder: Path) -> None:
    """Write the adapters in peft's own layout."""
    folder.mkdir(parents=True, exist_ok=True)
    model.peft_config[NAME].save_pretrained(folder)
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in _adapters(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@torch.no_grad()
def load(model: nn.Module, folder: Path) -> None:
    """Put the adapters of a folder into a model that has fresh ones.

    Raises:
        ModelError: they are not there, or of another shape.
    """
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} holds no adapters: there is no {WEIGHTS}.")
    found, wanted = load_file(folder / WEIGHTS), _adapters(model)
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found or name not in wanted or found[name].shape != wanted[name].shape:
            raise ModelError(f"The adapters of {folder} do not fit the model or its model.lora_ settings: {name}.")
        wanted[name].copy_(found[name])


def _narrow(model: nn.Module, head: nn.Module) -> None:
    """Hold the frozen linear layers in the precision that they are computed in: models are published in it, it is half
    the memory, and nothing is rounded anew for each product."""
    for module in model.modules():
        if type(module) is nn.Linear and module is not head and not module.weight.requires_grad:
            module.to(torch.bfloat16)


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that have adapters, with their names."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))


def _adapters(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' weights under the names that peft gives them in a file."""
    return {
        "base_model.model." + name.replace(f".{NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }
