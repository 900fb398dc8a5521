"""Loads the reference model of a loss, or its precomputed and cached log-probs."""

from __future__ import annotations

import hashlib
import json
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from qed.config.phases import Settings
from qed.config.settings import ModelSettings
from qed.errors import DataError, ModelError, UsageError
from qed.loops.same_models import require_same_weights
from qed.loops.setup import Setup
from qed.loops.teacher import require_room
from qed.models import lora
from qed.models.load import load_model, prepare_model, read_window
from qed.models.precision import read_weights_dtype
from qed.runs import manifest
from qed.runs.manifest import parse_step
from qed.training.checkpoint_writer import build_ranks, save_reference
from qed.training.learner import Learner
from qed.training.parallel import read_full
from qed.types import Rollout

ROWS_AT_ONCE = 256  # scored in one call; even, so that preference pairs stay together


def load_reference(setup: Setup, settings: Settings, offset: int) -> nn.Module | lora.AdapterDisabled | None:
    """Load the reference model of a phase onto its device; return None if it is the current model itself.

    The model at the start of the phase is saved in the run's folder, because the policy of a resumed run has changed.

    Args:
        setup: setup of the run.
        settings: settings of the phase.
        offset: number of steps that the run makes before the phase.

    Raises:
        UsageError: the reference's weights are not precise enough to be mixed.
        DataError: the saved reference is damaged, or missing although the policy has been trained since.
    """
    if settings.algorithm.reference_name:
        return _load_named(setup, settings, settings.algorithm.reference_name)
    every, mix = settings.algorithm.reference_moves
    if every and mix < 1 and read_weights_dtype(_read_model(settings)) == torch.bfloat16:
        mixed = "algorithm.teacher_mix" if settings.algorithm.teacher_wording else "algorithm.reference_mix"
        raise UsageError(
            f"{mixed} {mix} changes the reference by less than bfloat16 weights can hold: set "
            f"model.reference_dtype=float32, or {mixed}=1."
        )
    if offset == 0 and not every and lora.has_adapters(setup.model):
        return lora.AdapterDisabled(setup.model)  # new adapters change nothing, so this is the initial model
    folder = setup.run.folder / "reference" / f"step_{offset:06d}"
    parallel = setup.parallel
    # A run that resumes from before this phase saves the reference again, as the settings may have changed.
    start = -1 if setup.resumed is None else parse_step(setup.resumed.name) or 0
    if start < offset or not parallel.run_on_first(folder.is_dir):
        _require_untrained(folder, start, offset)
        save_reference(setup.run, offset, setup.model, setup.tokenizer, folder, build_ranks(parallel))
        # Merging adapters rounds, so the saved file is read back to give a resumed run the same weights. A
        # sharded model cannot be copied.
        separate = settings.model.reference_offload or settings.model.reference_dtype != "same"
        if not (lora.has_adapters(setup.model) or parallel.is_sharded(setup.model) or separate):
            return None
    else:
        parallel.run_on_first(lambda: _require_complete(folder, setup))
    network, _ = load_model(replace(_read_model(settings), name=str(folder), revision="", quantization="none"))
    return _place(network, setup, settings)


def _read_model(settings: Settings) -> ModelSettings:
    """Return the model settings with the dtype of the reference's weights."""
    dtype = settings.model.reference_dtype
    return settings.model if dtype == "same" else replace(settings.model, dtype=dtype)


def _place(network: nn.Module, setup: Setup, settings: Settings) -> nn.Module:
    """Prepare a reference model on the device where it stays between scorings; sharded ones are never offloaded."""
    hosted = settings.model.reference_offload and not setup.parallel.shards
    device = torch.device("cpu") if hosted else setup.device
    return prepare_model(network, settings.model, device)


def _require_untrained(folder: Path, start: int, offset: int) -> None:
    if start > offset:
        raise DataError(
            f"The reference model of this run, {folder}, is missing, but the policy has been trained since: it was "
            "deleted, or the run began without one. Restore it from a copy, or start again with --overwrite."
        )


def _require_complete(folder: Path, setup: Setup) -> None:
    damage = "; ".join(manifest.list_damage(folder, setup.launch.fast))
    if damage:
        raise DataError(
            f"The saved reference model of this run is damaged: {damage}. Restore its files from a copy, or start "
            "again with --overwrite."
        )


