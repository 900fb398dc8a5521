"""Memory: the estimate for a run against the peak of a real run on this machine's CPU.

    python benchmarks/memory.py
    python benchmarks/memory.py --cases sft,grpo --ranks 2 --shard full

Each case is a whole run of qed in a separate process, on a model with random weights. A run of a tiny model comes
first, to load libraries and start threads and workers. The measured value is the peak resident memory of the second run
(VmHWM) minus the resident memory before it: once with glibc's heap only for small tensors, so that freed memory returns
to the system, and once with its default, whose heap fragments. The estimate is the one of the preflight check, of the
dry run and of `qed doctor --fit --device-memory`. With several ranks, each is measured, and the largest is shown;
torchrun starts them. The last line is JSON. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from results import add_json, print_result
from speed_parts.places import words
from transformers import Qwen2Config, Qwen2ForCausalLM

from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.config.screens import format_columns
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import load_prompt
from qed.loops.material import load_run_problems
from qed.loops.memory import estimate_memory
from qed.loops.train import train
from qed.models import lora
from qed.models.load import build_tokenizer, find_end_ids, load_outline
from qed.models.shapes import measure_shape
from qed.runs.run import Launch

MIB = 2**20
MALLOC, MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_", str(256 * 1024)  # glibc allocates larger tensors outside of its heap
PROBLEMS, PROMPT, REPLY = 32, 20, 60  # rows of the data file, and the words in their questions and solutions
REWARD = '''"""An arbitrary reward, so that every group has a signal."""
from qed.types import Grade, Rollout
import zlib


def reward(rollout: Rollout) -> Grade:
    value = zlib.crc32(rollout.text.encode("utf-8", "replace")) % 7 / 7
    return Grade(value, value > 0.5, True, None)
'''


@dataclass(frozen=True)
class Shape:
    """Shape of a Qwen2-like model with random weights."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "tiny": Shape(2, 64, 128, 4, 2, 8192),  # for the run before
    "medium": Shape(8, 512, 2048, 8, 4, 8192),
    "large": Shape(12, 768, 3072, 12, 4, 32000),
    "wide": Shape(6, 1024, 4864, 16, 2, 32000),  # the proportions of Qwen2.5
    "deep": Shape(24, 512, 2432, 8, 2, 16000),
}


@dataclass(frozen=True)
class Case:
    """A run: its command, the name of its shape and its settings."""

    method: str
    shape: str
    settings: dict[str, Any] = field(default_factory=dict)


PER_RANK = ("learner.batch_size", "sampling.problems_per_step")
SFT = {"learner.batch_size": 8, "learner.tokens_per_microbatch": 1024}
GRPO = {"sampling.problems_per_step": 2, "sampling.group_size": 6, "sampling.max_tokens": 96}
GRPO |= {"learner.tokens_per_microbatch": 640}  # fills two micro-batches about equally
CASES = {
    "sft": Case("sft", "medium", SFT),
    "sft large": Case("sft", "large", {**SFT, "learner.batch_size": 4, "learner.tokens_per_microbatch": 512}),
    "sft one part": Case("sft", "medium", {**SFT, "learner.tokens_per_microbatch": 8192}),
    "sft deep": Case("sft", "deep", SFT),
    "sft wide": Case("sft", "wide", SFT),
    "sft checkpointing": Case("sft", "wide", {**SFT, "model.gradient_checkpointing": True}),
    "sft bfloat16": Case("sft", "wide", {**SFT, "model.precision": "bfloat16"}),
    "sft half": Case("sft", "wide", {**SFT, "model.precision": "bfloat16", "model.dtype": "bfloat16"}),
    "sft lora": Case("sft", "wide", {**SFT, "model.lora_rank": 16}),
    "grpo": Case("grpo", "medium", GRPO),
    "grpo large": Case("grpo", "large", GRPO),
    "grpo reference": Case("grpo", "large", {**GRPO, "algorithm.kl": 0.01}),
    "grpo lora": Case("grpo", "wide", {**GRPO, "model.lora_rank": 16}),
    "grpo sampler": Case("grpo", "medium", {**GRPO, "sampling.problems_per_step": 8, "sampling.max_tokens": 64}),
}


