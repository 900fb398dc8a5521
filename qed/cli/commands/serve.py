"""Serve a model behind an OpenAI-compatible API, for evaluations, training and other programs."""
# ruff: noqa: PLC0415, T201 -- the server is imported after the options are parsed, and this prints its address

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.cli.commands.policy_options import PASSED, resolve_policy_settings
from qed.cli.evaluation_file import read_options
from qed.cli.serve_vllm import add_vllm_options, install, serve_vllm
from qed.config.layers import SUFFIXES
from qed.errors import UsageError
from qed.runs.choose import LAST, is_run

if TYPE_CHECKING:
    from qed.config.phases import Settings
    from qed.serving.engine_start import EngineProcess
    from qed.serving.messages import ModelSource
    from qed.serving.options import ServerOptions
    from qed.serving.server import Ready

IN_EACH_RANK = True  # each machine may run its own server
ABOUT = """Serve a model behind an OpenAI-compatible API: completions, chat, streams and log-probs.

The server stays in the foreground and prints its address with an example. It answers only programs on this machine
unless --host and a token are given. SIGTERM and Ctrl-C stop it within seconds."""
EPILOG = """examples:
  qed serve runs/first
  qed serve Qwen/Qwen2.5-0.5B-Instruct --port 8000 --precision bfloat16
  QED_SERVE_TOKEN=… qed serve runs/first --host 0.0.0.0 --port 8000
  qed serve serve.yaml
  qed serve --install vllm
  qed serve runs/first --engine vllm"""
ENGINES = ("native", "vllm")
TOKEN = "QED_SERVE_TOKEN"  # environment variable


def run(arguments: Sequence[str]) -> int:
    """Serve a model until a signal comes."""
    parser = _build_parser()
    args = parser.parse(arguments)
    source: str | None = args.source
    if source is not None and Path(source).suffix in SUFFIXES:
        # The command line comes after the file, so it takes precedence.
        args = parser.parse([*read_options(source, parser, PASSED, args.allow_user_code), *arguments], layered=True)
        source = None
    if args.install:
        return install(args)
    if (source is None) == (args.model is None):
        raise UsageError(
            "qed serve needs a model: a run's folder, a model's folder or name, or a YAML file with model."
        )
    args.model = args.model if source is None else source
    if args.engine == "vllm":
        return serve_vllm(args, choose_name(args), format_curl)
    if args.devices:
        raise UsageError("qed serve uses one device: name it with --device. --devices is for --engine vllm.")
    return _serve_native(args)


def _build_parser() -> Parser:
    parser = Parser("serve", ABOUT, EPILOG)
    add = parser.add_argument
    add("source", nargs="?", metavar="MODEL|RUN|CONFIG.yaml", help="what to serve; a YAML file has these options")
    add("--model", metavar="MODEL|RUN", help="what to serve, for use in a YAML file")
    add("--checkpoint", default=LAST, metavar="WHICH", help="for a run: last, best or the number of a step")
    add("--engine", choices=ENGINES, default="native", help="inference engine (default: native, qed's own)")
    add("--name", metavar="NAME", help="the model's name for clients (default: MODEL, or the name of the run's folder)")
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: 127.0.0.1); others need a token",
    )
    add("--port", type=int, default=0, metavar="N", help="the port (default: 0, a free one)")
    add("--token", metavar="TEXT", help=f"token that clients must send; {TOKEN} sets it without showing it in `ps`")
    add("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps")
    add("--precision", metavar="NAME", help="float32, bfloat16 or float64")
    add("--dtype", metavar="NAME", help="precision of the weights: float32 or bfloat16")
    add("--attention", metavar="NAME", help="auto, sdpa, flash_attention_2 or eager")
    add("--revision", metavar="REV", help="the hub revision of the model")
    add("--threads", metavar="N", help="CPU threads of the engine")
    add("--rows-per-batch", metavar="N", help="maximum answers generated at the same time (default: 128)")
    add("--max-body-mb", type=float, default=10.0, metavar="MB", help="largest request body (default: 10)")
    add("--allow-user-code", action="store_true", help="allow the run's settings to name code outside of qed")
    add("--json", action="store_true", help="print one line of JSON with url, model and pid once the server answers")
    add_vllm_options(parser)
    return parser


def _serve_native(args: argparse.Namespace) -> int:
    from qed.serving.engine_start import start_process

    args.token = args.token or os.environ.pop(TOKEN, "")  # removed, so that child processes do not inherit it
    options = _read_options(args)
    with closing(start_process()) as process:  # both processes import their libraries at the same time
        return _serve_from(process, args, options)


def _serve_from(process: EngineProcess, args: argparse.Namespace, options: ServerOptions) -> int:
    from qed.console.live import Console
    from qed.data.splits import load_prompt
    from qed.models.load import load_tokenizer
    from qed.serving.server import run_server

    settings, shown = resolve_policy_settings(args)
    tokenizer, _ = load_tokenizer(settings.model.name, settings.model.revision)
    console = Console(args.json)
    console.say(f"Loading {shown} …")
    prompt = load_prompt(settings.data)
    # Same as in training, see `load_policy`.
    tokenizer.chat_template = getattr(prompt, "chat_template", tokenizer.chat_template)
    source = build_source(settings, prompt.CHAT)
    report = _choose_report(args.json, console.say, options)
    return run_server(source, tokenizer, options, console.say, report, process)


def build_source(settings: Settings, chat: bool) -> ModelSource:
    """Return the model of an engine for the settings of a run or a model; `chat` as for `ModelSource`."""
    from qed.serving.messages import ModelSource

    return ModelSource(
        settings.model,
        settings.sampling.rows_per_batch,
        settings.run.threads,
        settings.run.matmul_precision,
        chat=chat,
    )


def _read_options(args: argparse.Namespace) -> ServerOptions:
    """Return where to listen, and who may connect."""
    from qed.serving.options import ServerOptions

    if not 0 < args.max_body_mb <= 10_000:
        raise UsageError("qed serve: --max-body-mb must be above 0 and at most 10000.")
    name = choose_name(args)
    return ServerOptions(
        host=args.host,
        port=args.port,
        token=args.token,
        name=name,
        others=() if name == args.model else (args.model,),
        body_limit=int(args.max_body_mb * 1e6),
    )


def choose_name(args: argparse.Namespace) -> str:
    """Return the model's name for clients."""
    folder = Path(args.model)
    return str(args.name or (folder.resolve().name if is_run(folder) else args.model))


def _choose_report(as_json: bool, say: Callable[[str], None], options: ServerOptions) -> Callable[[Ready], None]:
    """Return a function that prints the address of the server once it answers."""

    def report(ready: Ready) -> None:
        if ready.info.handed_over:
            say(f"The native sampler does not support this model, and the slower hf is used: {ready.info.handed_over}.")
        if as_json:
            print(json.dumps({"url": ready.url, "model": ready.name, "pid": os.getpid()}), flush=True)
            return
        say(f"Serving {ready.name} at {ready.url}/v1 (window {ready.info.window} tokens). Ctrl-C ends the server. Try:")
        print(format_curl(ready.url, ready.name, bool(options.token)), flush=True)

    return report


def format_curl(url: str, name: str, has_token: bool) -> str:
    """Return a curl command for an example request; it reads the token from the environment instead of showing it."""
    body: dict[str, Any] = {"model": name, "prompt": "1 + 1 =", "max_tokens": 16}
    key = f' -H "Authorization: Bearer ${TOKEN}"' if has_token else ""
    return (
        f"curl {shlex.quote(url)}/v1/completions{key} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )
