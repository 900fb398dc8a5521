"""A policy: a model on its device with its tokenizer, prompt template and sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qed.config import plugins
from qed.config.phases import Settings
from qed.config.user_code import require_callable
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import list_training_texts, load_prompt
from qed.errors import UsageError
from qed.models import load, lora
from qed.models.families import choose_attention, find_scalar_head
from qed.models.precision import cast_weights, read_precision, read_weights_dtype
from qed.models.scalar_head import build_scalar_model, load_scalar_model, train_head
from qed.sampling.base import Sampler
from qed.training import checkpoints
from qed.types import Problem

MAKE = "(model, tokenizer, ends, rows_per_batch, precision)"  # the parameters of a sampler's `make`


@dataclass
class Policy:
    """A model with its tokenizer, prompt template and sampler."""

    model: Any
    tokenizer: Any
    template: PromptTemplate
    sampler: Sampler

    def max_prompt_tokens(self, max_tokens: int) -> int:
        """Return the length limit of prompts, in tokens, that leaves room for `max_tokens` in model and sampler."""
        window = load.read_window(self.model)
        return min(window, getattr(self.sampler, "window", window)) - max_tokens


def report_handover(sampler: Sampler, say: Callable[[str], None]) -> str | None:
    """Print why the native sampler was replaced by the hf sampler; return the reason, or None if it was not."""
    reason: str | None = getattr(sampler, "handed_over", None)
    if reason is not None:
        say(f"The native sampler does not support this model, so the slower hf sampler is used: {reason}.")
    return reason


def load_policy(
    settings: Settings, problems: Sequence[Problem], device: torch.device, checkpoint: Path | None
) -> Policy:
    """Load a run's policy from a checkpoint or by name, or build a new model and tokenizer.

    If the algorithm trains a scalar head, it replaces the model's output layer.
    """
    prompt = load_prompt(settings.data)
    network, tokenizer = _load_network(settings, problems, prompt, checkpoint)
    network = load.prepare_model(network, settings.model, device)
    return _build_policy(network, tokenizer, prompt, settings)


def _build_policy(network: Any, tokenizer: Any, prompt: Any, settings: Settings) -> Policy:
    if hasattr(prompt, "chat_template"):
        # Saved with every checkpoint, so that other programs use the prompt of training.
        tokenizer.chat_template = prompt.chat_template
    ends = load.find_end_ids(network, tokenizer, prompt.CHAT)
    load.set_end_ids(network, ends)
    template = PromptTemplate(prompt, tokenizer, ends, settings.sampling.stop)
    return Policy(network, tokenizer, template, build_sampler(network, tokenizer, ends, settings))


def _load_network(
    settings: Settings, problems: Sequence[Problem], prompt: Any, checkpoint: Path | None
) -> tuple[Any, Any]:
    """Load a run's model and tokenizer, with the adapters and head that the run trains."""
    use_lora, scalar = settings.model.lora_rank > 0, settings.algorithm.has_scalar_head
    saved = None if use_lora else checkpoint
    network, tokenizer = _load_whole(settings, problems, prompt, saved)
    if scalar and find_scalar_head(network) is None:
        network = build_scalar_model(network)
    if not use_lora:
        return network, tokenizer
    network = lora.add_adapters(network, settings.model, settings.run.seed)
    if checkpoint is not None:
        lora.load_adapters(network, checkpoint / "adapter")
    if scalar:
        train_head(network, checkpoint and checkpoint / "hf")
    return network, tokenizer


def _load_whole(
    settings: Settings, problems: Sequence[Problem], prompt: Any, checkpoint: Path | None
) -> tuple[Any, Any]:
    """Load a model from a checkpoint or by its name, or build a new one, without adapters."""
    if checkpoint is not None:
        load_saved = load_scalar_model if settings.algorithm.has_scalar_head else load.load_model
        network, tokenizer = load_saved(replace(settings.model, name=str(checkpoint / "hf"), revision=""))
        checkpoints.load_exact_weights(network, checkpoint)
        return network, tokenizer
    if not load.is_new(settings.model.name):
        return load.load_model(settings.model)
    network, tokenizer = load.build_model(settings.model.name, list_training_texts(problems, prompt), settings.run.seed)
    cast_weights(network, read_weights_dtype(settings.model))
    if attention := choose_attention(network.config, settings.model.attention):
        network.set_attn_implementation(attention)  # type: ignore[operator]
    return network, tokenizer


def load_remote_policy(settings: Settings) -> Policy:
    """Load the tokenizer, prompt and config of a model whose weights only servers have; `model` has no weights.

    Raises:
        ModelError: the tokenizer cannot be found, or has no end token.
        UsageError: no server answers.
    """
    prompt = load_prompt(settings.data)
    tokenizer, model = load.load_tokenizer(settings.model.name, settings.model.revision)
    return _build_policy(model, tokenizer, prompt, settings)


def build_sampler(model: Any, tokenizer: Any, ends: Sequence[int], settings: Settings) -> Sampler:
    """Build the run's sampler; one on servers also reads their addresses and the request timeout."""
    leaf = plugins.load_leaf("samplers", settings.sampling.sampler)
    common = model, tokenizer, ends, settings.sampling.rows_per_batch, read_precision(settings.model)
    if hasattr(leaf, "connect"):
        connected: Sampler = leaf.connect(*common, settings)
        return connected
    name = settings.sampling.sampler
    require_callable(f"{name}: make", getattr(leaf, "make", None), MAKE, len(common))
    sampler: Sampler = leaf.make(*common)
    if missing := [method for method in ("generate", "load") if not callable(getattr(sampler, method, None))]:
        raise UsageError(f"{name}: make{MAKE} returned {type(sampler).__name__}, which has no method {missing[0]}.")
    return sampler
