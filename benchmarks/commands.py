"""Whole commands of qed, each a process from start to end: wall-clock seconds and CPU seconds.

    python benchmarks/commands.py --only help,step,grade --cores 2
    python benchmarks/commands.py --only quickstart,tests --rounds 1 --cores 2

`help` is `qed --help`; `step` is one step of `qed grpo arithmetic-rl`; `grade` is `qed grade` on realistic
responses, as rows per second of the whole command; `quickstart` and `tests` take minutes. Several commands take
turns; the first round of each, which warms file caches, is excluded. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from grading_parts.cases import labelled
from making_runs import build_parser
from results import print_result
from speed_parts import figures, load
from speed_parts.command import QED, Command, keep_cores
from speed_parts.machine import describe_machine
from speed_parts.process import HERE, in_turns

COMMANDS = {
    "help": (*QED, "--help"),
    "step": (*QED, "grpo", "arithmetic-rl", "--steps", "1", "--out", "run"),
    "grade": (*QED, "grade", "FILE"),
    "quickstart": (*QED, "quickstart", "--out", "run"),
    "tests": (sys.executable, "-m", "pytest", "-q"),
}
LONG = ("quickstart", "tests")  # no warm-up needed
RESPONSES = Path("../shared/grading/realistic.jsonl.gz")


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _parse()
    cores = keep_cores(asked.cores)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "responses.jsonl"
        if "grade" in asked.only:
            write_responses(asked.responses, file, asked.rows)
        sides = {name: _build(name, file, asked) for name in asked.only}
        warm_up = 0 if set(sides) <= set(LONG) else 1
        rounds = in_turns(sides, asked.rounds, warm_up)
    found = {name: _sum_up(own, asked.rows if name == "grade" else 0) for name, own in rounds.items()}
    laps = [lap for one in found.values() for lap in one["laps"]]
    result = {
        **describe_machine(),
        "cores": cores,
        "rounds": asked.rounds,
        "commands": found,
        "load": load.sum_up(laps),
    }
    _show(result)
    print_result(result, asked.json)


def _parse() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--only", type=_read_names, default=["help", "step", "grade"], help=", ".join(COMMANDS))
    parser.add_argument("--rounds", type=int, default=5, help="rounds per command, in turns, after the warm-up")
    parser.add_argument("--cores", type=int, default=0, help="CPU cores for the commands; 0: all")
    parser.add_argument("--threads", type=int, default=0, help="threads of numeric kernels; 0: one per core")
    parser.add_argument("--rows", type=int, default=40_000, help="responses to grade")
    parser.add_argument("--responses", type=Path, default=RESPONSES, help="labelled responses")
    return parser.parse_args()


def _read_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(COMMANDS):
        raise argparse.ArgumentTypeError(f"unknown commands: {', '.join(unknown)}; there are {', '.join(COMMANDS)}")
    return names


def write_responses(source: Path, file: Path, rows: int) -> None:
    """Write this many rows: the responses of a file repeatedly, each with different words, so that none is cached."""
    cases = labelled(source)
    with file.open("w", encoding="utf-8") as lines:
        for number in range(rows):
            case = cases[number % len(cases)]
            response = f"Attempt {number} of the day.\n{case['prediction']}"
            lines.write(json.dumps({"id": number, "gold": case["gold"], "response": response}) + "\n")


def _build(name: str, file: Path, asked: argparse.Namespace) -> Command:
    words = [str(file) if word == "FILE" else word for word in COMMANDS[name]]
    threads = asked.threads or keep_cores(0)
    # Exit code 5 is qed's for a run without a signal, but pytest's for finding no test.
    return Command(words, threads, folder=HERE.parent, codes=(0,)) if name == "tests" else Command(words, threads)


def _sum_up(rounds: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    # There are no tokens to count.
    found = figures.summary([{**one, "tokens": rows or 1} for one in rounds])
    return {**found, "rows_per_s": rows / found["wall"], "rows_per_cpu_s": rows / found["cpu"]} if rows else found


def _show(result: dict[str, Any]) -> None:
    print(f"\n{result['machine']}, {result['cores']} cores, {result['rounds']} rounds; {result['versions']}")
    for name, one in result["commands"].items():
        wall = f"{one['wall']:.2f} s ({one['wall_least']:.2f} to {one['wall_most']:.2f})"
        rate = f"  {one['rows_per_s']:,.0f} rows / second" if "rows_per_s" in one else ""
        print(f"{name:<12}{wall:>28}{one['cpu']:9.2f} CPU s{rate}")
    if note := load.describe_load(result["load"]):
        print(note)


if __name__ == "__main__":
    main()
