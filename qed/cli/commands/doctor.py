"""Look at this machine; find the batch that fits its memory (--fit) and the threads that are fastest (--tune)."""
# ruff: noqa: PLC0415, T201 -- torch is imported once the options are read, and this prints results

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.errors import UsageError

if TYPE_CHECKING:
    from qed.doctor.rows import Lengths

ABOUT = """Look at this machine, and measure what fits it.

Without options: devices, what they compute in hardware, attention kernels, threads, versions, disk, the hub's cache. No
network is used. --fit runs a learner and a sampler at growing sizes and reckons the largest that fit the memory; --tune
times threads and the precision of products of matrices. Both print settings that `qed grpo` takes."""
EPILOG = """examples:
  qed doctor
  qed doctor --fit Qwen/Qwen2.5-0.5B --lengths 200,800 --group 8 > fits.yaml && qed grpo fits.yaml --tasks gsm8k
  qed doctor --fit gsm8k-lora.yaml --lengths 200,800 --memory 24 learner.optimizer=adamw_offload
  qed doctor --tune new:small"""
USUAL_LENGTHS = "32,32"  # of --tune, which asks for less


def run(arguments: Sequence[str]) -> int:
    """Print what the machine can do, or the settings that were measured."""
    asked = _build_parser().parse(arguments)
    if asked.fit is not None and asked.tune is not None:
        raise UsageError("qed doctor: --fit and --tune are two measurements. Ask for one at a time.")
    unmeasured = asked.fit is None and asked.tune is None
    if unmeasured and (asked.settings or asked.lengths or asked.group or asked.memory):
        raise UsageError("qed doctor: settings, lengths and memory belong to a measurement: say --fit or --tune.")
    result = _run_checks() if unmeasured else _run_measurement(asked)
    print(json.dumps(result.as_object()) if asked.json else result.text())
    return 0


def _build_parser() -> Parser:
    parser = Parser("doctor", ABOUT, EPILOG)
    add = parser.add_argument
    add("--fit", nargs="?", const="", metavar="MODEL", help="the largest micro-batch and sampler batch that fit")
    add("--tune", nargs="?", const="", metavar="MODEL", help="threads and precision of products that are fastest")
    add("--lengths", metavar="PROMPT,ANSWER", help="tokens of the longest prompt and answer; --fit needs them")
    add("--group", type=int, metavar="N", help="answers to a prompt (default: sampling.group_size)")
    add("--memory", type=float, default=0.0, metavar="GIB", help="what may be taken (default: what is free)")
    add("--json", action="store_true", help="print one JSON object")
    add("settings", nargs="*", metavar="CONFIG|section.setting=VALUE", help="settings of qed grpo to measure with")
    return parser


def _run_checks() -> Any:
    from qed.doctor.card import run_checks

    return run_checks()


def _run_measurement(asked: argparse.Namespace) -> Any:
    if not 0 <= asked.memory < float("inf"):
        raise UsageError("qed doctor: --memory is a number of GiB above 0.")
    lengths = _parse_lengths(asked)
    arguments = _build_arguments(asked, lengths)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if asked.fit is not None:
        from qed.doctor.fit import measure_fit

        return measure_fit(arguments, lengths, asked.memory, say)
    from qed.doctor.trial import resolve_trial_settings
    from qed.doctor.tune import tune

    return tune(resolve_trial_settings(arguments), lengths, say)


def _parse_lengths(asked: argparse.Namespace) -> Lengths:
    given = asked.lengths or (USUAL_LENGTHS if asked.fit is None else "")
    parts = given.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(
            "qed doctor: --lengths takes the tokens of the longest prompt and of the longest answer, for example "
            "--lengths 200,800."
        )
    from qed.doctor.rows import Lengths

    return Lengths(int(parts[0]), int(parts[1]))


def _build_arguments(asked: argparse.Namespace, lengths: Lengths) -> list[str]:
    """The command line of `qed grpo` that is measured with; what ends in .yaml or holds a = is no model's name."""
    name = asked.fit if asked.fit is not None else asked.tune
    settings = list(asked.settings)
    if "=" in name or name.endswith((".yaml", ".yml")):
        settings.insert(0, name)
        name = ""
    settings += ["--model", name] if name else []
    settings += ["--sampling.group_size", str(asked.group)] if asked.group is not None else []
    return [*settings, "--sampling.max_tokens", str(lengths.answer)]
