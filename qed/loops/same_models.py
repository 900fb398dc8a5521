"""The models that a resumed run reads again: a hash of their weights is in its events, and must stay the same."""

from __future__ import annotations

from collections.abc import Sequence

from qed.config.phases import Settings
from qed.config.reward_names import parse_reward
from qed.errors import UsageError
from qed.guards.redaction import redact
from qed.models.fingerprint import hash_weights
from qed.models.load import is_new
from qed.runs.run import Launch, Run, read_lines
from qed.training.parallel import Parallel


def require_same_weights(setting: str, name: str, revision: str, run: Run, launch: Launch, parallel: Parallel) -> None:
    """Record a hash of a model's weights, or compare it with that of an earlier attempt at the run; all ranks call it.

    Args:
        setting: that names the model, such as model.name.
        name: a folder or a name of the hub; a new model's weights follow from the run's seed and are not compared.
        revision: of the hub, or empty.
        run: the folder.
        launch: how the run was started.
        parallel: the ranks.

    Raises:
        UsageError: the weights are others than before, and no `--allow-change` of the setting allows it.
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
            f"{setting} {name} has other weights than when {run.folder} began: its folder has been written again, or "
            "the hub has a newer version. Restore it, start another run, or allow the change with --allow-change "
            f"{setting}."
        )
    if found and before[-1:] != [found]:
        run.event("weights", **about, hash=found)


def require_same_models(phases: Sequence[Settings], run: Run, launch: Launch, parallel: Parallel) -> None:
    """Record or compare the weights under adapters, and those of reward models.

    A teacher, a reference model and the start of a critic are compared where they are loaded. Other weights are in the
    run's checkpoints.

    Raises:
        UsageError: some are others than before, and nothing allows it.
    """
    model = phases[-1].model
    if model.lora_rank:
        require_same_weights("model.name", model.name, model.revision, run, launch, parallel)
    folders = [parse_reward(text).folder for phase in phases for text in phase.data.reward]
    for folder in dict.fromkeys(filter(None, folders)):
        require_same_weights("data.reward", folder, "", run, launch, parallel)
