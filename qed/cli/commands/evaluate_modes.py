"""Raise an error for given options that have no effect in the chosen mode of `qed evaluate`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from qed.cli.commands.base import Parser
from qed.cli.commands.endpoint_options import is_endpoint
from qed.cli.commands.verdict_options import check_reward_options
from qed.errors import UsageError

DECODING = ("temperature", "top_p", "top_k", "min_p")
NEUTRAL = {"samples": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0}  # values without effect
# Options of answers that a model writes: how they are requested and sampled.
WRITING = (
    *("prompt", "prompt_options", "system_prompt", "chat_template_options", "environment", "environment_options"),
    *("exemplars", "samples", "greedy", *DECODING, "max_tokens", "stop", "sampler", "preflight"),
)
SERVERS = ("url", "api", "key_variable", "concurrency", "request_seconds", "extra")
MODEL = (
    *("step", "tasks", "limit", "seed", "map", "scoring", "shots", *WRITING, *SERVERS),
    *("revision", "device", "precision", "attention", "rows_per_batch", "threads", "watchdog"),
)
STORED = ("gold_key", "response_key", "id_key", "lists", "extract")
# What a mode does, and the options that have no effect on it.
UNUSED = {
    "responses": ("--responses scores every answer of a file, and uses no model.", MODEL),
    "sampled": ("A reward grades a model's answers, and no file is read without --responses.", STORED),
    "endpoint": (
        "A model behind an endpoint gets single requests, and no model is loaded here.",
        (*STORED, "rows_per_batch", "preflight"),  # not threads: a reward model uses them too
    ),
    "likelihood": (
        "--scoring likelihood samples and grades no text: it compares the log-probs of the choices.",
        (*STORED, *WRITING, "reward", "reward_options", "ties", "policy", "also_grade"),
    ),
}


def list_given(parser: Parser, args: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Return the names of the options that a command line gives, and of those that it sweeps.

    Empty if it sweeps modes, because each option may have an effect in one of them.
    """
    named = [action.dest for _, action in parser.list_given(arguments)]
    swept = [sweep.partition("=")[0].strip().removeprefix("--").replace("-", "_") for sweep in args.sweep]
    return [] if "scoring" in swept else list(dict.fromkeys([*named, *swept]))


def check_modes(parser: Parser, args: argparse.Namespace, given: Sequence[str]) -> None:
    """Require that every option that the user has given has an effect in the mode of the evaluation.

    Raises:
        UsageError: some have none; the message names all of them.
    """
    if (args.model is None) == (args.responses is None) and args.url is None:
        return  # another error reports that exactly one of the two is needed
    mode = "responses" if args.responses is not None else args.scoring
    mode = "endpoint" if mode == "sampled" and is_endpoint(args.model) else mode
    # `--sampler server` with log-likelihoods is refused where models are loaded, with advice on what to do instead.
    useful = "sampler" if mode == "likelihood" and args.sampler == "server" else ""
    about, unused = UNUSED[mode]
    wrong = [name for name in given if name in unused and name != useful and _has_effect(parser, args, name)]
    if wrong:
        raise UsageError(f"qed evaluate: {about} Leave out {_join(wrong)}.")
    if mode == "responses":
        check_reward_options(args)


def check_greedy(
    parser: Parser, args: argparse.Namespace, arguments: Sequence[str], chosen: Sequence[str] = ()
) -> None:
    """Check for sampling parameters that have no effect because of --greedy.

    Those of a file are an error together with its own `greedy`. If --greedy comes from the command line, which always
    takes precedence, they are only reported: the file may be meant for other evaluations too.

    Args:
        parser: the parser of the command.
        args: the options of the file and the command line.
        arguments: the arguments of the command line.
        chosen: the options that the file gives under their own names, followed by `arguments`.

    Raises:
        UsageError: the same source gives --greedy and such parameters, or the command line gives such parameters.
    """
    if not args.greedy:
        return
    own = chosen[: len(chosen) - len(arguments)]
    given, in_file = ([action.dest for _, action in parser.list_given(part)] for part in (arguments, own))
    both = set(in_file if "greedy" in in_file else ()) | set(given)
    if wrong := [name for name in DECODING if name in both and _has_effect(parser, args, name)]:
        raise UsageError(f"qed evaluate: --greedy ignores {_join(wrong)}: leave one of the two out.")
    if unused := [name for name in DECODING if name in in_file and _has_effect(parser, args, name)]:
        from qed.console.live import Console  # noqa: PLC0415 -- only if there is something to say

        have = "has" if len(unused) == 1 else "have"
        Console(args.json).say(f"{args.config}: {', '.join(unused)} {have} no effect with --greedy.")


def _has_effect(parser: Parser, args: argparse.Namespace, name: str) -> bool:
    """Return whether the value of an option differs from its default and is not neutral."""
    value = getattr(args, name)
    return bool(value) and value not in (parser.get_default(name), NEUTRAL.get(name))


def _join(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
