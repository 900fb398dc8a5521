"""Reads the config and tokenizer of a Hugging Face folder or hub model, and explains loading errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from qed.config.settings import ModelSettings
from qed.errors import ModelError, suggest_nearest
from qed.models import adapters
from qed.models.families import choose_attention, remove_attention_kernels, require_known_layers
from qed.models.initial_weights import build_turn
from qed.models.precision import read_weights_dtype

LISTED = 5  # most folders named in a message
# Errors that transformers raises for a model that is missing or cannot be read.
LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)


def describe_source(settings: ModelSettings) -> dict[str, Any]:
    """Return the options of `from_pretrained` that define a model's source; check it if it is a folder."""
    require_folder(settings.name)
    source: dict[str, Any] = {"trust_remote_code": False}
    if Path(settings.name).is_dir():
        _check_folder(Path(settings.name))
    elif settings.revision:
        source["revision"] = settings.revision
    return source


def load_configuration(settings: ModelSettings, source: dict[str, Any]) -> tuple[Any, Any]:
    """Load a model's config and tokenizer."""
    config = remove_attention_kernels(AutoConfig.from_pretrained(settings.name, **source))
    require_known_layers(settings.name, config, AutoModelForCausalLM._model_mapping.get(type(config), None))
    return config, read_tokenizer(settings.name, source)


def load_pretrained(
    kind: Any, settings: ModelSettings, config: Any, source: dict[str, Any], **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Load a model with its weights while no other thread builds one.

    Args:
        kind: `AutoModel` class of transformers.
        settings: settings of the model.
        config: see `load_configuration`.
        source: see `describe_source`.
        options: further options of `from_pretrained`.

    Returns:
        The model, and which weights are missing or unexpected.
    """
    with build_turn:
        model, info = kind.from_pretrained(
            settings.name,
            config=config,
            dtype=read_weights_dtype(settings),
            use_safetensors=True,
            attn_implementation=choose_attention(config, settings.attention),
            output_loading_info=True,
            **options,
            **source,
        )
    return model, info


def read_tokenizer(name: str, source: dict[str, Any]) -> Any:
    """Load the tokenizer of a folder or a hub model."""
    tokenizer = AutoTokenizer.from_pretrained(name, **{"trust_remote_code": False, **source})
    for word in ("is_local", "local_files_only"):  # must not be saved with the tokenizer
        tokenizer.init_kwargs.pop(word, None)
    silence_length_warning(tokenizer)
    return tokenizer


def silence_length_warning(tokenizer: Any) -> None:
    """Silence transformers' warning about texts longer than the window: qed itself counts and skips them."""
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True


def require_folder(name: str) -> None:
    """Reject a path without a folder, before it is requested from the hub.

    A path begins with a dot, a slash, `~` or `runs/`, or has more than one slash. Any other name with a slash may be a
    hub model, even if there is a folder with its owner's name.

    Raises:
        ModelError: there is no such folder.
    """
    if (name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1) and not Path(name).is_dir():
        raise ModelError(f"There is no model folder {name}.{_suggest_folder(name) or _list_folders(Path(name).parent)}")


def require_configuration(folder: Path) -> None:
    """Require a model config in a folder; the message names a model inside it, such as a run's.

    Raises:
        ModelError: there is no config.json.
    """
    if (folder / "config.json").is_file():
        return
    final = folder / "final" / "hf"  # in a run's folder
    found = sorted(path.parent for path in folder.glob("**/hf/config.json"))
    candidates = [final] if (final / "config.json").is_file() else found
    hint = f" Did you mean {candidates[-1]}?" if candidates else ""
    raise ModelError(f"{folder} is not a Hugging Face model folder: it has no config.json.{hint}")


def explain_loading(name: str, error: Exception) -> ModelError:
    """Return the error for a model that cannot be loaded."""
    first = str(error).strip().split("\n")[0]
    return ModelError(
        f"The model {name} cannot be loaded: {first}{_suggest_folder(name)}\nUse a folder with config.json, tokenizer "
        "files and safetensors weights, a hub name that is reachable from here, or new:tiny for a new small one."
    )


def _suggest_folder(name: str) -> str:
    """Return a sentence that suggests a folder next to the missing one, or an empty string."""
    path = Path(name)
    if path.exists() or not path.parent.is_dir():
        return ""
    return suggest_nearest(path.name, [near.name for near in path.parent.iterdir() if near.is_dir()])


def _list_folders(parent: Path) -> str:
    """Return a sentence that lists the folders in another one."""
    if not parent.is_dir():
        return f" There is no folder {parent} either, relative to {Path.cwd()}."
    names = sorted(path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    shown = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
    return f" {parent} has {shown}." if names else f" {parent} contains no folders."


def _check_folder(folder: Path) -> None:
    """Require config, tokenizer and safetensors weights in a folder."""
    require_configuration(folder)
    if not adapters.has_tokenizer(folder):
        raise ModelError(
            f"{folder} has no tokenizer (tokenizer.json). Save it there with tokenizer.save_pretrained, or "
            "copy it from the base model."
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{folder} has no safetensors weights; pickled ones (.bin, .pt) are not read, because they can run code."
        )
