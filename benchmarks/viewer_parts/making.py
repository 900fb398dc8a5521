"""Generated run folders: many runs, many steps, and a step of many long answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from qed.evaluation.summary import summarize
from qed.runs.run import Run, write_evaluation

SENTENCE = "so the sum of both sides is then equal to one half and we check that again with care for every case"
WORDS = SENTENCE.split()
BODIES = 64  # distinct answers in the large step; groups use eight or more of them
VOCABULARY = 32_000
Row = dict[str, Any]


def write_runs(parent: Path, count: int, rows: int) -> None:
    """Write finished runs, each with metrics, events and an evaluation."""
    for number in range(count):
        run = open_run(parent / f"run-{number:04d}", seed=number)
        write_metrics(run, rows)
        answers = [build_answer(0, number, problem, 0, 40) for problem in range(20)]
        evaluated = [{"decoding": "greedy", **row, "class": "fmt1_ans1"} for row in answers]
        write_evaluation(run.folder, rows, "maths", evaluated, {"greedy": summarize(evaluated)})
        run.event("finished", step=rows)


def write_long_run(parent: Path, steps: int) -> Path:
    """Write a run of many steps with a few short answers each."""
    run = open_run(parent / "long", seed=0)
    write_metrics(run, steps)
    folder = run.folder / "rollouts"
    folder.mkdir()
    for step in range(1, steps + 1):
        write_step_file(folder / f"step_{step:06d}.jsonl.zst", step, 2, 4, 40)
    run.event("finished", step=steps)
    return run.folder


def write_large_run(parent: Path, groups: int, answers: int, tokens: int) -> Path:
    """Write a run with one step of many long answers."""
    run = open_run(parent / "large", seed=0)
    write_metrics(run, 1)
    (run.folder / "rollouts").mkdir()
    write_step_file(run.folder / "rollouts" / "step_000001.jsonl.zst", 1, groups, answers, tokens)
    run.event("finished", step=1)
    return run.folder


def open_run(folder: Path, seed: int) -> Run:
    """Open a run with its settings."""
    folder.mkdir(parents=True)
    run = Run(folder)
    settings = {
        "method": "grpo",
        "model": {"name": "org/model-7b"},
        "data": {"tasks": ["maths"]},
        "learner": {"steps": 2000, "lr": 1e-6 * (1 + seed % 3)},
        "run": {"seed": seed},
    }
    run.write("settings.yaml", json.dumps(settings, indent=1).encode())
    run.write("settings.origin.json", b'{"run.seed": "the command line"}')
    run.write("command.txt", f"qed grpo --run.seed {seed}".encode())
    return run


def write_metrics(run: Run, rows: int) -> None:
    """Write all lines of metrics.jsonl at once, with forty numbers each."""
    rng = random.Random(0)
    names = [f"{kind}/{name}" for kind in ("train", "policy", "length", "groups") for name in "abcdefgh"]
    lines = []
    for step in range(1, rows + 1):
        row: Row = {"step": step, "phase": "grpo", "reward/mean": 0.2 + 0.5 * step / rows, "accuracy": 0.5}
        row |= {"train/loss": 0.1, "time/step": 20.0, "train/tokens": 1e6, "perf/tokens_per_s": 5e4}
        row |= {name: round(rng.random(), 6) for name in names}
        if step % 100 == 0:
            row |= {"eval/maths/greedy/avg@1": 0.5, "eval/maths/greedy/ci_lo": 0.4, "eval/maths/greedy/ci_hi": 0.6}
        lines.append(json.dumps(row) + "\n")
    run.write("metrics.jsonl", "".join(lines).encode())


def write_step_file(file: Path, step: int, groups: int, answers: int, tokens: int) -> None:
    """Write a file of rollouts without its index, with a frame per group."""
    build_row = choose_rows(step, tokens)
    compressor = zstandard.ZstdCompressor(level=3)
    with file.open("wb") as out:
        for group in range(groups):
            lines = b"".join(build_row(group, answer) for answer in range(answers))
            out.write(compressor.compress(lines))


def choose_rows(step: int, tokens: int) -> Callable[[int, int], bytes]:
    """Return a function that writes the line of an answer; long ones share bodies, which are slow to format."""
    if tokens < 1000:
        return lambda group, answer: encode(build_answer(step, 0, group, answer, tokens))
    bodies = [json.dumps(body)[1:-1].encode() for body in build_bodies(tokens)]

    def call(group: int, answer: int) -> bytes:
        head = json.dumps(build_head(step, group, answer))[:-1].encode()
        return head + b", " + bodies[(group * 8 + answer) % BODIES] + b"}\n"

    return call


def build_bodies(tokens: int) -> Iterator[Row]:
    """Yield the long columns of answers of many lengths."""
    for number in range(BODIES):
        rng = random.Random(number)
        length = tokens if number % 3 == 0 else rng.randrange(tokens // 4, tokens)
        words = rng.choices(WORDS, k=length)
        marks = {"n_tokens": length, "stop_reason": "length" if length == tokens else "stop"}
        ids = [rng.randrange(VOCABULARY) for _ in range(length)]
        logps = [round(-rng.random(), 6) for _ in range(length)]
        yield {"text": " ".join(words), **marks, "tokens": ids, "logps": logps}


def build_head(step: int, group: int, answer: int) -> Row:
    """Return the short columns of an answer."""
    right = (group * 7 + answer * 3) % 5 < 2
    return {
        "step": step,
        "group_id": f"maths-{group:05d}",
        "sample_id": answer,
        "question": f"What is the sum of the first {group + 3} odd numbers, and why?",
        "gold": str((group + 3) ** 2),
        "subject": ("algebra", "number theory", "geometry")[group % 3],
        "level": 1 + group % 5,
        "data_source": "maths",
        "prompt": f"<|user|>What is the sum of the first {group + 3} odd numbers, and why?<|assistant|>",
        "extracted": str((group + 3) ** 2) if right else "7",
        "reward": float(right),
        "parts": {"correct": float(right), "format": 1.0},
        "correct": right,
        "format_ok": True,
        "tier": "string",
        "reason": "the same string" if right else "another value",
        "advantage": 1.2 if right else -0.8,
        "source": "policy",
        "given": 0,
        "sampled_mask": [],
        "loss_mask": [],
        "version": step - 1,
    }


def build_answer(step: int, seed: int, group: int, answer: int, tokens: int) -> Row:
    """Return the row of a short answer."""
    rng = random.Random(f"{step}-{seed}-{group}-{answer}")
    marks = {"n_tokens": tokens, "stop_reason": "stop", "tokens": [rng.randrange(VOCABULARY) for _ in range(tokens)]}
    text = " ".join(rng.choices(WORDS, k=tokens))
    return {**build_head(step, group, answer), "text": text, **marks, "logps": [-0.5] * tokens}


def encode(row: Row) -> bytes:
    """Return a row as a line of JSON."""
    return json.dumps(row).encode() + b"\n"
