"""Kill inference servers of a run at random: does the run lose an answer, or end differently from an undisturbed run?

    python benchmarks/engine_kills.py --kills 20
    python benchmarks/engine_kills.py --servers 2 --staleness 1 --seed 1

A GRPO run of the tiny model samples on its own native servers. One of their processes, the web server or the engine
behind it, is killed (SIGKILL) at random moments, until the run ends or --kills is reached.
The run passes if every file of the last checkpoint, every recorded number except times and repairs, and every rollout
equal those of the undisturbed run, and no process is left behind. The last line is JSON.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kills import everything
from making_runs import build_parser, build_problems, write_rows
from results import print_result

STEPS = 40
REPAIRS = ("sampler/",)  # metrics of server repairs and times
SHARED: list[Any] = [
    *("--model", "new:tiny", "--evaluation.problems", 2, "--sampling.max_tokens", 64, "--run.threads", 1),
    *("--run.on_no_signal", "warn", "--lr", 1e-3, "--run.preflight", "false"),
    *("--sampling.problems_per_step", 8, "--sampling.group_size", 8),
    *("--algorithm.kl", 0.1, "--algorithm.entropy", 0.01),
]
ENGINES = ("qed.serving.engine_process", "-m qed serve")  # found in the command lines of a server's processes


def main() -> None:
    """Kill as often as requested, print the summary, then one line of JSON."""
    parser = build_parser(__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many")
    parser.add_argument("--servers", type=int, default=2, help="servers of the run")
    parser.add_argument("--staleness", type=int, default=0, help="rollout.max_staleness of the run")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the run, which may end before the last kill")
    parser.add_argument("--pause", type=float, default=4.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill times")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = kill_engines(Path(folder), asked)
    print(
        f"{result['kills']} kills at random of {asked.servers} native servers of a GRPO run of {result['steps']} steps "
        f"(max_staleness {asked.staleness}): {'the same' if result['same'] else 'NOT the same'} files, numbers and "
        f"rollouts as undisturbed; {result['restarts']} restarts, {result['left']} processes left behind; "
        f"{result['seconds']:.0f} s in place of {result['undisturbed_seconds']:.0f} s."
    )
    print_result({**result, "seed": asked.seed}, asked.json)
    sys.exit(0 if result["same"] and not result["left"] else 1)


def kill_engines(folder: Path, asked: Any) -> dict[str, Any]:
    """Kill servers of a run, and return what became of the run."""
    data = write_rows(folder / "problems.jsonl", build_problems(60))
    own = ["--sampling.servers", asked.servers, "--rollout.max_staleness", asked.staleness, "--steps", asked.steps]
    command = [sys.executable, "-m", "qed", "grpo", "--tasks", data, *SHARED, *own]
    whole, seconds, _ = _make(command, folder / "whole", None, asked)
    killed, longer, kills = _make(command, folder / "killed", random.Random(asked.seed), asked)
    restarts = (folder / "killed" / "events.jsonl").read_text(encoding="utf-8").count('"server_restarted"')
    return {
        "kills": kills,
        "steps": asked.steps,
        "servers": asked.servers,
        "staleness": asked.staleness,
        "same": whole == killed,
        "differ": [name for name in whole if whole[name] != killed[name]],
        "restarts": restarts,
        "left": len(_list_processes(str(folder))),
        "undisturbed_seconds": round(seconds, 1),
        "seconds": round(longer, 1),
    }


def _make(command: list[Any], out: Path, source: random.Random | None, asked: Any) -> tuple[Any, float, int]:
    """Make a run whose servers are killed at random; return what it recorded, its seconds, and the number of kills."""
    began, kills = time.monotonic(), 0
    with (out.parent / f"{out.name}.log").open("w", encoding="utf-8") as log:
        call = [str(word) for word in [*command, "--out", out]]
        run = subprocess.Popen(call, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while run.poll() is None:
        time.sleep(source.expovariate(1 / asked.pause) if source is not None else 0.2)
        if source is not None and kills < asked.kills and (out / "metrics.jsonl").is_file():
            kills += _kill_one(run.pid, source)
    if run.returncode:
        raise SystemExit((out.parent / f"{out.name}.log").read_text(encoding="utf-8"))
    recorded = everything(out, asked.steps)
    for row in recorded["metrics"]:
        for name in [name for name in row if name.startswith(REPAIRS)]:
            del row[name]
    return recorded, time.monotonic() - began, kills


def _kill_one(run: int, source: random.Random) -> int:
    """Kill a process of a random server of the run; return the number of killed processes, 0 or 1."""
    found = [pid for pid in _list_descendants(run) if any(word in _read_command(pid) for word in ENGINES)]
    if not found:
        return 0
    try:
        os.kill(source.choice(found), signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def _list_descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    found, left = [], [root]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return sorted(found)


def _list_processes(word: str) -> list[int]:
    """List the processes whose command line contains a word, except this one."""
    numbers = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [number for number in numbers if number != os.getpid() and word in _read_command(number)]


def _read_command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
