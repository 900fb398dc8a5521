"""A model that answers: with its tokenizer, prompt and sampler, on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qed.config import plugins
from qed.config.phases import PipelineSettings, Settings
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import list_training_texts, load_prompt
from qed.models import load, lora
from qed.sampling.base import Sampler
from qed.types import Problem


@dataclass
class Policy:
    """A model and what asks it."""

    model: Any
    tokenizer: Any
    template: PromptTemplate
    sampler: Sampler

    def max_prompt_tokens(self, max_tokens: int) -> int:
        """How long a prompt may be, in tokens, so that the longest answer still fits the model's window."""
        return load.read_window(self.model) - max_tokens


def report_handover(sampler: Sampler, say: Callable[[str], None]) -> str | None:
    """Say why the reference sampler answers where the native one was asked for; the reason, or None."""
    reason: str | None = getattr(sampler, "handed_over", None)
    if reason is not None:
        say(f"The native sampler leaves this model to hf, which is slower: {reason}.")
    return reason


def load_policy(
    settings: Settings | PipelineSettings, problems: Sequence[Problem], device: torch.device, checkpoint: Path | None
) -> Policy:
    """The policy of a run: from a checkpoint, made from nothing on the problems' text, or loaded by its name."""
    leaf = load_prompt(settings.data)
    adapted = settings.model.lora_rank > 0
    if checkpoint is not None and not adapted:
        network, tokenizer = load.load_model(replace(settings.model, name=str(checkpoint / "hf"), revision=""))
    elif load.is_new(settings.model.name):
        network, tokenizer = load.build_model(
            settings.model.name, list_training_texts(problems, leaf), settings.run.seed
        )
    else:
        network, tokenizer = load.load_model(settings.model)
    if adapted:
        network = lora.add_adapters(network, settings.model, settings.run.seed)
    if adapted and checkpoint is not None:
        lora.load_adapters(network, checkpoint / "adapter")
    network = load.prepare_model(network, settings.model, device)
    if hasattr(leaf, "chat_template"):
        # Saved with every checkpoint, so that other programs ask it as it was trained.
        tokenizer.chat_template = leaf.chat_template
    ends = load.find_end_ids(network, tokenizer, leaf.CHAT)
    load.set_end_ids(network, ends)
    template = PromptTemplate(leaf, tokenizer, ends)
    make = plugins.load_leaf("samplers", settings.sampling.sampler).make
    sampler = make(network, tokenizer, ends, settings.sampling.rows_per_batch, load.read_precision(settings.model))
    return Policy(network, tokenizer, template, sampler)
