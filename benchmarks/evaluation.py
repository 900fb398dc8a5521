"""How fast answers are scored and sampled, compared with math-verify and with lm-eval on transformers or vLLM.

    python benchmarks/evaluation.py [--responses FILE] [--rounds 3]
    python benchmarks/evaluation.py --against lm-eval [--model new:large] [--backend vllm] [--python OTHER/bin/python]

Both sides take turns. Scoring is everything that `qed evaluate --responses` does with the rows: extraction in three
ways, verdicts, classes, votes, intervals. math-verify only parses and compares. Sampling compares two whole commands
with greedy decoding on the same random model, prompts, stop string and maximum length; lm-eval may be in a separate
environment, given by its Python. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from grading_parts.card import machine
from math_verify import parse, verify
from results import add_json, print_result
from speed_parts import load

from qed.data import tasks
from qed.data.prompts.r1_zero import TEXT
from qed.evaluation.stored import Scoring, score_responses, summarize_columns
from qed.models.load import build_model

DATA = Path("../shared/data/gsm8k")
PUBLISHED = "example_model_solutions.jsonl"
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
TOKENS = 128
WINDOW = 1024  # vLLM's context window; prompts and answers fit


def main() -> None:
    """Measure, print a card, then one line of JSON."""
    asked = _parser().parse_args()
    figures = _sampling(asked) if asked.against else _scoring(asked)
    figures |= {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rounds": asked.rounds,
        "machine": machine(),
    }
    print(f"{figures['what']}, {asked.rounds} rounds in turns on {os.cpu_count()} cores")
    for name, seconds in figures["seconds"].items():
        print(f"  {name:<28} {median(seconds):8.2f} s   ({', '.join(f'{each:.2f}' for each in seconds)})")
    for name, ratio in figures["ratio"].items():
        print(f"  {name} needs {ratio:.2f} times the time, {figures['ratio_cpu'][name]:.2f} times the CPU seconds")
    if note := load.describe_load(figures["load"]):
        print(note)
    print_result(figures, asked.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json(parser)
    parser.add_argument("--responses", type=Path, default=DATA / PUBLISHED, help="four columns of stored answers")
    parser.add_argument("--count", type=int, default=10_000, help="answers to score")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per side, in turns")
    parser.add_argument("--against", choices=("lm-eval",), help="sample with a model, and compare with this rival")
    parser.add_argument("--problems", type=int, default=200, help="number of problems to sample answers to")
    parser.add_argument("--model", default="new:small", help="model with random weights")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="precision of both sides"
    )
    parser.add_argument("--backend", choices=("hf", "vllm"), default="hf", help="of lm-eval")
    parser.add_argument("--tasks", type=Path, default=DATA / "test.jsonl", help="their file")
    parser.add_argument(
        "--batches", default="128,1", help="lm-eval's batch sizes: 128 is qed's, 1 is lm-eval's default; auto with vLLM"
    )
    parser.add_argument("--python", default=sys.executable, help="Python of an environment with lm-eval")
    return parser


def _timed(rounds: int, rivals: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Measure wall-clock and CPU seconds, including ended child processes, and the ratios of their medians."""
    wall: dict[str, list[float]] = {name: [] for name in rivals}
    cpu: dict[str, list[float]] = {name: [] for name in rivals}
    laps, watch = [], load.Watch()
    for _ in range(rounds):
        for name, work in rivals.items():
            watch.restart()
            began, spent = time.perf_counter(), sum(os.times()[:4])
            work()
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(sum(os.times()[:4]) - spent)
            laps.append(watch.lap())
    ratios = {"ratio": _ratios(wall), "ratio_cpu": _ratios(cpu)}
    return {"seconds": wall, "cpu_seconds": cpu, **ratios, "load": load.sum_up(laps)}


def _ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    ours = median(seconds["qed"])
    return {name: round(median(each) / ours, 3) for name, each in seconds.items() if name != "qed"}


def _scoring(asked: argparse.Namespace) -> dict[str, Any]:
    published = [json.loads(line) for line in asked.responses.read_text(encoding="utf-8").splitlines()]
    pairs = [
        (row["ground_truth"].rpartition("A:")[2].strip(), row[name]["solution"]) for name in MODELS for row in published
    ]
    pairs = (pairs * (asked.count // len(pairs) + 1))[: asked.count]

    def theirs() -> float:
        off = {"parsing_timeout": None}
        found = [verify(parse(gold, **off), parse(text, **off), timeout_seconds=None) for gold, text in pairs]
        return sum(found) / len(found)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.jsonl"
        rows = ({"id": place, "gold": gold, "response": text} for place, (gold, text) in enumerate(pairs))
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

        def ours() -> float:
            return float(summarize_columns(score_responses(file, Scoring()))["answers"]["accuracy"])

        right = {"qed": ours(), "math-verify": theirs()}  # also warms both up
        found = _timed(asked.rounds, {"qed": ours, "math-verify": theirs})
    print(f"right: {right}")
    libraries = {"math-verify": version("math-verify")}
    what = f"scoring {asked.count:,} stored answers to GSM8K"
    return {"what": what, **found, "right": right, "libraries": libraries}


def _sampling(asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        problems = tasks.load_task(str(asked.tasks), "test", {})
        network, tokenizer = build_model(asked.model, [f"{each.question}\n{each.solution}" for each in problems], 0)
        network.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        _write_task(folder, asked.tasks.resolve(), TEXT)

        def ours() -> None:
            _run(
                [sys.executable, "-m", "qed", "evaluate"],
                ["--model", folder / "model", "--tasks", asked.tasks, "--limit", asked.problems, "--greedy"],
                ["--prompt", "r1_zero", "--max-tokens", TOKENS, "--precision", asked.precision],
                ["--out", folder / f"out-{time.monotonic_ns()}"],
            )

        def theirs(batch: str) -> Callable[[], None]:
            return lambda: _run(
                [asked.python, "-m", "lm_eval", "--model", asked.backend, *_describe_model(asked, folder / "model")],
                ["--tasks", "qed_speed", "--include_path", folder],
                ["--limit", asked.problems, "--batch_size", batch],
            )

        rivals = {"qed": ours} | {f"lm-eval, batches of {batch}": theirs(batch) for batch in asked.batches.split(",")}
        found = _timed(asked.rounds, rivals)
    what = f"{asked.problems} problems, greedy, at most {TOKENS} tokens, {asked.model}, {asked.precision}"
    return {"what": what, **found}


def _describe_model(asked: argparse.Namespace, model: Path) -> list[str]:
    """Return lm-eval's arguments for its backend."""
    if asked.backend == "hf":
        return ["--model_args", f"pretrained={model},dtype={asked.precision}", "--device", "cpu"]
    return ["--model_args", f"pretrained={model},dtype={asked.precision},max_model_len={WINDOW}"]


def _write_task(folder: Path, file: Path, prompt: str) -> None:
    """Write an lm-eval task with the same problems, prompt, stop string and maximum length."""
    task = {
        "task": "qed_speed",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": prompt.replace("{question}", "{{question}}"),
        "doc_to_target": "{{answer.split('####')[-1].strip()}}",
        "generation_kwargs": {"until": ["</answer>"], "max_gen_toks": TOKENS, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    # JSON is valid YAML.
    (folder / "qed_speed.yaml").write_text(json.dumps(task), encoding="utf-8")


def _run(*words: list[Any]) -> None:
    command = [str(word) for part in words for word in part]
    home = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "4"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[:6]} failed:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
