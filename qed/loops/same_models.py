"""Checks that models which a resumed run loads again have the same weights, by hashes in its events."""

from __future__ import annotations

from collections.abc import Sequence

from qed.config.phases import Settings
from qed.config.reward_names import parse_reward
from qed.errors import ModelError, UsageError
from qed.guards.redaction import redact
from qed.models.fingerprint import hash_weights
from qed.models.load import is_new
from qed.models.sources import require_folder
from qed.runs.run import Launch, Run, read_lines
from qed.training.parallel import Parallel


def require_present(name: str, resume: bool) -> None:
    """Require the folder of a model; a resumed run may have been moved away from it.

    Raises:
        ModelError: the name is that of a folder that does not exist.
    """
    try:
        require_folder(name)
    except ModelError as error:
        hint = " If it has moved, name it with --model NEW and add --allow-change model.name." if resume else ""
        raise ModelError(f"{error}{hint}") from error


def require_same_weights(setting: str, name: str, revision: str, run: Run, launch: Launch, parallel: Parallel) -> None:
    """Record a hash of a model's weights, or compare it with that of an earlier attempt; all ranks must call this.

    Args:
        setting: setting that names the model, such as model.name.
        name: folder or hub name; a new model's weights depend only on the run's seed and are not compared.
        revision: revision on the hub, or empty.
        run: the run, whose events hold the hashes.
        launch: how the run was started.
        parallel: the ranks.

    Raises:
        UsageError: the weights have changed, and no `--allow-change` of the setting allows it.
    """
    if not is_new(name):
        parallel.run_on_first(lambda: _compare(setting, name, revision, run, launch))


def _compare(setting: str, name: str, revision: str, run: Run, launch: Launch) -> None:
    found, about = hash_weights(name, revision), {"setting": setting, "model": redact(name)}
    file = run.folder / "events.jsonl"
    rows = read_lines(file) if launch.resume else []
    before = [row["hash"] for row in rows if row["event"] == "weights" and row.items() >= about.items()]
    allowed = any(key.endswith(setting) for key in launch.allow_change)
    if found and before and before[-1] != found and not allowed:
        raise UsageError(
            f"{setting} {name} has other weights than when {run.folder} began: its folder has been overwritten, or "
            "the hub has a newer version. Restore it, start a new run, or allow the change with --allow-change "
            f"{setting}."
        )
    if found and before[-1:] != [found]:
        run.event("weights", **about, hash=found)


def require_same_models(phases: Sequence[Settings], run: Run, launch: Launch, parallel: Parallel) -> None:
    """Record or compare the base weights under adapters, and the weights of reward models.

    Teachers, reference models and initial critics are compared where they are loaded. All other weights are in the
    run's checkpoints.

    Raises:
        UsageError: some weights have changed, and no `--allow-change` allows it.
    """
    model = phases[-1].model
    if model.lora_rank:
        require_same_weights("model.name", model.name, model.revision, run, launch, parallel)
    folders = [parse_reward(text).folder for phase in phases for text in phase.data.reward]
    for folder in dict.fromkeys(filter(None, folders)):
        require_same_weights("data.reward", folder, "", run, launch, parallel)