def main() -> None:
    """Measure every case, print the table, then one line of JSON."""
    args = _parse()
    if args.child:
        _measure(json.loads(args.child))
        return
    names = [name.strip() for name in args.cases.split(",")] if args.cases else list(CASES)
    head = ["case", "model", "estimated MiB", "measured MiB", "ratio", "with glibc's heap", "parts of the estimate"]
    shared = {"parallel.shard": args.shard, "parallel.reduce": args.reduce}
    rows, results = [head], []
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            case = replace(CASES[name], settings=_widen(CASES[name].settings, args.ranks) | shared)
            result = run_case(case, Path(place), args.ranks, args.threads) | {"case": name}
            results.append(result)
            parts = ", ".join(f"{part} {size / MIB:.0f}" for part, size in result["parts"].items() if size >= MIB)
            estimated, measured, heap = (result[key] for key in ("estimated", "measured", "with_heap"))
            figures = [f"{estimated / MIB:.0f}", f"{measured / MIB:.0f}", f"{estimated / measured:.2f}"]
            rows.append([name, CASES[name].shape, *figures, f"{heap / MIB:.0f}", parts])
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(format_columns(rows))
    print_result({"ranks": args.ranks, **shared, "cases": results}, args.json)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    parser.add_argument("--cases", default="", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--ranks", type=int, default=1, help="number of training processes")
    parser.add_argument(
        "--shard", choices=("none", "grads", "full"), default="none", help="what is sharded over the ranks"
    )
    parser.add_argument("--reduce", choices=("step", "microbatch"), default="step", help="when gradients are reduced")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _widen(settings: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Scale the work so that each rank has that of a single one."""
    return {key: value * ranks if key in PER_RANK else value for key, value in settings.items()}


def run_case(case: Case, place: Path, ranks: int, threads: int) -> dict[str, Any]:
    """Run a case in separate processes, and return the largest measured peak with its estimate."""
    folder, tiny = _make_model(place, case.shape), _make_model(place, "tiny")
    results = []
    for threshold in (MMAP_THRESHOLD, ""):
        out = Path(tempfile.mkdtemp(dir=place))
        request = {"method": case.method, "folder": str(folder), "out": str(out), "settings": case.settings}
        request["tiny"] = str(tiny / "hf")
        results.append(_run_ranks(request, ranks, {"OMP_NUM_THREADS": str(threads), MALLOC: threshold}))
    return results[0] | {"with_heap": results[1]["measured"]}


def _run_ranks(request: dict[str, Any], ranks: int, environment: dict[str, str]) -> dict[str, Any]:
    """Run a case on all ranks, and return the largest peak of a rank with its estimate."""
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *start, __file__, "--child", json.dumps(request)]
    set_ = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(
        command, env={key: value for key, value in set_.items() if value}, capture_output=True, text=True, check=False
    )
    results = [json.loads(file.read_text("utf-8")) for file in sorted(Path(request["out"]).glob("peak_*.json"))]
    if done.returncode or len(results) != ranks:
        raise SystemExit(f"The run ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return max(results, key=lambda result: int(result["measured"]))


def _make_model(place: Path, name: str) -> Path:
    """Write a model with random weights, its tokenizer, a data file and a reward, unless they exist."""
    folder, shape = place / name, SHAPES[name]
    if folder.is_dir():
        return folder
    tokenizer = build_tokenizer([words(shape.vocabulary, 0)], shape.vocabulary)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder / "hf")
    tokenizer.save_pretrained(folder / "hf")
    rows = [
        {"question": words(PROMPT, 2 * number), "solution": words(REPLY, 2 * number + 1), "answer": str(number)}
        for number in range(PROBLEMS)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "signal.py").write_text(REWARD, encoding="utf-8")
    return folder


def _measure(request: dict[str, Any]) -> None:
    """Run a tiny model, then the case, and write the peak of the case with its estimate."""
    folder, out = Path(request["folder"]), Path(request["out"])
    rank = os.environ.get("RANK", "0")
    _train(_resolve(request, request["tiny"], out / "warm_up", {}))
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _read_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    settings = _resolve(request, str(folder / "hf"), out / "run", request["settings"])
    _train(settings)
    measured = _read_status("VmHWM") - before
    parts = _estimate(settings, int(os.environ.get("WORLD_SIZE", "1")))
    result = {"measured": measured, "estimated": sum(parts.values()), "parts": parts, "before": before}
    (out / f"peak_{rank}.json").write_text(json.dumps(result), encoding="utf-8")


def _resolve(request: dict[str, Any], model: str, out: Path, extra: dict[str, Any]) -> Settings:
    folder = Path(request["folder"])
    command = ["--model", model, "--out", str(out), "--tasks", str(folder / "rows.jsonl"), "--prompt", "question_only"]
    command += [
        "--steps",
        "2",
        "--reward",
        str(folder / "signal.py"),
        "--evaluation.problems",
        "4",
    ]
    command += ["--evaluation.at_start", "false", "--evaluation.samples", "0", "--run.preflight", "false"]
    if request["method"] == "sft":
        command += ["--sampling.max_tokens", "16"]
    command += [part for key, value in extra.items() for part in (f"--{key}", str(value).lower())]
    settings = resolve_settings(request["method"], command).settings
    assert isinstance(settings, Settings)
    return settings


def _train(settings: Settings) -> None:
    train(settings, Launch(json=True))


def _estimate(settings: Settings, ranks: int) -> dict[str, int]:
    """Estimate the parts of the run's larger peak, as the dry run does."""
    model, tokenizer = load_outline(settings.model)
    if settings.model.lora_rank:
        model = lora.add_adapters(model, settings.model, 0)
    leaf = load_prompt(settings.data)
    problems = load_run_problems([settings])[0].problems
    template = PromptTemplate(leaf, tokenizer, find_end_ids(model, tokenizer, leaf.CHAT))
    reply = max(len(tokenizer(problem.solution or "").input_ids) for problem in problems) + 1
    prompt = max(template.lengths(problems))
    estimates = estimate_memory(measure_shape(model), settings, prompt, reply, len(problems), "cpu", ranks)
    return max(estimates, key=lambda memory: memory.total).parts


def _read_status(name: str) -> int:
    """Return a memory figure of this process in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
