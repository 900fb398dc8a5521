"""Does a long run leak? Measures memory and open files over thousands of steps, gradings and saves.

    python benchmarks/soak.py
    python benchmarks/soak.py --steps 200 --saves 0
    python benchmarks/soak.py --ranks 2 --gradings 0

Three soak tests, each in separate processes: a GRPO run of many steps; answers graded one after the other; a run that
saves a checkpoint after every step and deletes the older ones. With `--ranks`, the runs have several ranks, and each is
measured. Over the second half, when everything that is loaded once has been loaded, it measures the slope of the
resident memory, and the open files at the beginning and at the end. With few steps, the allocator's own growth
outweighs any leak. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
from making_runs import build_parser
from results import print_result

from qed.cli.main import main as qed
from qed.rewards.base import load_reward
from qed.types import Problem, Rollout

MEBIBYTES = os.sysconf("SC_PAGE_SIZE") / 2**20  # size of a page
PAUSE = 0.02  # seconds between two measurements
BOUND = 1.0  # MiB that 100 steps, gradings or saves may add
SMALL = ["grpo", "--model", "new:tiny", "--sampling.problems_per_step", "2", "--sampling.group_size", "4"]
SMALL += ["--sampling.max_tokens", "8", "--algorithm.entropy", "0.01", "--run.on_no_signal", "warn"]
SMALL += ["--evaluation.problems", "2", "--run.threads", "1"]
ANSWERS = ("<think>a</think> <answer>{n}</answer>", "\\boxed{{\\frac{{{n}}}{{3}}}}", "it is {n}, or x^{n}+1", "{n}{n}")


def main() -> None:
    """Run the soak tests, print the table, then one line of JSON."""
    parser = build_parser(__doc__)
    for name, count in (("steps", 2000), ("gradings", 10_000), ("saves", 300)):
        parser.add_argument(f"--{name}", type=int, default=count, help="how many; 0 skips this soak test")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of the runs, as in `qed --ranks`")
    parser.add_argument(
        "--only", choices=SOAKS, help="run only this soak test, in this process, and write the outcome to --folder"
    )
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    counts = {name: getattr(asked, name) for name in SOAKS if getattr(asked, name)}
    if asked.only:
        row = soaked(asked.only, counts[asked.only], asked.folder)
        (asked.folder / f"rank_{os.environ.get('RANK', '0')}.json").write_text(json.dumps(row))
        return
    result = {
        title: row
        for name, count in counts.items()
        for title, row in apart(name, count, 1 if name == "gradings" else asked.ranks).items()
    }
    flat = all(row["slope"] < BOUND and row["files"][1] <= row["files"][0] for row in result.values())
    for line in card(result):
        print(line)
    print_result({"flat": flat, **result}, asked.json)
    sys.exit(0 if flat else 1)


def apart(name: str, count: int, ranks: int) -> dict[str, dict[str, Any]]:
    """Run a soak test in separate processes; return the measurements of each."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--only", name, f"--{name}", str(count), "--folder", folder]
        launch = f"from qed.cluster.launch import run_ranks; import sys; sys.exit(run_ranks({command!r}, {ranks}))"
        called = command if ranks == 1 else [sys.executable, "-c", launch]
        done = subprocess.run(called, capture_output=True, text=True, check=False)
        files = sorted(Path(folder).glob("rank_*.json"))
        if done.returncode or len(files) != ranks:
            raise SystemExit(done.stderr)
        rows: list[dict[str, Any]] = [json.loads(file.read_text()) for file in files]
    return {name if ranks == 1 else f"{name}, rank {rank}": row for rank, row in enumerate(rows)}


def soaked(name: str, count: int, folder: Path) -> dict[str, Any]:
    """Run a soak test in this process, and return its measurements."""
    taken: list[tuple[int, float, int]] = []
    done = threading.Event()
    began = time.monotonic()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        progress = folder / "run" / "metrics.jsonl"
        watcher = threading.Thread(target=watch, args=(progress, taken, done))
        watcher.start()
        try:
            SOAKS[name](count, progress)
        finally:
            done.set()
            watcher.join()
    numbers, sizes, files = np.array([row for row in taken if count / 2 <= row[0] < count]).T
    slope = float(np.polyfit(numbers, sizes, 1)[0]) * 100
    edge = max(1, len(files) // 4)
    return {
        "count": count,
        "slope": round(slope, 4),
        "resident": [round(float(sizes[0]), 1), round(float(sizes[-1]), 1)],
        # A file that is being written is open only for a moment; leaked files are open at every measurement.
        "files": [int(files[:edge].min()), int(files[-edge:].min())],
        "seconds": round(time.monotonic() - began, 1),
    }


def watch(progress: Path, taken: list[tuple[int, float, int]], done: threading.Event) -> None:
    """Measure until the work is done: the lines that it has written so far, the resident memory in MiB, open files."""
    lines, offset = 0, 0
    while not done.wait(PAUSE):
        if progress.is_file():
            with progress.open("rb") as file:
                file.seek(offset)
                lines, offset = lines + file.read().count(b"\n"), file.tell()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        taken.append((lines, pages * MEBIBYTES, len(os.listdir("/proc/self/fd"))))


def make_steps(count: int, progress: Path) -> None:
    """Make a run of `count` steps."""
    _run("--steps", str(count), "--out", str(progress.parent))


def make_saves(count: int, progress: Path) -> None:
    """Make a run that saves after each of `count` steps."""
    keeping = ("--run.save_every", "1", "--run.keep_last", "2")
    _run("--steps", str(count), "--out", str(progress.parent), *keeping)


def grade(count: int, progress: Path) -> None:
    """Grade `count` answers, and write a line for each."""
    reward = load_reward(["r1_zero"], max_tokens=100)
    progress.parent.mkdir()
    with progress.open("w", buffering=1) as written:
        for number in range(count):
            text = ANSWERS[number % len(ANSWERS)].format(n=number)
            reward.grade([Rollout(Problem(f"p{number}", "?", str(number)), (), (), (), text, "stop")])
            written.write("\n")


def _run(*more: str) -> None:
    with suppress(SystemExit):
        qed([*SMALL, *more])


SOAKS: dict[str, Callable[[int, Path], None]] = {"steps": make_steps, "gradings": grade, "saves": make_saves}


def card(result: dict[str, Any]) -> list[str]:
    """Format the outcome as Markdown."""
    lines = ["| soak | how many | MiB per 100 of them | resident, MiB | open files | s |", "|---|--:|--:|--:|--:|--:|"]
    for name, row in result.items():
        sizes, files = (" → ".join(map(str, row[key])) for key in ("resident", "files"))
        lines.append(f"| {name} | {row['count']:,} | {row['slope']:.3f} | {sizes} | {files} | {row['seconds']} |")
    return lines


if __name__ == "__main__":
    main()
