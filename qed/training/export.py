"""Write a checkpoint as a folder for other programs: transformers, vLLM, the Hugging Face hub."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qed.config.settings import ModelSettings
from qed.errors import DataError, ModelError, QedError, UsageError
from qed.models import adapters
from qed.models.load import load_model, load_tokenizer
from qed.models.save import is_disk_error
from qed.models.scalar_head import has_scalar_head, load_scalar_model
from qed.runs import manifest
from qed.training.checkpoint_size import MARGIN
from qed.training.checkpoints import load_exact_weights
from qed.training.folders import write_folder_atomically

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SHARD_SIZE = "5GB"  # the usual maximum size of a weights file on the hub
CARD = "README.md"


@dataclass(frozen=True)
class Export:
    """What to export: a checkpoint of a run, to a folder.

    `adapter` exports only its adapter, otherwise the complete weights with adapters merged. `dtype` is a name in
    `DTYPES`, or empty for the checkpoint's. `card` is the text of the model card. `overwrite` replaces an earlier
    export.
    """

    checkpoint: Path
    out: Path
    adapter: bool = False
    dtype: str = ""
    card: str = ""
    overwrite: bool = False


def check_export(export: Export) -> None:
    """Check that an export is possible, before anything is loaded or written.

    Raises:
        UsageError: the folder cannot be used.
        DataError: the checkpoint is damaged; the message names the file.
        ModelError: it has no adapter.
        QedError: there is not enough disk space.
    """
    _check_target(export.out, export.overwrite)
    damage = manifest.list_damage(export.checkpoint.resolve())
    if damage:
        raise DataError(
            f"The checkpoint {export.checkpoint.name} is damaged, so nothing is exported: {'; '.join(damage)}. Choose "
            "another one with --checkpoint; `qed checkpoint verify RUN` lists the complete ones."
        )
    if export.adapter and not (export.checkpoint / "adapter" / adapters.CONFIG).is_file():
        raise ModelError(f"The checkpoint {export.checkpoint} has no adapter; it has complete weights.")
    needed, place = estimate_bytes(export), _find_existing(export.out)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise QedError(
            f"The export needs {needed / 2**30:.2f} GiB, but the disk of {export.out} has {free / 2**30:.2f} GiB free. "
            "Nothing has been written. Free some space, use --dtype bfloat16, or write elsewhere with --out."
        )


def write_export(export: Export) -> None:
    """Write the folder atomically: weights, configuration, tokenizer with its chat template, model card.

    Raises:
        QedError: it cannot be written, or a weight is too large for the dtype; nothing is left behind.
    """
    try:
        with write_folder_atomically(export.out) as folder:
            if export.adapter:
                _write_adapter(export, folder)
            else:
                _write_model(export, folder)
            (folder / CARD).write_text(export.card, encoding="utf-8")
    except Exception as error:
        if not is_disk_error(error):
            raise
        raise QedError(
            f"Cannot write {export.out}: {error}. Nothing is left behind, and the run is unchanged."
        ) from error


def estimate_bytes(export: Export) -> int:
    """Estimate the bytes of the exported folder from the files of the checkpoint."""
    source = export.checkpoint / ("adapter" if export.adapter else "hf")
    saved = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    width = DTYPES[choose_dtype(export)].itemsize / DTYPES[_read_dtype(export)].itemsize
    return math.ceil(saved * width) + MARGIN


def choose_dtype(export: Export) -> str:
    """Return the dtype of the exported weights: the requested one, or the checkpoint's."""
    return export.dtype or _read_dtype(export)


def _read_dtype(export: Export) -> str:
    """Read the dtype of a checkpoint's weights; adapters are always float32."""
    config = {} if export.adapter else json.loads((export.checkpoint / "hf" / "config.json").read_text("utf-8"))
    dtype = config.get("dtype")
    return dtype if dtype in DTYPES else "float32"


def _check_target(out: Path, overwrite: bool) -> None:
    """Reject a folder that has files, unless it is an earlier export that may be replaced."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
        return
    names = ("config.json", adapters.CONFIG)
    if not out.is_dir() or out.is_symlink() or not any((out / name).is_file() for name in names):
        raise UsageError(f"{out} already exists and is not an exported model; choose another folder with --out.")
    if (out / manifest.NAME).is_file() or (out.parent / manifest.NAME).is_file():
        raise UsageError(f"{out} belongs to a checkpoint; choose another folder with --out.")
    if not overwrite:
        raise UsageError(f"{out} already exists. Replace it with --overwrite, or choose another folder with --out.")


def _find_existing(path: Path) -> Path:
    """Return the path or its first parent that exists."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())


def _write_model(export: Export, folder: Path) -> None:
    model: Any
    saved = ModelSettings(name=str(export.checkpoint / "hf"), device="cpu")
    model, tokenizer = load_scalar_model(saved) if has_scalar_head(export.checkpoint / "hf") else load_model(saved)
    load_exact_weights(model, export.checkpoint)  # `hf/` may have rounded ones
    dtype = DTYPES[choose_dtype(export)]
    for name, weight in model.named_parameters():
        _require_range(name, weight, dtype)
    model.to(dtype).save_pretrained(folder, max_shard_size=SHARD_SIZE)
    tokenizer.save_pretrained(folder)


def _write_adapter(export: Export, folder: Path) -> None:
    source, dtype = export.checkpoint / "adapter", DTYPES[choose_dtype(export)]
    weights = load_file(source / adapters.WEIGHTS)
    for name, weight in weights.items():
        _require_range(name, weight, dtype)
    save_file({name: weight.to(dtype) for name, weight in weights.items()}, folder / adapters.WEIGHTS, {"format": "pt"})
    shutil.copy(source / adapters.CONFIG, folder / adapters.CONFIG)
    tokenizer, _ = load_tokenizer(str(export.checkpoint / "hf"))
    tokenizer.save_pretrained(folder)


def _require_range(name: str, weight: Tensor, dtype: torch.dtype) -> None:
    """Reject a weight that would become infinite."""
    largest = float(weight.detach().abs().amax()) if weight.numel() else 0.0
    if largest > torch.finfo(dtype).max:
        raise UsageError(f"{name} has a weight of {largest:g}, too large for {dtype}: use --dtype bfloat16.")