def load_initial_weights(setup: Setup, settings: Settings, offset: int) -> dict[str, Tensor]:
    """Return the weights at the start of a phase.

    Raises:
        UsageError: the run trains adapters, whose initial weights are not saved.
    """
    exact = replace(settings.model, reference_dtype="same", reference_offload=False)
    initial = load_reference(setup, replace(settings, model=exact), offset)
    if isinstance(initial, lora.AdapterDisabled) or lora.has_adapters(setup.model):
        raise UsageError("algorithm.restart does not support adapters: set model.lora_rank=0, or do not restart.")
    return (initial or setup.model).state_dict()


def _load_named(setup: Setup, settings: Settings, name: str) -> nn.Module:
    setting = settings.algorithm.teacher_setting or "algorithm.reference_model"
    try:
        network, _ = load_model(replace(_read_model(settings), name=name, revision=""))
    except ModelError as error:
        raise ModelError(f"{setting}: {error}") from error
    require_same_weights(setting, name, "", setup.run, setup.launch, setup.parallel)
    if settings.algorithm.teacher_setting:
        require_room(setup, settings, f"model {name}", read_window(network))
    return _place(network, setup, settings)


def precompute_logps(
    setup: Setup, settings: Settings, learner: Learner, offset: int, parts: Sequence[Sequence[Rollout]]
) -> list[list[Rollout]]:
    """Return parts of the data with the reference's log-probs, computed once and cached in the run's folder.

    The cache key of a part is a hash of its token ids, the model's weights, the temperature and the precision; if any
    of them changes, the log-probs are computed again.
    """
    network = load_reference(setup, settings, offset) or setup.model
    caches = [setup.run.folder / "reference" / f"logps_{key}.npy" for key in _build_keys(network, learner, parts)]
    return [
        _score_or_recall(setup, learner, network, cache, part) if part else []
        for cache, part in zip(caches, parts, strict=True)
    ]


def _score_or_recall(
    setup: Setup,
    learner: Learner,
    network: nn.Module | lora.AdapterDisabled,
    cache: Path,
    rollouts: Sequence[Rollout],
) -> list[Rollout]:
    """Return rollouts with the reference's log-probs, from the cache if possible."""
    parallel = setup.parallel
    lengths = [len(rollout.output) for rollout in rollouts]
    logps = parallel.run_on_first(lambda: _read_cache(cache, sum(lengths)))
    if logps is None:
        setup.console.say(f"Scoring {len(rollouts)} answers under the reference model.")
        for start in range(0, len(rollouts), ROWS_AT_ONCE):
            learner.score(rollouts[start : start + ROWS_AT_ONCE], old=False, reference=network)
        values = np.array([value for rollout in rollouts for value in rollout.ref_logps or ()], dtype=np.float64)
        parallel.run_on_first(lambda: _write_cache(cache, values))
        return list(rollouts)
    ends = accumulate(lengths)
    return [
        replace(rollout, ref_logps=array("d", logps[end - length : end].tobytes()))
        for rollout, length, end in zip(rollouts, lengths, ends, strict=True)
    ]


def _build_keys(
    network: nn.Module | lora.AdapterDisabled, learner: Learner, parts: Sequence[Sequence[Rollout]]
) -> list[str]:
    settings = json.dumps([learner.temperature, str(learner.precision)]).encode()
    digests = [hashlib.sha256(settings) for _ in parts]
    for digest, part in zip(digests, parts, strict=True):
        for rollout in part:
            # Only trained tokens are scored; without a mask, all are.
            mask = [list(rollout.loss_mask)] if rollout.loss_mask else []
            digest.update(json.dumps([list(rollout.prompt), list(rollout.output), *mask]).encode())
    for name, tensor in sorted(network.state_dict().items()):
        values: np.ndarray = read_full(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy()
        for digest, part in zip(digests, parts, strict=True):
            if part:  # saves hashing the weights for a missing validation part
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(values.data)
    return [digest.hexdigest()[:16] for digest in digests]


def _read_cache(file: Path, count: int) -> np.ndarray | None:
    """Read the cached values; return None if the file cannot be read or has a different number of values."""
    try:
        values: np.ndarray = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return values if values.shape == (count,) else None


def _write_cache(file: Path, values: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.stem}-{secrets.token_hex(4)}.npy")
    np.save(temporary, values, allow_pickle=False)
    temporary.replace(file)
