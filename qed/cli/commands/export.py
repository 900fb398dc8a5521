"""Export a run's model for transformers, vLLM and the Hugging Face hub: complete weights or the adapter, and a card."""
# ruff: noqa: PLC0415, T201 -- torch is imported after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.errors import UsageError
from qed.runs.choose import LAST, choose_checkpoint, is_run, suggest_run

if TYPE_CHECKING:
    from qed.config.phases import Settings
    from qed.console.live import Console
    from qed.training.export import Export

ABOUT = """Write a run's model as a folder for transformers, vLLM and the Hugging Face hub.

The folder has the weights as safetensors, the configuration, the tokenizer with its chat template, and a model card
with the measured evaluation of the exported step. A run with adapters exports the adapter alone, or with --merge
complete weights. The run is not changed."""
EPILOG = """examples:
  qed export runs/first --dtype bfloat16 --out models/first
  qed export runs/lora --merge --checkpoint best
  qed export runs/first --push me/my-model"""
DTYPES = ("bfloat16", "float16", "float32")
FOLDER = "export"  # in the run's folder


def run(arguments: Sequence[str]) -> int:
    """Export the model, and upload it with --push."""
    args = _build_parser().parse(arguments)
    if not is_run(args.run):
        raise UsageError(
            f"{args.run} is not a run: it has no settings.yaml. Name the folder of a run.{suggest_run(args.run)}"
        )
    result = _export(args)
    if args.json:
        print(json.dumps(result))
    return 0


def _build_parser() -> Parser:
    parser = Parser("export", ABOUT, EPILOG)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run's folder")
    add("--checkpoint", default=LAST, metavar="WHICH", help="last, best or the number of a step (default: last)")
    add("--merge", action="store_true", help="for a run with adapters: complete weights, the adapters merged into them")
    add("--dtype", choices=DTYPES, default="", help="dtype of the weights (default: that of the checkpoint, float32)")
    add("--out", type=Path, metavar="FOLDER", help=f"the folder to write (default: RUN/{FOLDER})")
    add("--overwrite", action="store_true", help="replace an earlier export in the folder")
    add(
        "--license", default="", metavar="NAME", help="license for the model card (default: the base model's, if known)"
    )
    add("--push", default="", metavar="NAME", help="upload to the hub as NAME, to a private repository")
    add("--public", action="store_true", help="with --push: a repository that everybody can see")
    add("--allow-user-code", action="store_true", help="allow the run's settings to name code outside of qed")
    add("--json", action="store_true", help="print the result as one line of JSON, as the last line of stdout")
    return parser


def _export(args: argparse.Namespace) -> dict[str, Any]:
    if args.public and not args.push:
        raise UsageError("--public is for --push: name the repository with --push NAME.")
    checkpoint, step = choose_checkpoint(args.run, args.checkpoint)
    from qed.console.live import Console
    from qed.rollout.trained import UNGRADED, resolve_model_settings
    from qed.training.export import Export, check_export, choose_dtype, write_export

    settings, console = resolve_model_settings(args.run, "", UNGRADED, args.allow_user_code), Console(args.json)
    adapter = _choose_adapter(args, settings, checkpoint, console)
    out = args.out or args.run / FOLDER
    export = Export(checkpoint, out, adapter, args.dtype, overwrite=args.overwrite)
    check_export(export)
    target = None
    if args.push:
        from qed.models.push import Target

        target = Target(args.push, args.public)
    title = target.name.rpartition("/")[2] if target else args.run.resolve().name
    card = _build_card(args, settings, export, step, title)
    write_export(replace(export, card=card))
    size = sum(file.stat().st_size for file in out.iterdir())
    what = "adapter" if adapter else "model"
    console.say(f"The {what} of step {step} is in {out} ({choose_dtype(export)}, {size / 2**20:,.1f} MiB).")
    result = {"folder": str(out), "step": step, "kind": what, "dtype": choose_dtype(export), "bytes": size}
    if target is not None:
        target.upload(out, f"{what} of step {step}, exported by qed")
        console.say(f"Uploaded to {target.url} ({'public' if args.public else 'private'}).")
        result["url"] = target.url
    return result


