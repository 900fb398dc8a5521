"""List configurations, show settings with their origin, check them, or import those of another system."""
# ruff: noqa: PLC0415, T201 -- the sweep module is imported only for sweeps, and this is where results are printed

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from qed import host
from qed.algorithms.base import Algorithm
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.scales import compute_factor
from qed.algorithms.parts.surrogates import CLIPPING
from qed.cli.commands.base import Parser
from qed.config.keys import list_origins, list_values
from qed.config.layers import list_config_folders, list_configs, read_title
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import Resolved, resolve_settings
from qed.config.screens import format_columns, format_listing
from qed.config.training_commands import resolve_training_command
from qed.config.unread import describe_unread
from qed.config.values import format_value
from qed.errors import UsageError

IN_EACH_RANK = True  # the settings may depend on the machine
ACTIONS = ("list", "show", "validate", "import")
USAGE = (
    "Usage: qed config list\n"
    "       qed config show COMMAND [CONFIG…] [--section.setting VALUE …] [--json]\n"
    "       qed config validate COMMAND [CONFIG…] [--section.setting VALUE …]\n"
    "       qed config import trl|open-r1|verl|luffy|llama-factory|axolotl FILE… [--out FILE.yaml] [-- ARGUMENT…]\n\n"
    "`list` prints the configurations that can be used by name, of ./configs and of qed. `show` prints every setting\n"
    "with the origin of its value; `validate` only checks the command line. `import` converts YAML files, shell\n"
    "scripts and arguments of another system to a configuration, and reports on stderr what became of each setting:\n"
    "kept, renamed, or without an equivalent, and why. Scripts are read, never executed."
)


def run(arguments: Sequence[str]) -> int:
    """Show or validate the settings of a command line."""
    if arguments and arguments[0] == "import":
        return _import(arguments[1:])
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    action = arguments[0]
    if list(arguments) == ["list"]:
        files = list_configs(list_config_folders())
        print(format_listing("Configurations", {name: read_title(files[name]) for name in sorted(files)}))
        return 0
    if action not in ("show", "validate") or len(arguments) < 2:
        raise UsageError(f"qed config {' '.join(arguments)} is incomplete or unknown.\n{USAGE}")
    command = resolve_training_command(arguments[1])
    resolved = resolve_settings(command, arguments[2:])
    if resolved.flags.sweep:
        from qed.config import sweep

        sweep.list_points(command, arguments[2:])
    if action == "show":
        print(_format_settings(resolved))
    else:
        given = len(resolved.list_given())
        for line in describe_unread(resolved.settings, list_origins(resolved.settings, resolved.origins)):
            print(f"Warning: {line}")
        print(f"Valid: {given} of {len(resolved.origins)} settings are given, the others are defaults.")
    return 0


def _import(arguments: Sequence[str]) -> int:
    """Convert another system's configuration, check the result, and print it or write it to a file."""
    from qed.config.imports.convert import convert_options, list_rows, load_system, suggest_command
    from qed.config.imports.read import read_options

    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    parser = Parser("config import", "Turn another system's configuration into one of qed's.")
    parser.add_argument("system", metavar="SYSTEM", help="trl, open-r1, verl, luffy, llama-factory or axolotl")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="YAML files or shell scripts")
    parser.add_argument("--method", default="", help="the method, where the files do not say it: sft, grpo, dpo, …")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the YAML file to write (default: stdout)")
    args = parser.parse(words[:cut])
    system = load_system(args.system)
    if not args.files and not words[cut + 1 :]:
        raise UsageError("qed config import needs a file, or arguments after --.")
    given = read_options(args.files, words[cut + 1 :]) | ({"method": args.method} if args.method else {})
    imported = convert_options(system, given)
    print(format_columns([(imported.title, "value", "qed", "note"), *list_rows(imported)]), file=sys.stderr)
    print(f"\nRun it with: {suggest_command(imported, args.out)}", file=sys.stderr)
    if args.out is None:
        print(imported.text, end="")
    elif args.out.exists():
        raise UsageError(f"{args.out} exists. Choose another name for --out, or delete it.")
    else:
        args.out.write_text(imported.text, encoding="utf-8")
    return 0


def _format_settings(resolved: Resolved) -> str:
    """Format every setting with its value and origin, as a table or as JSON."""
    values = list_values(resolved.settings)
    values = {key: values[key] for key in resolved.origins}
    if resolved.flags.json:
        return json.dumps({key: {"value": value, "origin": resolved.origins[key]} for key, value in values.items()})
    settings = resolved.settings
    phases = settings.phases() if isinstance(settings, PipelineSettings) else [settings]
    scales = [line for phase in phases if phase.algorithm.online for line in ("", *_describe_scale(phase))]
    return "\n".join(
        [
            format_columns([key, format_value(value), resolved.origins[key]] for key, value in values.items()),
            *_preview_device(resolved),
            *scales,
        ]
    )


