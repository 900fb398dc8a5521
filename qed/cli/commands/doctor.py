"""Check this machine; find the batch sizes that fit its memory (--fit) and the fastest threads (--tune)."""
# ruff: noqa: PLC0415, T201 -- torch is imported after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.errors import UsageError

if TYPE_CHECKING:
    from qed.doctor.trial import Lengths

IN_EACH_RANK = True  # each rank may check its own machine
ABOUT = """Check this machine, and measure which settings fit it.

Without options, shows devices, their hardware precisions, attention kernels, threads, versions, disk and the hub's
cache, without using the network. --fit runs a learner and a sampler at growing sizes and estimates the largest that fit
into memory; with --device-memory it computes what fits such a card and measures nothing. --tune times thread counts and
the precision of matrix products. All print settings for `qed grpo`."""
EPILOG = """examples:
  qed doctor
  qed doctor --fit Qwen/Qwen2.5-0.5B --lengths 200,800 --group 8 > fits.yaml && qed grpo fits.yaml --tasks gsm8k
  qed doctor --fit gsm8k-lora.yaml --lengths 200,800 --memory 24 learner.optimizer=adamw_offload
  qed doctor --fit qwen2.5-7b --device-memory 80
  qed doctor --fit qwen2.5-7b --device-memory 24 model.lora_rank=16 model.quantization=nf4
  qed doctor --fit Qwen/Qwen2.5-7B --device-memory 80 --devices 2 --lengths 512,2048
  qed doctor --tune new:small"""
DEFAULT_LENGTHS = "32,32"  # of --tune, which needs no particular lengths


def run(arguments: Sequence[str]) -> int:
    """Print the checks of the machine, or the measured settings."""
    args = _build_parser().parse(arguments)
    if args.fit is not None and args.tune is not None:
        raise UsageError("qed doctor: --fit and --tune are two measurements. Give one of them.")
    checks_only = args.fit is None and args.tune is None
    if args.device_memory is None and (args.devices != 1 or args.shard):
        raise UsageError("qed doctor: --devices and --shard are for --fit MODEL --device-memory GB.")
    if checks_only and (args.settings or args.lengths or args.group or args.memory or args.device_memory):
        raise UsageError("qed doctor: settings, lengths and memory are for a measurement: add --fit or --tune.")
    result = _run_checks() if checks_only else _run_measurement(args)
    print(json.dumps(result.as_object()) if args.json else result.text())
    return 0


def _build_parser() -> Parser:
    parser = Parser("doctor", ABOUT, EPILOG)
    add = parser.add_argument
    add("--fit", nargs="?", const="", metavar="MODEL", help="find the largest micro-batch and sampler batch that fit")
    add("--tune", nargs="?", const="", metavar="MODEL", help="find the fastest threads and precision of products")
    add("--lengths", metavar="PROMPT,ANSWER", help="tokens of the longest prompt and answer; required by --fit")
    add("--group", type=int, metavar="N", help="answers per prompt (default: sampling.group_size)")
    add("--memory", type=float, default=0.0, metavar="GIB", help="memory to use (default: the free memory)")
    add(
        "--device-memory", type=float, metavar="GB", help="with --fit: compute what fits such a device, measure nothing"
    )
    add("--devices", type=int, default=1, metavar="N", help="with --device-memory: the number of such devices")
    add("--shard", choices=("none", "grads", "full"), default="", help="with --devices: what they share; default full")
    add("--json", action="store_true", help="print one JSON object")
    add("settings", nargs="*", metavar="CONFIG|section.setting=VALUE", help="settings of qed grpo to measure with")
    return parser


def _run_checks() -> Any:
    from qed.doctor.card import run_checks

    return run_checks()


def _run_measurement(args: argparse.Namespace) -> Any:
    if not 0 <= args.memory < float("inf"):
        raise UsageError("qed doctor: --memory is a number of GiB above 0.")
    if args.device_memory is not None:
        return _compute_fit(args)
    lengths = _parse_lengths(args)
    arguments = _build_arguments(args, lengths)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if args.fit is not None:
        from qed.doctor.fit import measure_fit

        return measure_fit(arguments, lengths, args.memory, say)
    from qed.doctor.trial import resolve_trial_settings
    from qed.doctor.tune import tune

    return tune(resolve_trial_settings(arguments), lengths, say)


def _compute_fit(args: argparse.Namespace) -> Any:
    """Compute what fits devices that this machine need not have."""
    if args.fit is None or "=" in args.fit or not args.fit:
        raise UsageError("qed doctor: --device-memory takes a model by name or path: --fit qwen2.5-7b.")
    if not 0 < args.device_memory < float("inf") or args.devices < 1 or args.memory:
        raise UsageError(
            "qed doctor: --device-memory is a number of GB above 0, --devices at least 1, without --memory."
        )
    from qed.doctor.arithmetic import GB, compute_fit
    from qed.doctor.ways import Device

    options = {"sampling.group_size": args.group} if args.group is not None else {}
    options |= {"parallel.shard": args.shard} if args.shard else {}
    device = Device(args.device_memory * GB, args.devices, args.shard)
    lengths = _parse_lengths(args) if args.lengths else None
    return compute_fit(args.fit, args.settings, device, lengths, options)


def _parse_lengths(args: argparse.Namespace) -> Lengths:
    given = args.lengths or (DEFAULT_LENGTHS if args.fit is None else "")
    parts = given.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(
            "qed doctor: --lengths takes the tokens of the longest prompt and of the longest answer, for example "
            "--lengths 200,800."
        )
    from qed.doctor.trial import Lengths

    return Lengths(int(parts[0]), int(parts[1]))


def _build_arguments(args: argparse.Namespace, lengths: Lengths) -> list[str]:
    """Build the command line of `qed grpo` to measure; a name that ends in .yaml or contains = is not a model."""
    name = args.fit if args.fit is not None else args.tune
    settings = list(args.settings)
    if "=" in name or name.endswith((".yaml", ".yml")):
        settings.insert(0, name)
        name = ""
    _require_single(
        settings, "max_tokens", lengths.answer, f"--lengths {args.lengths}" if args.lengths else "the default --lengths"
    )
    settings += ["--model", name] if name else []
    if args.group is not None:
        _require_single(settings, "group_size", args.group, "--group")
        settings.append(f"--sampling.group_size={args.group}")
    return [*settings, f"--sampling.max_tokens={lengths.answer}"]


def _require_single(settings: Sequence[str], key: str, value: int, option: str) -> None:
    """Raise UsageError if a sampling setting contradicts the option that determines it."""
    for given in settings:
        written, equals, text = given.partition("=")
        named = written.lstrip("-").replace("-", "_").removeprefix("sampling.") == key
        if named and equals and text != str(value):
            raise UsageError(
                f"qed doctor: {option} makes sampling.{key} {value}, and {given} is given too. Leave one of them out."
            )
