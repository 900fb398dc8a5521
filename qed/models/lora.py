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
from qed.errors import ModelError, UsageError, suggest_nearest
from qed.models import qlora
from qed.models.families import split_head
from qed.randomness import derive_seed

NAME = "default"  # peft's own name of a single adapter
STACKED = "parameter_name"  # what peft calls the parameter that is adapted, where it is not the weight of a layer
EXPERTS = "experts"  # in model.lora_targets: the stacked experts of a mixture
EXPERT_DIMENSIONS = 3
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class AdapterDisabled:
    """A model as it is without its adapters: the reference of a run that trains nothing else."""

    model: nn.Module

    def state_dict(self) -> dict[str, Tensor]:
        """The weights that the adapters leave as they are."""
        return {name: tensor for name, tensor in self.model.state_dict().items() if ".lora_" not in name}


def add_adapters(model: nn.Module, settings: ModelSettings, seed: int) -> nn.Module:
    """The model with fresh adapters, which change nothing yet; the same seed gives the same ones.

    Raises:
        UsageError: a layer to adapt is not in the model.
    """
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 -- takes seconds, and few runs have adapters

    modules, stacks = find_targets(model, settings)
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha or 2 * settings.lora_rank,
        lora_dropout=0.0,
        target_modules=modules,
        target_parameters=stacks or None,
        task_type="CAUSAL_LM",
        base_model_name_or_path=settings.name,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "adapters"))
        adapted: nn.Module = inject_adapter_in_model(config, model)
    if settings.precision == "bfloat16":
        hold_frozen(adapted, torch.bfloat16)
    return adapted


def find_targets(model: nn.Module, settings: ModelSettings) -> tuple[list[str], list[str]]:
    """Find what is adapted: the names of linear layers, and those of stacked experts where `experts` is asked for.

    Raises:
        UsageError: a layer to adapt is not in the model.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head}
    inside = {name for name in linear if _is_inside(model, name)}
    leaves, stacks = {_leaf(name) for name in inside}, sorted({_leaf(name) for name in list_expert_stacks(model)})
    known = sorted({*leaves, EXPERTS} if stacks else leaves)
    if not known:
        raise UsageError(
            f"{settings.name} ({type(model).__name__}) has no linear layers that adapters can be added to. Train its "
            "weights with model.lora_rank 0, or take another model."
        )
    targets = set(settings.lora_targets) or leaves
    if unknown := sorted(targets - set(known)):
        raise UsageError(
            f"model.lora_targets names {unknown[0]}, which is no linear layer of {settings.name}."
            f"{suggest_nearest(unknown[0], known)} There are: {', '.join(known)}."
        )
    # In a model with a part for images, whose layers have the same names, only those of its text part are meant.
    found = targets & leaves if linear == inside else {name for name in inside if _leaf(name) in targets}
    return sorted(found), stacks if EXPERTS in targets else []


def list_expert_stacks(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of a model's experts, one tensor [experts, ., .] for all of a layer, by their names."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == EXPERT_DIMENSIONS and _is_inside(model, name)
    }


def compute_unadapted_share(model: nn.Module) -> float:
    """Return the share of an adapted model's weights that lies in experts without adapters; 0 where all have some."""
    adapted = {
        f"{_strip_prefix(name)}.{layer.parameter_name}"
        for name, layer in _list_layers(model)
        if hasattr(layer, STACKED)
    }
    left = sum(stack.numel() for name, stack in list_expert_stacks(model).items() if _strip_prefix(name) not in adapted)
    return left / sum(one.numel() for name, one in model.named_parameters() if ".lora_" not in name)


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has adapters."""
    return any(True for _ in _list_layers(model))


@contextmanager
def disable_adapters(model: nn.Module) -> Iterator[None]:
    """While it lasts the model computes without its adapters."""
    try:
        for _, layer in _list_layers(model):
            layer.enable_adapters(False)
        yield
    finally:
        for _, layer in _list_layers(model):
            # This makes the adapters trainable again too.
            layer.enable_adapters(True)


def merge_adapters(model: nn.Module) -> dict[str, Tensor]:
    """The weights that the model computes with, under the names that it has without adapters."""
    state = {name: tensor for name, tensor in qlora.dequantize(model).items() if ".lora_" not in name}
    state = {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in state.items()}
    state = {_strip_prefix(name): tensor for name, tensor in state.items()}
    for name, layer in _list_layers(model):
        key = f"{_strip_prefix(name)}.{getattr(layer, STACKED, 'weight')}"
        state[key] = state[key] + layer.get_delta_weight(NAME).to(state[key].dtype)
    # An output layer that has its own copy of the embedding's weight shares it again in a file.
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", {})
    return state | {target: state[source] for target, source in tied.items() if source in state}


def save_adapters(model: Any, folder: Path) -> None:
    """Write the adapters in peft's own layout."""
    folder.mkdir(parents=True, exist_ok=True)
    model.peft_config[NAME].save_pretrained(folder)
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in _list_adapters(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@torch.no_grad()
def load_adapters(model: nn.Module, folder: Path) -> None:
    """Put the adapters of a folder into a model that has fresh ones.

    Raises:
        ModelError: they are not there, or of another shape.
    """
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} holds no adapters: there is no {WEIGHTS}.")
    found, wanted = load_file(folder / WEIGHTS), _list_adapters(model)
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found or name not in wanted or found[name].shape != wanted[name].shape:
            raise ModelError(f"The adapters of {folder} do not fit the model or its model.lora_ settings: {name}.")
        wanted[name].copy_(found[name])


def hold_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold the frozen weights that are multiplied by in the precision that they are computed in.

    Models are published in it and it is half the memory. Autocast remembers what it has rounded only where a gradient
    is wanted, so a frozen weight would be rounded anew for each product. Embeddings and norms keep theirs: the states
    between the layers are computed in it. An output layer that shares its weight with the embedding gets its own.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    if head.weight is embedding.weight and not head.weight.requires_grad:
        head.weight = nn.Parameter(head.weight.detach().to(dtype), requires_grad=False)
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        products = any(parameter.ndim > 1 for parameter in own) and not isinstance(module, nn.Embedding)
        for parameter in own if products else ():
            if parameter.dtype == torch.float32 and not parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)


def _is_inside(model: nn.Module, name: str) -> bool:
    """Whether a module or weight belongs to the text part of a model, which is most often the whole of it."""
    body, _ = split_head(model)
    prefix = next(place for place, module in model.named_modules() if module is body)
    return name.startswith(f"{prefix}.")


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _strip_prefix(name: str) -> str:
    """The name of a module or weight in the model without adapters."""
    return name.replace(".base_layer", "")


def _list_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that have adapters, with their names."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))


def _list_adapters(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' weights under the names that peft gives them in a file."""
    return {
        "base_model.model." + name.replace(f".{NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }
