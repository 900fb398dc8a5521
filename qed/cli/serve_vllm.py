"""`qed serve --engine vllm` and `qed serve --install vllm`: a vLLM server in a separate Python environment."""
# ruff: noqa: PLC0415, T201 -- torch is imported after the options are parsed, and this prints the server's address

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qed import host
from qed.cli.commands.policy_options import resolve_policy_settings
from qed.errors import UsageError
from qed.serving.install import CPU_INDEX, TESTED, VARIABLE, find_vllm, install_vllm

if TYPE_CHECKING:
    from qed.config.phases import Settings
    from qed.serving.processes import ServerProcess
    from qed.serving.vllm import VllmOptions

LOOPBACK = ("127.0.0.1", "localhost")
# Options that only the native engine takes.
NATIVE = {"attention": None, "token": None, "device": None}


def add_vllm_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of --engine vllm and --install."""
    group = parser.add_argument_group("vLLM, in a separate Python environment")
    add = group.add_argument
    add("--install", choices=["vllm"], help=f"install vLLM {TESTED} in the user's cache, and exit")
    add("--index", default="", metavar="URL", help=f"an additional package index for --install, such as {CPU_INDEX}")
    add(
        "--engine-python", default="", metavar="PATH", help=f"the Python of an environment with vLLM; or set {VARIABLE}"
    )
    add("--allow-untested", action="store_true", help="accept a version of vLLM that qed is not tested with")
    add(
        "--engine-version",
        default="",
        metavar="VERSION",
        help=f"the version that --install installs (default: {TESTED})",
    )
    add("--devices", default="", metavar="NAMES", help="such as cuda:0,cuda:1; the model is split over them")
    add("--memory-share", type=float, default=0.7, metavar="SHARE", help="of each device's memory (default: 0.7)")
    add("--max-model-len", type=int, metavar="N", help="longest sequence in tokens (default: the model's)")
    add("--lora-rank", type=int, default=0, metavar="RANK", help="largest rank of adapters that clients may load")


def install(args: argparse.Namespace) -> int:
    """Install the engine that --install names."""
    from qed.console.live import Console

    vllm = install_vllm(Console(args.json).say, args.engine_version, args.index, args.allow_untested)
    if args.json:
        print(json.dumps({"python": str(vllm.python), "package": vllm.package, "version": vllm.version}))
    return 0


def serve_vllm(args: argparse.Namespace, name: str, format_curl: Callable[[str, str, bool], str]) -> int:
    """Serve a model with vLLM until a signal comes, and return the exit code.

    Args:
        args: the options of `qed serve`.
        name: the name of the model for clients.
        format_curl: formats an example request as a command line.

    Raises:
        QedError: vLLM is not installed, the model cannot be served, or the server does not start.
    """
    from qed.console.live import Console
    from qed.serving.foreground import run_in_foreground
    from qed.serving.vllm import build_vllm_spec

    _require_local(args)
    vllm = find_vllm(args.engine_python, args.allow_untested)
    settings, shown = resolve_policy_settings(args)
    spec = build_vllm_spec(vllm, _build_options(args, settings, name), host.find_cache() / "logs", port=args.port)
    console = Console(args.json)
    console.say(f"Starting vLLM {vllm.version} with {shown}; this takes one to three minutes.")

    def report(server: ServerProcess) -> None:
        if args.json:
            print(json.dumps({"url": server.url, "model": name, "pid": os.getpid()}), flush=True)
            return
        console.say(f"Serving {name} at {server.url}/v1; its log is {server.log}. Ctrl-C ends the server. Try:")
        print(format_curl(server.url, name, False), flush=True)

    return run_in_foreground(spec, console.say, report)


def _require_local(args: argparse.Namespace) -> None:
    """Raise UsageError for options that would expose the server to other machines, or that vLLM does not have."""
    if args.host not in LOOPBACK or args.token:
        raise UsageError(
            "qed serve --engine vllm listens on 127.0.0.1 only, because vLLM's training routes require no key. Leave "
            "--host and --token out, and reach it through an SSH tunnel, or serve with --engine native."
        )
    for option, default in NATIVE.items():
        if getattr(args, option) != default:
            advice = " Name vLLM's devices with --devices." if option == "device" else ""
            raise UsageError(f"qed serve --engine vllm has no --{option}.{advice}")


def _build_options(args: argparse.Namespace, settings: Settings, name: str) -> VllmOptions:
    from qed.serving.vllm import VllmOptions

    model = settings.model.name
    if Path(model).is_dir() and not (Path(model) / "config.json").exists():
        raise UsageError(
            f"{model} has no config.json, so it is not a complete model. vLLM serves an adapter on its base model: "
            "serve the base model with --lora-rank RANK, and load the adapter with POST /v1/load_lora_adapter."
        )
    if not 0 < args.memory_share < 1 or args.lora_rank < 0 or (args.max_model_len or 1) < 1:
        raise UsageError(
            "qed serve: --memory-share must lie in (0, 1), --lora-rank must not be negative, and --max-model-len must "
            "be at least 1."
        )
    return VllmOptions(
        model=str(Path(model).resolve()) if Path(model).is_dir() else model,
        name=name,
        dtype=settings.model.precision,
        window=args.max_model_len,
        seed=settings.run.seed,
        rows=settings.sampling.rows_per_batch,
        devices=tuple(part for part in args.devices.split(",") if part),
        memory_share=args.memory_share,
        threads=settings.run.threads,
        lora_rank=args.lora_rank,
        revision=settings.model.revision or "",
        allow_untested=args.allow_untested,
    )
