"""Options of the commands that answer questions with a model: the model, its prompt and its sampling."""
# ruff: noqa: PLC0415 -- torch is imported after the options are parsed

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.config.settings import is_temperature
from qed.errors import UsageError
from qed.runs.choose import LAST, choose_checkpoint, is_run, suggest_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from qed.config.phases import Settings
    from qed.rollout.policy import Policy
    from qed.sampling.base import Sampling

DEFAULT_TOKENS = 2_048
# Maps options that are settings of a run to the name of the setting.
PASSED = {
    "prompt": "data.prompt",
    "prompt_options": "data.prompt_options",
    "chat_template_options": "data.chat_template_options",
    "device": "model.device",
    "precision": "model.precision",
    "dtype": "model.dtype",
    "attention": "model.attention",
    "revision": "model.revision",
    "seed": "run.seed",
    "threads": "run.threads",
    "sampler": "sampling.sampler",
    "rows_per_batch": "sampling.rows_per_batch",
}


def add_policy_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the options; `required` says whether a model must be named."""
    add = parser.add_argument
    count = None if required else "?"
    add(
        "model",
        metavar="MODEL|RUN",
        nargs=count,
        help="a run's folder, a Hugging Face or adapter folder, or a hub name",
    )
    add("--checkpoint", default=LAST, metavar="WHICH", help="for a run: last, best or the number of a step")
    add("--prompt", metavar="NAME", help="prompt by name (default: the run's, or the model's chat template)")
    add("--prompt-options", metavar="NAME.FIELD=VALUE,…", help="options of the prompt")
    add_chat_option(add)
    add_sampling_options(add, "sampling temperature, 0 is greedy (default: 0.6)")
    add("--max-tokens", type=int, metavar="N", help="longest answer (default: the run's, or up to 2048)")
    add("--seed", metavar="N", help="random seed (default: 0, or the run's)")
    add("--revision", metavar="REV", help="the hub revision of the model")
    add("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps")
    add("--precision", metavar="NAME", help="float32, bfloat16 or float64")
    add("--threads", metavar="N", help="CPU threads")
    add("--sampler", default="", metavar="NAME", help="sampler by name (default: native)")
    add("--allow-user-code", action="store_true", help="allow the run's settings to name code outside of qed")


def add_sampling_options(add: Callable[..., object], temperature: str) -> None:
    """Add the options of sampling; `temperature` is the help text of the first."""
    add("--temperature", type=float, default=0.6, metavar="T", help=temperature)
    add("--top-p", type=float, default=0.95, metavar="P", help="nucleus sampling (default: 0.95)")
    add("--top-k", type=int, default=0, metavar="K", help="sample from the K most likely tokens (default: all)")
    add("--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P times the top token's probability")


def add_chat_option(add: Callable[..., object]) -> None:
    """Add the option for variables of the chat template."""
    add("--chat-template-options", metavar="NAME=VALUE,…", help="template variables, such as enable_thinking=false")


def check_numbers(args: argparse.Namespace, command: str) -> None:
    """Check the numbers.

    Raises:
        UsageError: a number is out of range.
    """
    checks = (
        (is_temperature(args.temperature), "--temperature must be 0, or at least 1e-6"),
        (0 < args.top_p <= 1, "--top-p must be above 0 and at most 1"),
        (0 <= args.min_p < 1, "--min-p must be at least 0 and below 1"),
        (args.top_k >= 0, "--top-k must not be negative"),
        (args.max_tokens is None or args.max_tokens >= 1, "--max-tokens must be at least 1"),
    )
    for valid, message in checks:
        if not valid:
            raise UsageError(f"qed {command}: {message}.")


def list_passed(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a run that the options set, by key."""
    return {key: value for name, key in PASSED.items() if (value := getattr(args, name, None))}


def resolve_policy_settings(args: argparse.Namespace) -> tuple[Settings, str]:
    """Return the settings of the model with its folder or name, and a display name, with the step for a run.

    Raises:
        QedError: the model or the checkpoint does not exist, or an option is invalid.
    """
    from qed.models import load
    from qed.rollout.trained import UNGRADED, resolve_model_settings

    options = list_passed(args)
    # No environment runs here: an answer is one turn.
    options |= {"data.environment": "single", "data.environment_options": "[]", **UNGRADED}
    run_folder = Path(args.model)
    if is_run(run_folder):
        checkpoint, step = choose_checkpoint(run_folder, args.checkpoint)
        settings = resolve_model_settings(run_folder, str(checkpoint / "hf"), options, args.allow_user_code)
        # The checkpoint's weights have the adapters merged, and are not quantized.
        model = replace(settings.model, lora_rank=0, lora_targets=(), quantization="none")
        return replace(settings, model=model), f"{args.model} after step {step}"
    if args.checkpoint != LAST:
        raise UsageError(f"--checkpoint is for a run, but {args.model} is not one: it has no settings.yaml.")
    if not args.model or load.is_new(args.model):
        raise UsageError(f"'{args.model}' has no trained weights to answer with; name a model or a run.")
    _require_no_typo(args.model)
    if "data.prompt" not in options:
        tokenizer, _ = load.load_tokenizer(args.model, str(options.get("model.revision", "")))
        options["data.prompt"] = "chat" if tokenizer.chat_template else "question_only"
    return resolve_model_settings(None, args.model, options, args.allow_user_code), args.model


def _require_no_typo(name: str) -> None:
    """Raise UsageError for a missing folder or a misspelled run, instead of looking the name up on the hub."""
    place = Path(name)
    suggestion = "" if place.exists() else suggest_run(place)
    if suggestion or (not place.exists() and (place.is_absolute() or name.count("/") > 1)):
        raise UsageError(f"There is no run or model {name}.{suggestion}")


def load_answering_policy(settings: Settings, say: Callable[[str], None]) -> Policy:
    """Load the model onto its device in the compute precision, with its prompt and sampler."""
    from torch import bfloat16

    from qed.models import load, lora, threads
    from qed.rollout.policy import load_policy, load_remote_policy, report_handover

    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    if settings.sampling.sampler == "server":
        return load_remote_policy(settings)
    device = load.pick_device(settings.model.device)
    threads.prepare_kernels(device, say)
    policy = load_policy(settings, [], device, None)
    report_handover(policy.sampler, say)
    policy.model.requires_grad_(False)
    if settings.model.precision == "bfloat16":
        lora.cast_frozen_weights(policy.model, bfloat16)
    return policy


def choose_max_tokens(args: argparse.Namespace, settings: Settings, policy: Policy) -> int:
    """Return the maximum tokens of an answer: as given, else the run's, else half of the window, at most 2,048."""
    from qed.models.load import read_window

    trained = settings.sampling.max_tokens if is_run(Path(args.model)) else 0
    return int(args.max_tokens or trained or min(DEFAULT_TOKENS, read_window(policy.model) // 2))


def read_sampling(args: argparse.Namespace, max_tokens: int, stop: tuple[str, ...]) -> Sampling:
    """Return the sampling parameters of the command line."""
    from qed.sampling.base import Sampling

    return Sampling(args.temperature, max_tokens, stop, args.top_p, args.top_k, args.min_p)
