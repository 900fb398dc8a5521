"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) by peft, injected into the model in place.

The model's weights are frozen; each chosen linear layer W becomes W + B A of rank r, scaled by alpha / r. With adapters
disabled, the model is its own reference. A checkpoint holds the merged weights, which any program can load, and the
adapters in peft's layout, from which a run resumes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qed.config.settings import ModelSettings
from qed.errors import ModelError, UsageError, suggest_nearest
from qed.models import qlora
from qed.models.adapted_layer import NAME, is_adapted_linear, read_adapter
from qed.models.adapters import CLASSIFIER, CONFIG, WEIGHTS, name_base
from qed.models.families import find_scalar_head, split_head
from qed.models.initial_weights import seed_initial_weights
from qed.models.weights import Source, gather, is_sharded

STACKED = "parameter_name"  # peft's attribute that names an adapted parameter other than a layer's weight
EXPERTS = "experts"  # in model.lora_targets: the stacked weights of a mixture of experts
EXPERT_DIMENSIONS = 3
PREFIX, HEAD = "base_model.model.", "score"  # prefix of all names in peft's files; name of a scalar head


@dataclass(frozen=True)
class AdapterDisabled:
    """A model without its adapters: the reference model of a run that trains only adapters."""

    model: nn.Module

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights without the adapters'."""
        return {name: tensor for name, tensor in self.model.state_dict().items() if ".lora_" not in name}


def add_adapters(model: nn.Module, settings: ModelSettings, seed: int) -> nn.Module:
    """Add new adapters to a model, which do not change its outputs yet; the seed determines their weights.

    Raises:
        UsageError: a layer in model.lora_targets is not in the model.
    """
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 -- slow to import, and few runs use it

    modules, stacks = find_targets(model, settings)
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha or 2 * settings.lora_rank,
        lora_dropout=0.0,
        target_modules=modules,
        target_parameters=stacks or None,
        task_type="CAUSAL_LM",
        base_model_name_or_path=name_base(settings.name),
        revision=settings.revision or None,
    )
    with seed_initial_weights(seed, "adapters"):
        adapted: nn.Module = inject_adapter_in_model(config, model)
    set_precision(adapted, settings.precision)
    return adapted


def inject_adapters(model: nn.Module, folder: Path) -> None:
    """Add adapters with the config of an adapter folder to a model in place; their weights are placeholders.

    Raises:
        ModelError: the folder's config is missing or fits no layer of the model.
    """
    from peft import inject_adapter_in_model  # noqa: PLC0415 -- slow to import, and few runs use it

    try:
        inject_adapter_in_model(_read_config(folder), model)
    except ValueError as error:
        raise ModelError(f"The adapter {folder} does not fit the model: {error}") from error


def require_same_adapters(model: Any, folder: Path) -> None:
    """Require that an adapter folder's adapters have the same rank and scale as the model's.

    Raises:
        ModelError: they differ, or the folder's config cannot be read.
    """
    present, found = model.peft_config[NAME], _read_config(folder)
    for field in ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"):
        one, other = getattr(present, field), getattr(found, field)
        if one != other:
            raise ModelError(f"The adapter {folder} has {field} {other}, but the model's adapters have {one}.")


def remove_adapters(model: Any) -> None:
    """Remove the adapters of a model without merging them."""
    for name, layer in list(_list_layers(model)):
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    for attribute in ("peft_config", "_hf_peft_config_loaded"):
        if attribute in vars(model):
            delattr(model, attribute)


def _read_config(folder: Path) -> Any:
    from peft import LoraConfig  # noqa: PLC0415 -- slow to import, and few runs use it

    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return LoraConfig.from_peft_type(**content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"The configuration of the adapter {folder} cannot be read: {error}") from error


