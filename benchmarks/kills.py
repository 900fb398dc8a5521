"""Kill a run at random and resume it, repeatedly, until it is done: does it end like a run that was never killed?

    python benchmarks/kills.py --kills 10
    python benchmarks/kills.py --seed 1 --method sft

A GRPO run of 40 steps, with two updates per step, a KL with a reference that follows the policy, a checkpoint at every
third step and an evaluation at every eighth, is killed (SIGKILL) at random moments, also while it loads, saves or
evaluates, until it has been killed --kills times; a run that finishes before that starts again. It passes if every file
of the last checkpoint, every recorded number and every rollout equal those of a run that was never killed, and no kill
costs more steps than lie between two checkpoints. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from making_runs import build_parser, build_problems, run_here, write_rows
from results import print_result

from qed.cli.main import main as qed
from qed.runs import manifest
from qed.runs.run import read_lines

STEPS, SAVE_EVERY = 40, 3
SHARED = ["--model", "new:tiny", "--steps", STEPS, "--run.save_every", SAVE_EVERY, "--run.keep_last", 2]
SHARED += ["--evaluation.every", 8, "--evaluation.problems", 2, "--sampling.max_tokens", 8, "--run.threads", 1]
SHARED += ["--run.on_no_signal", "warn", "--lr", 1e-3]
# An untrained model's rewards are all 0, so a KL and an entropy term give every row a gradient.
METHODS: dict[str, list[Any]] = {
    "grpo": [
        *("--sampling.problems_per_step", 3, "--sampling.group_size", 4, "--learner.batch_size", 6),
        *("--algorithm.kl", 0.1, "--algorithm.entropy", 0.01),
        *("--algorithm.reference_every", 7, "--algorithm.reference_mix", 0.5),
    ],
    "sft": ["--learner.batch_size", 8],
}
TIMES = ("time/", "perf/", "mem/")


def main() -> None:
    """Kill as often as requested, print the table, then one line of JSON."""
    parser = build_parser(__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill times")
    parser.add_argument("--method", choices=METHODS, default="grpo", help="method of the run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measured(Path(folder), asked.method, asked.kills, random.Random(asked.seed))
    for line in card(result):
        print(line)
    print_result({**result, "seed": asked.seed}, asked.json)
    sys.exit(0 if result["same"] == result["runs"] and result["most_steps_lost"] <= SAVE_EVERY else 1)


def measured(folder: Path, method: str, kills: int, source: random.Random) -> dict[str, Any]:
    """Kill runs of a method, and return what became of them."""
    data = write_rows(folder / "problems.jsonl", build_problems(60))
    command = [method, "--tasks", data, *SHARED, *METHODS[method]]
    log = folder / "log"
    # Modules imported by this run are then loaded in the forked runs.
    run_here([*command, "--steps", 1, "--out", folder / "warm"])
    began = time.monotonic()
    code = attempt([*command, "--out", folder / "whole"], log, None)
    if code:
        raise SystemExit(log.read_text(encoding="utf-8"))
    seconds = time.monotonic() - began
    expected = everything(folder / "whole")
    met, same, runs, lost, failures = 0, 0, 0, [0], []
    while met < kills:
        run, going = folder / f"run-{runs}", True
        while going:
            # Most attempts reach some steps, some none; once there were enough kills, the run may finish.
            patience = source.uniform(0, seconds * 0.6) if met < kills else None
            code = attempt([*command, "--out", run, *way_on(run)], log, patience)
            going = code == -signal.SIGKILL
            met += going
            lost += [steps_lost(run)] if going else []
            if not going and code:
                failures.append(log.read_text(encoding="utf-8")[-2000:])
        runs += 1
        same += not code and everything(run) == expected
        shutil.rmtree(run)
    return {
        "method": method,
        "steps": STEPS,
        "save_every": SAVE_EVERY,
        "kills": met,
        "runs": runs,
        "same": same,
        "failures": failures,
        "most_steps_lost": max(lost),
        "median_steps_lost": quantiles(lost, n=2)[0] if len(lost) > 1 else 0,
        "seconds_of_a_run": round(seconds, 2),
    }


def way_on(run: Path) -> Sequence[str]:
    """Return the options to continue after a kill: resume from a checkpoint, or start over if there is none."""
    if manifest.list_checkpoints(run):
        return ["--resume"]
    return ["--overwrite"] if (run / "settings.yaml").is_file() else []


def attempt(command: Sequence[Any], log: Path, patience: float | None) -> int:
    """Run a command in a separate process, kill it after `patience` seconds, and return its exit code."""
    child = os.fork()
    if not child:
        _become(command, log)
    deadline = None if patience is None else time.monotonic() + patience
    while True:
        ended, status = os.waitpid(child, 0 if deadline is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            deadline = None
        time.sleep(0.001)


def _become(command: Sequence[Any], log: Path) -> None:
    """Replace this process's work by the command."""
    code = 99
    try:
        sys.stdout = sys.stderr = log.open("w", encoding="utf-8", buffering=1)
        qed([str(argument) for argument in command])
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        os._exit(code)


def steps_lost(run: Path) -> int:
    """Return the number of steps recorded after the newest checkpoint."""
    made = [row["step"] for row in read_lines(run / "metrics.jsonl")]
    return max(made, default=0) - max(manifest.list_checkpoints(run), default=0)


def everything(run: Path, steps: int = STEPS) -> dict[str, Any]:
    """Return the checksums of the last checkpoint's files, all numbers except times, and all rollouts and answers."""
    last = run / "checkpoints" / f"step_{steps:06d}"
    metrics = read_lines(run / "metrics.jsonl")
    answers = sorted([*run.glob("rollouts/*.jsonl.zst"), *run.glob("eval/*/*.jsonl")])
    return {
        "damage": manifest.list_damage(last),
        "files": json.loads((last / manifest.NAME).read_text(encoding="utf-8"))["files"],
        "metrics": [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in metrics],
        "answers": {str(path.relative_to(run)): read_lines(path) for path in answers},
    }


def card(result: dict[str, Any]) -> list[str]:
    """Format the outcome as Markdown."""
    return [
        f"{result['kills']} kills at random of {result['method']} runs of {result['steps']} steps, a checkpoint every "
        f"{result['save_every']}; a run takes {result['seconds_of_a_run']} s.",
        "",
        "| runs that were killed and went on to their end | ended as the run that was never killed | most steps lost "
        "to a kill |",
        "|--:|--:|--:|",
        f"| {result['runs']} | {result['same']} | {result['most_steps_lost']} |",
    ]


if __name__ == "__main__":
    main()
