"""Models with a scalar head in place of the output layer: critics and reward models.

They are transformers' models for sequence classification with one label, so a saved folder loads with
`AutoModelForSequenceClassification`. The head maps a token's last hidden state to a number.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForSequenceClassification

from qed.config.settings import ModelSettings
from qed.errors import ModelError
from qed.models.families import find_scalar_head, split_head
from qed.models.initial_weights import build_turn
from qed.models.sources import LOADING_ERRORS, describe_source, explain_loading, load_configuration, load_pretrained

HEAD = "score.weight"  # in a saved model


def build_scalar_model(policy: nn.Module) -> nn.Module:
    """Build a model from a copy of a policy's decoder, adapters included, and a scalar head of zeros.

    All values are 0 until it is trained. The policy must not be sharded.

    Raises:
        ModelError: transformers has no sequence classification model for the policy's family.
    """
    body, head = split_head(policy)
    model: Any = _build_shell(policy.config)
    own = copy.deepcopy(body)
    setattr(model, model.base_model_prefix, own)
    like = {"device": head.weight.device, "dtype": _read_trained_dtype(own)}
    model.score = nn.Linear(head.in_features, 1, bias=False, **like)
    nn.init.zeros_(model.score.weight)
    for name in ("peft_config", "_hf_peft_config_loaded"):
        if name in vars(policy):
            setattr(model, name, copy.deepcopy(vars(policy)[name]))
    trained: nn.Module = model.train(policy.training)
    return trained


def has_scalar_head(folder: Path) -> bool:
    """Return whether a saved model is for sequence classification, such as a reward model."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ())


def load_scalar_model(settings: ModelSettings) -> tuple[nn.Module, Any]:
    """Load a model with a scalar head and its tokenizer from a folder or the hub, onto the CPU.

    Raises:
        ModelError: it is not found, or is not a model with one label.
    """
    source = describe_source(settings)
    try:
        config, tokenizer = load_configuration(settings, source)
        model, info = load_pretrained(AutoModelForSequenceClassification, settings, config, source)
    except LOADING_ERRORS as error:
        raise explain_loading(settings.name, error) from error
    if config.num_labels != 1 or info["missing_keys"] or find_scalar_head(model) is None:
        raise ModelError(
            f"{settings.name} is not a model with a scalar head: it has {config.num_labels} labels"
            f"{', and lacks ' + sorted(info['missing_keys'])[0] if info['missing_keys'] else ''}. Give the folder of "
            "a reward model, such as one that qed reward-model has trained, or of a critic (critic/ in a checkpoint)."
        )
    return model, tokenizer


@torch.no_grad()
def train_head(model: nn.Module, folder: Path | None = None) -> None:
    """Make the scalar head of a model with adapters trainable, and load it from a saved model's folder, if given.

    Raises:
        ModelError: the folder has no head.
    """
    head = model.get_submodule("score")
    for weight in head.parameters():
        weight.requires_grad_(True)
    if folder is None:
        return
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            if HEAD in tensors.keys():  # noqa: SIM118 -- not a mapping
                head.get_parameter("weight").copy_(tensors.get_tensor(HEAD))
                return
    raise ModelError(f"{folder} has no weights {HEAD} of a scalar head. Resume from another checkpoint.")


def _build_shell(config: Any) -> Any:
    """Build a sequence classification model with one label, without memory for its weights.

    Raises:
        ModelError: transformers has no such model for the family.
    """
    config = copy.deepcopy(config)
    config.num_labels = 1
    config.tie_word_embeddings = False
    try:
        with build_turn, torch.device("meta"):
            return AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise ModelError(
            f"transformers has no {config.model_type} model with a scalar head, which a critic or a reward model "
            "needs. Use a Qwen, Llama, Mistral, Gemma, Phi-3, OLMo 2 or GPT-2 model."
        ) from error


@dataclass(frozen=True)
class Calibration:
    """The scale of a reward model's scores: their mean and standard deviation over its training replies."""

    mean: float = 0.0
    deviation: float = 1.0


def write_calibration(model: Any, calibration: Calibration) -> None:
    """Write the scale of a reward model's scores into its config, which is saved with it."""
    model.config.score_mean, model.config.score_deviation = calibration.mean, calibration.deviation


def read_calibration(model: Any) -> Calibration | None:
    """Return the scale written by `write_calibration`; None for models from other programs."""
    mean, deviation = (getattr(model.config, name, None) for name in ("score_mean", "score_deviation"))
    return None if mean is None or deviation is None else Calibration(mean, deviation)


def _read_trained_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype of a model's trained weights."""
    return next((weight.dtype for weight in model.parameters() if weight.requires_grad), torch.float32)