def set_precision(model: nn.Module, precision: str) -> None:
    """Keep the adapters in float32, and cast the frozen weights to bfloat16 if the computation uses it."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name and parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()  # small, and trained without masters
    if precision == "bfloat16":
        cast_frozen_weights(model, torch.bfloat16)


def find_targets(model: nn.Module, settings: ModelSettings) -> tuple[list[str], list[str]]:
    """Find the names of the linear layers to adapt, and of stacked experts if `experts` is a target.

    Raises:
        UsageError: a layer in model.lora_targets is not in the model.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head}
    inside = {name for name in linear if _is_inside(model, name)}
    leaves, stacks = (
        {_last_part(name) for name in inside},
        sorted({_last_part(name) for name in list_expert_stacks(model)}),
    )
    candidates = sorted({*leaves, EXPERTS} if stacks else leaves)
    if not candidates:
        raise UsageError(
            f"{settings.name} ({type(model).__name__}) has no linear layers that adapters can be added to. Train its "
            "weights with model.lora_rank 0, or use another model."
        )
    targets = set(settings.lora_targets) or leaves
    if unknown := sorted(targets - set(candidates)):
        raise UsageError(
            f"model.lora_targets names {unknown[0]}, which is not a linear layer of {settings.name}."
            f"{suggest_nearest(unknown[0], candidates)} There are: {', '.join(candidates)}."
        )
    # A model's image part may have layers with the same names, so name the text part's layers in full.
    layers = targets & leaves if linear == inside else {name for name in inside if _last_part(name) in targets}
    return sorted(layers), stacks if EXPERTS in targets else []


def list_expert_stacks(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the stacked expert weights of a model by name, one tensor [experts, ., .] per layer and matrix."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == EXPERT_DIMENSIONS and _is_inside(model, name)
    }


def compute_unadapted_share(model: nn.Module) -> float:
    """Return the share of an adapted model's weights in experts without adapters; 0 if all have adapters."""
    adapted = {
        f"{_strip_prefix(name)}.{layer.parameter_name}"
        for name, layer in _list_layers(model)
        if hasattr(layer, STACKED)
    }
    stacks = list_expert_stacks(model).items()
    unadapted = sum(stack.numel() for name, stack in stacks if _strip_prefix(name) not in adapted)
    return unadapted / sum(weight.numel() for name, weight in model.named_parameters() if ".lora_" not in name)


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model has adapters."""
    return any(True for _ in _list_layers(model))


@contextmanager
def disable_adapters(model: nn.Module) -> Iterator[None]:
    """Disable a model's adapters within the context."""
    try:
        for _, layer in _list_layers(model):
            layer.enable_adapters(False)
        yield
    finally:
        for _, layer in _list_layers(model):
            # This also makes the adapters trainable again.
            layer.enable_adapters(True)


def list_merged(model: nn.Module, merge: bool = True) -> dict[str, Source]:
    """Return the merged weights of a model with adapters, under their names without adapters; reading one merges it.

    Weights are dequantized, and bfloat16 ones become float32 before the adapter is added. Without `merge`, return
    those of the model without adapters.
    """
    layers = {
        f"{_strip_prefix(name)}.{getattr(layer, STACKED, 'weight')}": layer for name, layer in _list_layers(model)
    }
    merged = {}
    for name, source in qlora.list_dequantized(model).items():
        if ".lora_" not in name:
            key = _strip_prefix(name)
            merged[key] = _merge(source, layers.get(key)) if merge else source
    return merged


@torch.no_grad()
def compute_merged_weight(layer: Any) -> Tensor | None:
    """Compute an adapted linear layer's weight with its adapter added, or without it while adapters are disabled.

    Return None if the layer computes anything else, is not in float32, or has sharded weights.
    """
    if not is_adapted_linear(layer):
        return None
    weight: Tensor = layer.base_layer.weight
    if layer.disable_adapters:
        return weight
    adapter = read_adapter(layer)
    if adapter is None or any(
        each.dtype != torch.float32 or is_sharded(each) for each in (weight, adapter.down, adapter.up)
    ):
        return None
    delta: Tensor = layer.get_delta_weight(NAME)
    return weight + delta


