"""How much faster are two ranks than one? Whole steps of `qed grpo` on 1 and on 2 ranks, in turns, one thread per rank.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --rounds 1 --shards none --steps 2

A round is a run of a few steps for each setup: one rank, and two ranks for each value of `parallel.shard`; its first
step is excluded. Each stage is timed by wall clock and by the CPU time of each rank. On a busy machine read
`ratio_cpu`: it uses the time that a step would take if every rank had a core to itself and nothing else ran, which is
the sum over the stages of the busiest rank's CPU time. Waiting for another rank takes no CPU time, so the imbalance
within a stage counts, and the cost of communication as far as it is CPU work. The problems are those of GSM8K if its
folder exists, otherwise the default task's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from making_runs import build_parser, run_here
from results import print_result

from qed.guards.timer import StageTimer

DATA = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "train.jsonl"
SHARDS = ("none", "grads", "full")
ONE = "1 rank"
WORKER = "--worker"  # followed by a folder and a command of qed: run it as one rank
TOKENS, STEP = "tokens", "step"  # keys of a row besides its stages


def main() -> None:
    """Measure in turns, print the table, then one line of JSON."""
    parser = build_parser(__doc__)
    for name, count in (("rounds", 3), ("steps", 4), ("problems", 8), ("group", 8), ("tokens", 64), ("ranks", 2)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--shards", default=",".join(SHARDS), help="values of parallel.shard, comma-separated")
    parser.add_argument("--model", default="new:small")
    asked = parser.parse_args()
    ways = {ONE: (1, "none")} | {
        f"{asked.ranks} ranks, {shard}": (asked.ranks, shard) for shard in asked.shards.split(",")
    }
    rounds = [{way: measure(asked, *ways[way]) for way in ways} for _ in range(asked.rounds)]
    result = {way: summarize([each[way] for each in rounds]) for way in ways}
    for row in result.values():
        for name in ("wall", "cpu"):
            row[f"ratio_{name}"] = round(row[f"tokens_per_{name}_s"] / result[ONE][f"tokens_per_{name}_s"], 3)
    for line in card(result):
        print(line)
    print_result(result, asked.json)


def measure(asked: argparse.Namespace, ranks: int, shard: str) -> list[dict[str, Any]]:
    """Make a run, and return the rows of each rank except those of the first step."""
    options = {
        "--model": asked.model,
        "--steps": asked.steps + 1,
        "--parallel.shard": shard,
        "--sampling.problems_per_step": asked.problems,
        "--sampling.group_size": asked.group,
        "--sampling.max_tokens": asked.tokens,
        "--algorithm.entropy": 0.01,  # gives every row a gradient
        "--run.on_no_signal": "warn",
        "--run.preflight": "false",
        "--run.threads": 1,
        "--evaluation.at_start": "false",
        "--evaluation.problems": 2,
        "--run.save_every": 0,
        **({"--tasks": DATA} if DATA.is_file() else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [str(word) for pair in options.items() for word in pair]
        call = [sys.executable, __file__, WORKER, folder, "grpo", *command, "--out", str(Path(folder) / "run")]
        launch = f"from qed.cluster.launch import run_ranks; import sys; sys.exit(run_ranks({call!r}, {ranks}))"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", launch] if ranks > 1 else call, env=environment, capture_output=True, text=True
        )
        files = sorted(Path(folder).glob("rank_*.json"))
        figures = Path(folder) / "run" / "metrics.jsonl"
        if done.returncode or len(files) != ranks or not figures.is_file():
            raise SystemExit(done.stderr)
        metrics = [json.loads(line) for line in figures.read_text().splitlines()]
        rows = [json.loads(file.read_text()) for file in files]
    tokens = [row["length/total"] for row in metrics if "length/total" in row]
    return [{TOKENS: count, "ranks": [each[number] for each in rows]} for number, count in list(enumerate(tokens))[1:]]


def work(folder: Path, command: list[str]) -> None:
    """Run a command of qed as one rank, and write the wall-clock and CPU seconds of its stages."""
    rows: list[dict[str, dict[str, float]]] = []
    cpu = StageTimer(time.process_time)
    begin, enter, end = StageTimer.begin_step, StageTimer.__call__, StageTimer.end_step

    def begin_both(self: StageTimer, step: int) -> None:
        begin(cpu, step)
        begin(self, step)

    @contextmanager
    def enter_both(self: StageTimer, stage: str) -> Iterator[None]:
        with enter(cpu, stage), enter(self, stage):
            yield

    def end_both(self: StageTimer) -> dict[str, float]:
        row = end(self)
        rows.append({"wall": row, "cpu": end(cpu)})
        return row

    StageTimer.begin_step, StageTimer.__call__, StageTimer.end_step = begin_both, enter_both, end_both  # type: ignore[method-assign]
    run_here(command)
    (folder / f"rank_{os.environ.get('RANK', '0')}.json").write_text(json.dumps(rows))


def summarize(rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return tokens per second, and the median seconds of each stage: rank 0's clock, and the busiest rank's CPU."""
    steps = [step for each in rounds for step in each]
    rates: dict[str, list[float]] = {"wall": [], "cpu": []}
    stages: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for step in steps:
        busiest = 0.0
        for name in step["ranks"][0]["wall"]:
            own = [rank["cpu"].get(name, 0.0) for rank in step["ranks"]]
            stages[name.removeprefix("time/")].append((step["ranks"][0]["wall"][name], max(own)))
            busiest += max(own) if name != f"time/{STEP}" else 0.0
        # The rest of a step lies outside all stages.
        rest = [
            rank["cpu"][f"time/{STEP}"] - sum(value for name, value in rank["cpu"].items() if name != f"time/{STEP}")
            for rank in step["ranks"]
        ]
        rates["wall"].append(step[TOKENS] / step["ranks"][0]["wall"][f"time/{STEP}"])
        rates["cpu"].append(step[TOKENS] / (busiest + max(0.0, *rest)))
    return {
        **{f"tokens_per_{name}_s": round(median(values), 1) for name, values in rates.items()},
        "stages": {
            name: {
                "wall": round(median(wall for wall, _ in values), 4),
                "cpu": round(median(cpu for _, cpu in values), 4),
            }
            for name, values in stages.items()
        },
    }


def card(result: dict[str, Any]) -> list[str]:
    """Format the outcome as Markdown."""
    names = list(dict.fromkeys(name for row in result.values() for name in row["stages"]))
    titles = [
        "way",
        "tokens/s",
        "ratio",
        "tokens/s by processor time",
        "ratio",
        *(f"{name}, s (CPU s)" for name in names),
    ]
    lines = [
        f"| {' | '.join(titles)} |",
        f"|---|--:|--:|--:|--:|{'--:|' * len(names)}",
    ]
    for way, row in result.items():
        cells = [
            f"{row['stages'][name]['wall']:.3f} ({row['stages'][name]['cpu']:.3f})" if name in row["stages"] else ""
            for name in names
        ]
        rates = [f"{row[f'tokens_per_{name}_s']:,.0f} | {row[f'ratio_{name}']:.2f}" for name in ("wall", "cpu")]
        lines.append(f"| {way} | {' | '.join([*rates, *cells])} |")
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        work(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
