"""Train from Python, with the same settings, run folder and errors as on the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qed.api.keywords import list_options, use_keywords
from qed.api.process import prepare_process
from qed.api.runs import Run
from qed.cli.training import run_recipe
from qed.config.layers import find_config, read_method
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import resolve_settings
from qed.config.training_commands import resolve_training_command
from qed.data.sources.memory import get_given_rows
from qed.errors import Interrupted

Config = str | os.PathLike[str]


def train(method: str | os.PathLike[str], config: Config | Sequence[Config] | None = None, **settings: Any) -> Run:
    """Train a model as `qed METHOD CONFIG --settings` does, and return the run.

    In a notebook, progress is one line that is updated in place. An interrupt saves the last complete step; the same
    call with `out=` set to that run's folder and `resume=True` resumes from it.

    Args:
        method: an algorithm (`sft`, `grpo`, `dr_grpo`, `dpo`, `luffy`, …), `pipeline`, `quickstart`, or the path of a
            .py file.
        config: a YAML file, or the name of a configuration of qed; several are layered from left to right.
        settings: `model`, `tasks`, `prompt`, `reward`, `steps`, `lr`, `out`, `seed` and `device`; any other setting by
            its dotted key, `**{"sampling.group_size": 8}`, or as a dict of its section, `sampling={"group_size": 8}`;
            and `resume`, `overwrite`, `requeue`, `allow_change`, `fast`, `allow_user_code`. None means not given.
            `tasks` (and `evaluation.tasks`) may also be data: a list of dicts, a `datasets.Dataset` or a data frame.
            `reward` may also be a function, a lambda or a coroutine function that takes a `Rollout` and returns a
            number, a `Grade`, or None if it does not apply; a pair `(weight, function)`; or a list of rewards.

    Raises:
        qed.errors.UsageError: a setting is unknown or invalid, or the folder cannot be used.
        qed.errors.DataError: the data cannot be used.
        qed.errors.ModelError: the model cannot be used.
        qed.errors.Diverged: a loss, a gradient or a reward is not finite.
        qed.errors.NothingTrained: no step had a gradient; the run is otherwise complete.
        qed.errors.Interrupted: a signal stopped the run; the last complete step is saved.
    """
    prepare_process()
    with use_keywords(settings) as texts:
        arguments = [*_list_configs(config), *list_options(texts)]
        resolved = resolve_settings(resolve_training_command(method), arguments)
        try:
            result = run_recipe(resolved, [os.fspath(method), *arguments])
        except Interrupted as stopped:
            stopped.add_note("In Python: repeat the call to qed.train with out= set to that folder and resume=True.")
            raise
        run = Run(Path(result["run"]))
        run.given = get_given_rows()
    return run


def load_settings(
    config: Config | Sequence[Config] | None = None, *, method: str | os.PathLike[str] = "", **settings: Any
) -> Settings | PipelineSettings:
    """Return the settings that `qed.train` would use, without training.

    Args:
        config: a YAML file, such as the settings.yaml of a run, the folder of a run, or the name of a configuration of
            qed; several are layered from left to right.
        method: see `train`; by default the method that the (first) file names, as the settings.yaml of a run does.
        settings: see `train`.

    Returns:
        Frozen dataclasses, as in `settings.learner.lr`; with two phases, `settings.rl.learner.lr`.

    Raises:
        qed.errors.UsageError: a setting is unknown or invalid, or there is no such file.
    """
    prepare_process()
    configs = _list_configs(config)
    if not method:
        method = read_method(find_config(configs[0])) if configs else "pipeline"
    with use_keywords(settings) as texts:
        return resolve_settings(resolve_training_command(method), [*configs, *list_options(texts)]).settings


def _list_configs(config: Config | Sequence[Config] | None) -> list[str]:
    """Return configurations as arguments, and replace the folder of a run by its settings.yaml."""
    if config is None:
        return []
    configs = [config] if isinstance(config, str | os.PathLike) else config
    files = [(os.fspath(each), Path(each) / "settings.yaml") for each in configs]
    return [str(saved) if saved.is_file() else name for name, saved in files]
