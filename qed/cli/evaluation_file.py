"""Read the options of a command from a YAML file, under their own names or those of a run's settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence

from qed.cli.commands.base import Parser
from qed.config.arguments import Flags
from qed.config.checks import check_user_code
from qed.config.layers import Entry, find_config, read_layers
from qed.config.resolve import read_sources
from qed.config.reward_names import parse_reward
from qed.config.task_names import parse_task
from qed.config.values import is_list
from qed.errors import UsageError, suggest_nearest

# Settings for which an evaluation has an option, besides those of its model, prompt and reward.
SETTINGS = {
    "model.name": "model",
    "evaluation.tasks": "tasks",
    "evaluation.problems": "limit",
    "evaluation.samples": "samples",
    "evaluation.temperature": "temperature",
    "evaluation.top_p": "top_p",
    "evaluation.top_k": "top_k",
    "evaluation.min_p": "min_p",
    "sampling.max_tokens": "max_tokens",
    "run.out": "out",
}
# Sampling settings of training for which an evaluation has separate settings.
OF_TRAINING = ("temperature", "top_p", "top_k", "min_p")
BY_COMMAS = ("reward", "url")  # options that the command splits at commas itself, so that they take no brackets
# Permission to run user code must come from the command line, and a file does not name another file.
NEVER = ("allow_user_code", "config", "debug", "help")


def read_options(name: str, parser: Parser, passed: Mapping[str, str], allow_user_code: bool) -> list[str]:
    """Return the options of a configuration as arguments of the command line.

    Training settings without a counterpart in the command are left out, so that a run's configuration can be used.

    Args:
        name: a YAML file, or the name of a configuration.
        parser: the parser of the command.
        passed: maps the options that are settings of a run to the name of the setting.
        allow_user_code: whether the file may name code outside of qed.

    Raises:
        UsageError: an entry is unknown or invalid, or two entries of a file give one option; the message names file
            and line.
    """
    try:
        layers = read_layers(find_config(name))
    except UsageError as error:
        raise UsageError(f"{error} A model is given with --model.") from error
    by_setting = SETTINGS | {setting: option for option, setting in passed.items()}
    known = {option.lstrip("-").replace("-", "_") for action in parser._actions for option in action.option_strings}
    switches = {action.dest for action in parser._actions if action.nargs == 0}
    table = read_sources("grpo", []).table
    lists = {option for option, setting in passed.items() if is_list(table.settings[setting].kind)} - {*BY_COMMAS}
    arguments: list[str] = []
    for layer in layers:
        taken: dict[str, Entry] = {}
        for entry in layer:
            option = by_setting.get(entry.key, entry.key)
            if option not in known or option in NEVER:
                _require_setting(entry, parser.prog, [*known, *by_setting])
            elif not entry.raw.missing:
                _require_single(entry, taken.setdefault(option, entry))
                if not allow_user_code:
                    _refuse_user_code(option, entry)
                given = (
                    _convert_switch(option, entry) if option in switches else _convert(option, entry, option in lists)
                )
                _check_arguments(parser, given, entry)
                # A file may turn off a switch that a file it extends turns on.
                arguments = [text for text in arguments if given or text != _write_name(option)] + given
    return arguments


def _check_arguments(parser: Parser, arguments: Sequence[str], entry: Entry) -> None:
    """Raise UsageError, naming file and line, for an entry whose arguments are invalid on the command line."""
    try:
        parser.parse(arguments)
    except UsageError as error:
        raise UsageError(f"{entry.raw.origin}: {error}") from error


def pick_own_options(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments that a configuration gives as options of the command, not as settings of a run."""
    own = {entry.key for layer in read_layers(find_config(name)) for entry in layer}
    return [text for text in arguments if text.partition("=")[0].removeprefix("--").replace("-", "_") in own]