def merge_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights with adapters merged, under the names of the model without adapters."""
    state = {name: source.read() for name, source in list_merged(model).items()}
    # In the file, an output layer with its own copy of the embedding's weight is tied again.
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", {})
    return state | {target: state[source] for target, source in tied.items() if source in state}


def list_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of the adapters and of a scalar head, under peft's file names."""
    head = find_scalar_head(model)
    return {
        PREFIX + name.replace(f".{NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_" in name or (head is not None and parameter is head.weight)
    }


def gather_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapters' complete weights in host memory, under peft's names; every rank must call this."""
    return {name: gather(weight.detach()).cpu().contiguous() for name, weight in list_adapters(model).items()}


def save_adapters(model: Any, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write the adapters, and a scalar head, in peft's layout; by default the tensors come from `gather_adapters`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy(model.peft_config[NAME])
    if isinstance(config.target_modules, set):  # set order differs between processes
        config.target_modules = sorted(config.target_modules)
    if find_scalar_head(model) is not None:
        config.task_type, config.modules_to_save = CLASSIFIER, [HEAD]
    config.save_pretrained(folder)
    save_file(dict(tensors or gather_adapters(model)), folder / WEIGHTS, metadata={"format": "pt"})


@torch.no_grad()
def load_adapters(model: nn.Module, folder: Path) -> None:
    """Load the adapters of a folder into a model with new adapters; a scalar head is loaded by `train_head`.

    Raises:
        ModelError: the adapters are missing, or their names or shapes differ.
    """
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} has no adapters: there is no {WEIGHTS}.")
    saved, expected = load_file(folder / WEIGHTS), list_adapters(model)
    for name in sorted((saved.keys() | expected.keys()) - {f"{PREFIX}{HEAD}.weight"}):
        if name not in saved or name not in expected or saved[name].shape != expected[name].shape:
            raise ModelError(f"The adapters of {folder} do not fit the model or its model.lora_ settings: {name}.")
        expected[name].copy_(saved[name])


def cast_frozen_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the frozen weights of matrix products to the compute dtype.

    Models are published in that dtype, and it halves the memory. Autocast caches only casts of weights with a gradient
    and would cast a frozen weight again for every product. Embeddings and norms keep their dtype, which is that of the
    hidden states. An output layer that shares its weight with the embedding gets its own copy.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    if head.weight is embedding.weight and not head.weight.requires_grad:
        head.weight = nn.Parameter(head.weight.detach().to(dtype), requires_grad=False)
    for module in model.modules():
        parameters = list(module.parameters(recurse=False))
        multiplies = any(parameter.ndim > 1 for parameter in parameters) and not isinstance(module, nn.Embedding)
        for parameter in parameters if multiplies else ():
            if parameter.dtype == torch.float32 and not parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)


def _merge(source: Source, layer: Any) -> Source:
    """Return a weight with its adapter added, if it has one."""
    dtype = torch.float32 if source.dtype == torch.bfloat16 else source.dtype
    if layer is None:
        return replace(source, dtype=dtype, read=lambda: source.read().to(dtype))

    def read() -> Tensor:
        with torch.no_grad(), _gather_adapter(layer):
            delta: Tensor = layer.get_delta_weight(NAME)
            return source.read().to(dtype) + delta.to(dtype)

    return replace(source, dtype=dtype, read=read, sharded=source.sharded or is_sharded(layer.lora_A[NAME].weight))


@contextmanager
def _gather_adapter(layer: Any) -> Iterator[None]:
    """Within the context, replace an adapter's sharded matrices with complete ones; every rank must enter it."""
    matrices = [part for part in (layer.lora_A[NAME], layer.lora_B[NAME]) if is_sharded(part.weight)]
    sharded = [part.weight for part in matrices]
    try:
        for part, weight in zip(matrices, sharded, strict=True):
            part._parameters["weight"] = nn.Parameter(gather(weight.detach()), requires_grad=False)
        yield
    finally:
        for part, weight in zip(matrices, sharded, strict=True):
            part._parameters["weight"] = weight


def _is_inside(model: nn.Module, name: str) -> bool:
    """Return whether a module or weight belongs to a model's text decoder."""
    body, _ = split_head(model)
    return name.startswith(f"{next(path for path, module in model.named_modules() if module is body)}.")


def _last_part(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def _strip_prefix(name: str) -> str:
    """Return the name of a module or weight in the model without adapters."""
    return name.replace(".base_layer", "")


def _list_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names and layers with adapters."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))
