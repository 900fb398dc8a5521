"""SFT on a large file of demonstrations: time and memory of a first start, which tokenises, and of a second.

    python benchmarks/demonstrations.py
    python benchmarks/demonstrations.py --rows 100000 --tokens 8000 --vocabulary 32000

Every start is `qed sft` in a separate process, for a few steps of four rows. Anonymous memory belongs to the process;
mapped pages of the cache belong to the kernel, which reclaims them when needed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from results import add_json, print_result
from speed_parts import places

from qed.models.load import SIZES, build_model

SAMPLE = 200  # rows for training the tokenizer
WORDS = 5000
MIB = 2**20


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _read_arguments()
    with tempfile.TemporaryDirectory() as out:
        home = Path(out)
        model = _build_folder(home, asked)
        data, characters = _write_data(home / "demonstrations.jsonl", model, asked)
        starts = [_start(home, asked, model, data, f"run{number}") for number in range(2)]
        cache = sum(path.stat().st_size for path in (home / "cache").rglob("*") if path.is_file())
    result = {"settings": vars(asked), "characters": characters, "cache_bytes": cache, "starts": starts}
    _print_card(result)
    print_result(result, asked.json)


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    parser.add_argument("--rows", type=int, default=20_000, help="demonstrations")
    parser.add_argument("--tokens", type=int, default=1000, help="approximate tokens per demonstration")
    parser.add_argument("--vocabulary", type=int, default=8000, help="maximum size of the tokenizer's vocabulary")
    parser.add_argument("--steps", type=int, default=3, help="number of steps, of four rows each")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of the tokenizer")
    return parser.parse_args()


def _write_text(words: list[str], count: int, number: int) -> str:
    return " ".join(random.Random(number).choices(words, k=count))


def _build_folder(home: Path, asked: argparse.Namespace) -> Path:
    """Build a small model whose context window fits a demonstration, with its own tokenizer."""
    words = places.words(WORDS, 0).split()
    SIZES["long"] = replace(SIZES["tiny"], vocabulary=asked.vocabulary, window=2 * asked.tokens + 200)
    network, tokenizer = build_model("new:long", [_write_text(words, 500, n) for n in range(SAMPLE)], 0)
    network.save_pretrained(home / "model")
    tokenizer.save_pretrained(home / "model")
    return home / "model"


def _write_data(file: Path, model: Path, asked: argparse.Namespace) -> tuple[Path, int]:
    """Write the rows, and return their file and the number of characters in their replies."""
    from transformers import AutoTokenizer  # noqa: PLC0415 -- the measured processes load it themselves

    words = places.words(WORDS, 0).split()
    text = _write_text(words, 2000, -1)
    per_word = len(AutoTokenizer.from_pretrained(model)(text)["input_ids"]) / 2000
    characters = 0
    with file.open("w", encoding="utf-8") as lines:
        for number in range(asked.rows):
            reply = _write_text(words, round(asked.tokens / per_word), number)
            characters += len(reply)
            lines.write(json.dumps({"prompt": f"Write words, as number {number}.", "completion": reply}) + "\n")
    return file, characters


def _start(home: Path, asked: argparse.Namespace, model: Path, data: Path, name: str) -> dict[str, Any]:
    """Run SFT, and return its seconds to the first step and in total, and its peak memory in bytes."""
    command = [sys.executable, "-u", "-m", "qed", "sft", "--model", model, "--tasks", data, "--prompt", "question_only"]
    command += [
        "--steps",
        asked.steps,
        "--learner.batch_size",
        4,
        "--data.validation_split",
        0.01,
        "--out",
        home / name,
    ]
    command += ["--evaluation.problems", 8, "--evaluation.at_start", "false", "--run.preflight", "false"]
    environment = {**os.environ, "QED_CACHE": str(home / "cache"), "RAYON_NUM_THREADS": str(asked.threads)}
    began, log = time.monotonic(), home / f"{name}.txt"
    first, largest = None, {"VmRSS": 0, "RssAnon": 0}
    with log.open("w") as out:
        process = subprocess.Popen(list(map(str, command)), env=environment, stdout=out, stderr=subprocess.STDOUT)
        while process.poll() is None:
            for key, value in _read_memory(process.pid).items():
                largest[key] = max(largest[key], value)
            if first is None and "sft: steps" in log.read_text():
                first = time.monotonic() - began
            time.sleep(0.05)
    text = log.read_text()
    if process.returncode:
        raise SystemExit(text)
    told = [line for line in text.splitlines() if "okenised" in line]
    return {
        "to_first_step_s": first,
        "seconds": time.monotonic() - began,
        "largest_memory": largest["VmRSS"],
        "largest_anonymous": largest["RssAnon"],
        "steps": asked.steps,
        "told": told,
    }


def _read_memory(process: int) -> dict[str, int]:
    """Return the resident memory of a process in bytes: in total, and anonymous."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.startswith(("VmRSS:", "RssAnon:")))
    return {key: int(value.split()[0]) * 1024 for key, value in pairs}


def _print_card(result: dict[str, Any]) -> None:
    asked = result["settings"]
    print(f"SFT on {asked['rows']:,} demonstrations of about {asked['tokens']:,} tokens")
    print(f"text {result['characters'] / MIB:,.0f} MiB, cache {result['cache_bytes'] / MIB:,.0f} MiB")
    for name, start in zip(("first start", "second start"), result["starts"], strict=True):
        print(
            f"{name}: {start['to_first_step_s']:.1f} s to the first step, {start['seconds']:.1f} s in all; at most "
            f"{start['largest_memory'] / MIB:,.0f} MiB resident, {start['largest_anonymous'] / MIB:,.0f} MiB of its own"
        )
        for line in start["told"]:
            print(f"  {line}")


if __name__ == "__main__":
    main()