def report_training_sampling(args: argparse.Namespace, given: Collection[str]) -> None:
    """Print which sampling settings of the configuration apply to training only, not to this evaluation.

    Settings are not printed if their counterparts for evaluation are given too, as in the settings.yaml of a run, or
    if they come from files that the configuration extends.

    Args:
        args: the options of the evaluation.
        given: the names of the options that the file and the command line give.
    """
    if args.greedy or args.responses or args.scoring != "sampled":
        return
    layers = read_layers(find_config(args.config))
    own = {entry.key for entry in layers[-1]}
    swept = {sweep.partition("=")[0].strip().removeprefix("--").replace("-", "_") for sweep in args.sweep}
    decided = {entry.key for layer in layers for entry in layer} | {f"evaluation.{name}" for name in (*given, *swept)}
    unused = [name for name in OF_TRAINING if f"sampling.{name}" in own and f"evaluation.{name}" not in decided]
    if not unused:
        return
    from qed.console.live import Console  # noqa: PLC0415 -- only if there is something to say

    trained, evaluated = (" and ".join(f"{part}.{name}" for name in unused) for part in ("sampling", "evaluation"))
    options = " and ".join(f"--{name.replace('_', '-')}" for name in unused)
    Console(args.json).say(
        f"{args.config}: {trained} {'is that' if len(unused) == 1 else 'are those'} of training. An evaluation takes "
        f"{evaluated} in the file, or {options}."
    )


def _require_single(entry: Entry, first: Entry) -> None:
    """Raise UsageError for an option that a file gives under both of its names: either could be meant."""
    if entry is not first:
        earlier = f"{first.shown} ({first.raw.origin})"
        raise UsageError(f"{entry.raw.origin}: {entry.shown} is the same option as {earlier}. Give one of them.")


def _write_name(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _convert_switch(option: str, entry: Entry) -> list[str]:
    """Return a switch as an argument if it is on."""
    if entry.raw.text.lower() not in ("true", "false"):
        raise UsageError(f"{entry.raw.origin}: {entry.shown} must be true or false.")
    return [_write_name(option)] if entry.raw.text.lower() == "true" else []


def _convert(option: str, entry: Entry, listed: bool) -> list[str]:
    """Return an entry as an argument; the texts in a setting's list, such as stop strings, are kept verbatim."""
    texts = _list_texts(entry)
    several = entry.raw.items is not None
    needs_quotes = any(text != text.strip() or text.startswith("[") or (several and "," in text) for text in texts)
    joined = json.dumps(texts, ensure_ascii=False) if listed and needs_quotes else ",".join(texts)
    return [f"{_write_name(option)}={joined}"]


def _list_texts(entry: Entry) -> list[str]:
    return [entry.raw.text] if entry.raw.items is None else [item.text for item in entry.raw.items]


def _require_setting(entry: Entry, program: str, names: list[str]) -> None:
    """Raise UsageError for an entry that is neither an option of the command nor a training setting."""
    tables = [read_sources(command, []).table for command in ("grpo", "pipeline")]
    if entry.key == "method" or any(table.expand_key(entry.key) or entry.key in table.sections for table in tables):
        return
    section = entry.key.rpartition(".")[0]
    if "algorithm" in section.split("."):
        return  # a setting of the algorithm that the file was written for
    raise UsageError(
        f"{entry.raw.origin}: {entry.shown} is neither an option of {program} nor a setting."
        f"{suggest_nearest(entry.key, names)}"
    )


def _refuse_user_code(option: str, entry: Entry) -> None:
    """Refuse a file that names code outside of qed.

    Raises:
        UsageError: it does.
    """
    read = {"reward": lambda text: parse_reward(text).source, "tasks": lambda text: parse_task(text).leaf}
    if option not in (*read, "prompt", "sampler"):
        return
    for text in (part.strip() for whole in _list_texts(entry) for part in whole.split(",")):
        check_user_code(read.get(option, str)(text), entry.raw.origin, entry.shown, Flags())