def _choose_adapter(args: argparse.Namespace, settings: Settings, checkpoint: Path, console: Console) -> bool:
    """Return whether to export the adapter alone, and print what the choice means."""
    from qed.models.adapters import read_base

    model = settings.model
    if not model.lora_rank:
        if args.merge:
            console.say("--merge has no effect: the run trained all weights, and has no adapters.")
        return False
    if not args.merge and (reason := _find_reason_to_merge(settings, checkpoint / "adapter")):
        console.say(f"The adapters are merged: {reason}.")
        return False
    base = "" if args.merge else read_base(checkpoint / "adapter").name
    if base and Path(base).is_dir():
        if args.push:
            raise UsageError(
                f"The adapter's base model is the local folder {base}, which others cannot load. Add --merge to upload "
                "complete weights."
            )
        console.say(f"The adapter's base model is the folder {base}; --merge exports complete weights.")
    if model.quantization != "none":
        console.say(
            f"The base model was quantized to {model.quantization} in training. "
            + (
                "The merged weights are the quantized base plus the adapters, as in training; no GPU is needed."
                if args.merge
                else "On the unquantized base the adapter computes slightly different outputs; load the base in 4 bits "
                "(a CUDA device, and bitsandbytes), or export with --merge."
            )
        )
    return not args.merge


def _find_reason_to_merge(settings: Settings, adapter: Path) -> str:
    """Return why the adapter of a run cannot be used alone, or an empty string."""
    from qed.models.adapters import is_adapter, read_base

    if settings.model.name.startswith("new:"):
        return f"their base model, {settings.model.name}, exists only in this run"
    if settings.algorithm.has_scalar_head:
        return "the scale of a reward model is read from its own configuration"
    base = read_base(adapter).name
    return f"their base, {base}, is itself an adapter, which peft would replace with them" if is_adapter(base) else ""


def _build_card(args: argparse.Namespace, settings: Settings, export: Export, step: int, title: str) -> str:
    from qed.config import plugins
    from qed.data.tasks import find_hub_name
    from qed.models.push import find_license
    from qed.report.model_card import Contents, build_card
    from qed.runs.run import read_evaluations

    evaluated = dict(read_evaluations(args.run)).get(step, {})
    leaves = plugins.list_leaves("tasks")
    benchmarks = {
        label: find_hub_name(label.replace("-", ":", 1)) for label in evaluated if label.split("-")[0] in leaves
    }
    # An adapter on a local folder is not an adapter of a model on the hub.
    on_hub = not Path(settings.model.name).is_dir()
    contents = Contents(
        step,
        title,
        usage=_describe_usage(settings, export),
        relation="adapter" if export.adapter and on_hub else "finetune",
        library="peft" if export.adapter else "transformers",
        license=args.license or find_license(settings.model.name),
        datasets=tuple(dict.fromkeys(filter(None, map(find_hub_name, settings.data.tasks)))),
        benchmarks={label: name for label, name in benchmarks.items() if name},
    )
    return build_card(args.run, contents)


def _describe_usage(settings: Settings, export: Export) -> str:
    """Describe how to load the model, and which prompt training used."""
    from qed.data.prompts.base import PromptTemplate
    from qed.data.splits import load_prompt, resolve_prompt_name
    from qed.models.adapters import read_base
    from qed.models.load import load_tokenizer
    from qed.types import Problem

    tokenizer, _ = load_tokenizer(str(export.checkpoint / "hf"))
    template = PromptTemplate(load_prompt(settings.data), tokenizer, (0,))
    prompt = template.prompt(Problem("", "{question}", "")).text
    # A fence longer than any in the prompt.
    fence = "`" * max(3, 1 + max((len(run) for run in prompt.split() if set(run) == {"`"}), default=0))
    load = (
        f"`peft.AutoPeftModelForCausalLM.from_pretrained` loads the adapter on its base model; vLLM takes it with "
        f"`vllm serve {read_base(export.checkpoint / 'adapter').name} --enable-lora --lora-modules NAME=FOLDER`."
        if export.adapter
        else "`transformers.AutoModelForCausalLM.from_pretrained` and `vllm serve FOLDER` load this folder."
    )
    stops = " or ".join(f"`{stop}`" for stop in template.stop)
    way = "The tokenizer's chat template renders it." if template.leaf.CHAT else "It is plain text."
    return (
        f"{load}\n\nTraining used the prompt `{resolve_prompt_name(settings.data)}` for each question. {way}"
        f"{f' Generation stops after {stops}.' if stops else ''}\n\n{fence}text\n{prompt}\n{fence}"
    )