def _preview_device(resolved: Resolved) -> list[str]:
    """Return lines about the defaults for the device of this machine, if it has one."""
    if not host.may_have_cuda():
        return []  # without importing torch, which takes seconds
    import torch

    if not torch.cuda.is_available():
        return []
    from qed.loops.device_fit import preview_device_defaults
    from qed.models.load import pick_device

    origins = list_origins(resolved.settings, resolved.origins)
    return ["", *preview_device_defaults(resolved.settings, origins, pick_device(resolved.settings.model.device))]


def _describe_scale(settings: Settings) -> list[str]:
    """Describe the scale of an online phase: its updates per step, the weight of a token and the probability ratio."""
    sampling, learner, algorithm = settings.sampling, settings.learner, settings.algorithm
    answers = sampling.problems_per_step * sampling.group_size
    rows = min(learner.batch_size or answers, answers)
    updates = math.ceil(answers / rows) * learner.passes
    lines = [
        f"In one step of {settings.method}:",
        f"  updates    {sampling.problems_per_step} problems x {sampling.group_size} answers = {answers} answers: "
        f"{updates} optimizer step{'s' * (updates > 1)} of {rows} rows, {learner.passes} "
        f"pass{'es' * (learner.passes > 1)} over them",
        f"  one token  {_describe_token_weight(algorithm, rows, sampling.max_tokens)}",
    ]
    if isinstance(algorithm, PolicyGradient) and algorithm.surrogate.kind != "plain":
        lines.append(f"  the ratio  {_describe_ratio(algorithm, updates)}")
        surrogate = algorithm.surrogate
        if surrogate.kind == "cispo" and surrogate.cispo_clip == "trl" and surrogate.clip_high < 1:
            lines.append(
                f"  the clip   algorithm.cispo_clip trl bounds the weight at algorithm.clip_high itself, so that every "
                f"update is scaled down to {surrogate.clip_high:g} at most; TRL recommends 5"
            )
    return lines


def _describe_token_weight(algorithm: Algorithm, rows: int, max_tokens: int) -> str:
    """Describe the weight of one token in the loss, for several row lengths if it depends on them."""
    if type(algorithm).weights not in (Algorithm.weights, PolicyGradient.weights):
        return "has a weight by the algorithm's own rule, see docs/algorithms.md"
    scale = compute_factor(algorithm.scale, algorithm.average, rows) if isinstance(algorithm, PolicyGradient) else 1.0
    half = max(1, max_tokens // 2)
    if algorithm.average == "sequence":
        lengths = sorted({max(1, max_tokens // 8), half, max_tokens})
        each = ", ".join(f"{scale / (rows * length):.2g} in a row of {length}" for length in lengths)
        return f"weighs 1/({rows} rows x its row's tokens): {each}"
    if algorithm.average == "token":
        return f"weighs 1/(the step's tokens): {scale / (rows * half):.2g} where {rows} rows have {half} on average"
    by_length = f" x {max_tokens} tokens" if algorithm.average == "constant" else ""
    times = f" x {scale:g} ({algorithm.scale})" if isinstance(algorithm, PolicyGradient) and scale != 1 else ""
    divisor = rows * (max_tokens if algorithm.average == "constant" else 1)
    return f"weighs 1/({rows} rows{by_length}){times} = {scale / divisor:.2g} in a row of any length"


def _describe_ratio(algorithm: PolicyGradient, updates: int) -> str:
    """Describe the probability ratio, and whether its clip can bind."""
    clip = " and its clip never binds" if algorithm.surrogate.kind in CLIPPING else ""
    if algorithm.surrogate.to_sampler or algorithm.correction.kind == "bypass":
        return "is to the sampler's log-probs: 1 except for rounding, stale weights and earlier updates of the step"
    if updates > 1:
        return (
            f"is to the learner's log-probs before the first of {updates} updates: 1 in the first update; in the later "
            "ones it measures how far the policy has moved"
        )
    if algorithm.needs_old_logps:
        return f"is exactly 1{clip}, with a single update and old log-probs from the learner"
    return (
        f"is 1{clip}, with a single update per sampling, except for the difference between the sampler's and the "
        "learner's log-probs (mismatch/logp) and for answers left over from an earlier policy"
    )
