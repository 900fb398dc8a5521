"""The model that a loss compares with: as the phase began, or another one, or its log-probs scored once and kept."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from qed.config.phases import Settings
from qed.errors import DataError, ModelError, UsageError
from qed.loops.setup import Setup
from qed.models import lora
from qed.models.load import is_new, load_model, prepare_model
from qed.runs import manifest
from qed.runs.manifest import parse_step
from qed.training import checkpoints
from qed.training.learner import Learner
from qed.types import Rollout

ROWS_AT_ONCE = 256  # scored in one go; even, because pairs stay together


def load_reference(setup: Setup, settings: Settings, offset: int) -> nn.Module | lora.AdapterDisabled | None:
    """The reference model of a phase on its device; None where it is the model as it stands now.

    The model as it stood when the phase began is kept beside the checkpoints, because a resumed policy has moved on.

    Args:
        setup: of the run.
        settings: of the phase.
        offset: the run's steps before the phase.

    Raises:
        UsageError: the model that was named counts its tokens in another way than the policy.
        DataError: what was kept is damaged.
    """
    name = settings.algorithm.reference_name
    if name:
        return _load_named(setup, settings, name)
    moves = settings.algorithm.reference_moves[0] > 0
    if offset == 0 and not moves and lora.has_adapters(setup.model):
        return lora.AdapterDisabled(setup.model)  # before a run's first step its adapters change nothing
    folder = setup.run.folder / "reference" / f"step_{offset:06d}"
    # A run that goes on from before the phase comes to the model anew, perhaps with other settings.
    if setup.resumed is None or (parse_step(setup.resumed.name) or 0) < offset or not folder.is_dir():
        checkpoints.save_reference(setup.run, offset, setup.model, setup.tokenizer, folder)
        # What adapters have learned is merged into what is saved, which rounds: it is read back, as a resumed run does.
        if not lora.has_adapters(setup.model):
            return None
    else:
        _require_complete(folder, setup)
    network, _ = load_model(replace(settings.model, name=str(folder), revision="", quantization="none"))
    return prepare_model(network, settings.model, setup.device)


def _require_complete(folder: Path, setup: Setup) -> None:
    damage = "; ".join(manifest.list_damage(folder, setup.launch.fast))
    if damage:
        raise DataError(
            f"The reference model of this run, as a phase of it began, is not whole: {damage}. Restore its files from "
            "a copy, or begin again with --overwrite."
        )


def load_initial_weights(setup: Setup, settings: Settings, offset: int) -> dict[str, Tensor]:
    """The weights with which a phase began.

    Raises:
        UsageError: the run trains adapters, whose beginning is not kept.
    """
    begun = load_reference(setup, settings, offset)
    if isinstance(begun, lora.AdapterDisabled) or lora.has_adapters(setup.model):
        raise UsageError("algorithm.restart and model.lora_rank do not go together: take lora_rank=0, or no restart.")
    return (begun or setup.model).state_dict()


def _load_named(setup: Setup, settings: Settings, name: str) -> nn.Module:
    if is_new(name):
        raise UsageError(f"algorithm.reference_model cannot be {name}: random weights are nothing to compare with.")
    try:
        network, tokenizer = load_model(replace(settings.model, name=name, revision=""))
    except ModelError as error:
        raise ModelError(f"algorithm.reference_model: {error}") from error
    if tokenizer.get_vocab() != setup.tokenizer.get_vocab():
        raise UsageError(
            f"algorithm.reference_model {name} has another vocabulary than {settings.model.name}, so the log-probs of "
            "the two cannot be compared. Take a reference with the policy's own tokenizer, such as the model that the "
            "policy was made from."
        )
    return prepare_model(network, settings.model, setup.device)


def precompute_logps(
    setup: Setup, settings: Settings, learner: Learner, offset: int, rollouts: Sequence[Rollout]
) -> list[Rollout]:
    """The rollouts with the reference's log-probs, scored once and kept in the run's folder.

    What is kept is found again by the rollouts' token ids, the model's weights, the temperature and the precision, so
    that a change of any of them scores anew.
    """
    network = load_reference(setup, settings, offset) or setup.model
    kept = setup.run.folder / "reference" / f"logps_{_build_key(network, learner, rollouts)}.npy"
    lengths = [len(rollout.output) for rollout in rollouts]
    found = _read_cache(kept, sum(lengths))
    if found is None:
        setup.console.say(f"Scoring {len(rollouts)} answers under the reference model.")
        for start in range(0, len(rollouts), ROWS_AT_ONCE):
            learner.score(rollouts[start : start + ROWS_AT_ONCE], old=False, reference=network)
        _write_cache(
            kept, np.array([value for rollout in rollouts for value in rollout.ref_logps or ()], dtype=np.float64)
        )
        return list(rollouts)
    values = iter(found.tolist())
    return [
        replace(rollout, ref_logps=tuple(islice(values, length)))
        for rollout, length in zip(rollouts, lengths, strict=True)
    ]


def _build_key(network: nn.Module | lora.AdapterDisabled, learner: Learner, rollouts: Sequence[Rollout]) -> str:
    digest = hashlib.sha256(json.dumps([learner.temperature, str(learner.precision)]).encode())
    for rollout in rollouts:
        # Log-probs are scored where a token is trained alone; without a mask the key stays that of earlier runs.
        mask = [rollout.loss_mask] if rollout.loss_mask else []
        digest.update(json.dumps([rollout.prompt, rollout.output, *mask]).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _read_cache(file: Path, count: int) -> np.ndarray | None:
    """The values that are kept; None where there are none, or not as many."""
    try:
        found: np.ndarray = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == (count,) else None


def _write_cache(file: Path, values: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.stem}-{secrets.token_hex(4)}.npy")
    np.save(beside, values, allow_pickle=False)
    beside.replace(file)
