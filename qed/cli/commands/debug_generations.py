"""Sample a model's answers to a few problems, and show tags, extracted answers, reward parts and diversity."""
# ruff: noqa: PLC0415, T201 -- the sampler is imported after the options are parsed, and this prints results

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qed.config.layers import read_method
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import resolve_settings
from qed.errors import UsageError

USAGE = """Usage: qed debug-generations MODEL|RUN [--problems N] [--answers K] [--whole] [--json] [CONFIG…]
                             [--section.setting VALUE …]

Samples K answers (4) to each of N training problems (4) with the sampler, prompt and reward of training. Shows the
tags and the final answer of each, its reward, and how much the answers differ. For a RUN it uses the final model with
the run's settings. Settings are those of `qed grpo`, for example --tasks, --prompt, --reward and
--sampling.temperature."""
SHORT = {"--problems": "--sampling.problems_per_step", "--answers": "--sampling.group_size"}
# A run's tracker is not started; it may be code that is not available here.
DEFAULTS = ("--sampling.problems_per_step", "4", "--sampling.group_size", "4", "--run.trackers", "[]")


def run(arguments: Sequence[str]) -> int:
    """Sample and grade answers, and print them."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0 if arguments else UsageError.exit_code
    if arguments[0].startswith("-"):
        raise UsageError(f"qed debug-generations needs a model or a run first, not {arguments[0]}.\n{USAGE}")
    whole = "--whole" in arguments
    words, answers = _take_single([word for text in arguments[1:] if text != "--whole" for word in _split(text)])
    settings, as_json = _resolve_settings(arguments[0], words)
    from qed.evaluation.debug_generations import debug_generations

    result = debug_generations(settings, answers or settings.sampling.group_size, whole, as_json)
    if as_json:
        print(json.dumps(result))
    return 0


def _split(argument: str) -> tuple[str, ...]:
    """Return `--answers=4` and `--problems=4` as a name and a value, and anything else as it is."""
    name, equals, value = argument.partition("=")
    return (name, value) if equals and name in SHORT else (argument,)


def _take_single(words: Sequence[str]) -> tuple[list[str], int]:
    """Remove `--answers 1`, and return the other arguments and 1; without it, all arguments and 0.

    An algorithm that compares the answers of a group would refuse a group size of 1, but nothing is trained here.
    """
    places = [number for number, word in enumerate(words) if word == "--answers"]
    if not places or list(words[places[-1] + 1 : places[-1] + 2]) != ["1"]:
        return list(words), 0
    return [word for number, word in enumerate(words) if {number, number - 1}.isdisjoint(places)], 1


def _resolve_settings(model: str, arguments: Sequence[str]) -> tuple[Settings, bool]:
    """Return the settings of a model, or of a run with its final model, and whether --json is given."""
    given = [SHORT.get(word, word) for word in arguments]
    saved = Path(model) / "settings.yaml"
    if saved.is_file():
        command, before = read_method(saved), [str(saved), "--model", str(Path(model) / "final" / "hf")]
    else:
        command, before = "grpo", ["--model", model]
    resolved = resolve_settings(command, [*before, *DEFAULTS, *given])
    settings = resolved.settings
    return settings.phase("rl") if isinstance(settings, PipelineSettings) else settings, resolved.flags.json
