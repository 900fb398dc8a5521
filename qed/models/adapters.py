"""Loads adapter folders as models: peft's adapter weights, merged into the base model in adapter_config.json.

Any peft adapter that can be merged into weights can be read, regardless of the program that wrote it.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.errors import ModelError
from qed.runs.manifest import NAME as MANIFEST

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CLASSIFIER = "SEQ_CLS"  # task_type of a reward model's adapter in peft
MERGED = "hf"  # folder next to a run's adapter, with the same model's merged weights


def is_adapter(name: str) -> bool:
    """Return whether a model's name is a folder with an adapter but without complete weights."""
    folder = Path(name)
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


@dataclass(frozen=True)
class Base:
    """The base model of an adapter: its folder or hub name, and hub revision.

    `merged` is True if these weights already contain the adapter: a model that started from random weights exists only
    in its run, next to the adapter.
    """

    name: str
    revision: str = ""
    merged: bool = False


def find_base(folder: Path) -> Base:
    """Find the base model of a policy's adapter folder.

    Raises:
        ModelError: the adapter names no base model or a missing folder, or belongs to a reward model.
    """
    if is_classifier(folder):
        raise ModelError(
            f"The adapter {folder} belongs to a reward model or another classifier: it scores answers but cannot "
            "generate them. Use its merged weights as a reward: --reward model:FOLDER, with final/hf of its run."
        )
    base = read_base(folder)
    if base.name.startswith("new:"):
        merged = folder.resolve().parent / MERGED
        if not (merged / "config.json").is_file():
            raise ModelError(
                f"The adapter {folder} belongs to {base.name}, a model with random weights that only its run has. Use "
                f"the run's merged weights: the folder {MERGED} of its checkpoint, or `qed export RUN --merge`."
            )
        return Base(str(merged), merged=True)
    if (Path(base.name).is_absolute() or base.name.count("/") > 1) and not Path(base.name).is_dir():
        raise ModelError(
            f"The base model of the adapter {folder} is the folder {base.name}, which does not exist. Restore it, or "
            f"set base_model_name_or_path in {folder / CONFIG} to its path or hub name."
        )
    if Path(base.name).is_dir() and Path(base.name).resolve() == folder.resolve():
        raise ModelError(f"The adapter {folder} names itself as its base model, in {folder / CONFIG}.")
    return base


def is_classifier(folder: Path) -> bool:
    """Return whether an adapter folder holds the adapter of a reward model, with its head."""
    try:
        found: bool = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("task_type") == CLASSIFIER
    except (OSError, ValueError, AttributeError):
        return False  # `read_base` reports the error
    return found


def name_base(name: str) -> str:
    """Return the base model that new adapters of a model should name: its hub name, or its folder's absolute path.

    For a run's adapter this is the folder of merged weights in the same checkpoint. peft loads an adapter only on
    complete
    weights: on another adapter, it would load the new one in place of the first.
    """
    folder = Path(name)
    if not folder.is_dir():
        return name
    folder = folder.resolve()
    merged = folder.parent / MERGED
    # Outside of runs, a folder of that name may be any model, such as the adapter's base.
    is_of_run = folder.name == "adapter" and (folder.parent / MANIFEST).is_file()
    return str(merged if is_adapter(name) and is_of_run and (merged / "config.json").is_file() else folder)


def read_base(folder: Path) -> Base:
    """Read the base model that an adapter folder names.

    Raises:
        ModelError: adapter_config.json is damaged or names none.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        name, revision = config.get("base_model_name_or_path"), config.get("revision")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {error}.") from error
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{folder / CONFIG} names no base model: write its folder or hub name there, as base_model_name_or_path."
        )
    return Base(name, revision if isinstance(revision, str) else "")


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has its own tokenizer."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))


def merge_into(model: Any, tokenizer: Any, folder: Path) -> Any:
    """Return a model with the adapter of a folder merged into its weights.

    Args:
        model: the base model, which is changed.
        tokenizer: the adapter's tokenizer; tokens that the base model lacks get new embeddings, as in peft.
        folder: folder of the adapter.

    Raises:
        ModelError: the adapter has no safetensors weights, or does not fit the model.
    """
    from peft import PeftModel  # noqa: PLC0415 -- slow to import, and few models are adapters

    if not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"The adapter {folder} has no {WEIGHTS}; pickled weights (.bin, .pt) are not read, because they can run "
            "code."
        )
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    try:
        with warnings.catch_warnings():
            # Weights missing in the file would be random, about which peft only warns.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            # peft uses a deprecated name of transformers, which is no concern of the user.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            adapted = PeftModel.from_pretrained(model, str(folder), trust_remote_code=False, local_files_only=True)
        merged = adapted.merge_and_unload(safe_merge=True)
    except Exception as error:  # peft and safetensors raise errors of many kinds
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"The adapter {folder} cannot be merged into its base model: {reason}") from error
    # Remove peft's attributes, so that the model is saved as a plain one and can get new adapters.
    for name in ("peft_config", "_hf_peft_config_loaded"):
        if name in vars(merged):
            delattr(merged, name)
    return merged.requires_grad_(True)
