"""Finds what got slower between two commits: short workloads on both, in turns, by CPU time.

    python benchmarks/guard.py main                   # the last commit against main
    python benchmarks/guard.py HEAD .                 # the working tree against the last commit
    python benchmarks/guard.py v0.1 main --only update,step --json guard.json

Both commits are checked out side by side and measured by this checkout's workers, in this environment, on the same
models and data. Each workload is started several times, because speed varies between processes, in turns (A B
A B). A workload is slower if it needs more than 1.05 times the CPU time, per token or row if they are counted, and
its 99 % confidence interval lies above 1. The last line is JSON; the exit code is 1 if one is slower or does not run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from guard_parts.commits import check_out
from guard_parts.verdict import LIMIT, SLOWER, judge
from guard_parts.workloads import WORKLOADS, Workload
from making_runs import build_parser
from results import print_result
from speed_parts import load, options
from speed_parts.machine import describe_machine
from speed_parts.process import Figures, in_turns

BASE, HEAD = "base", "head"


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _parse()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="guard-") as name, ExitStack() as stack:
        folder = Path(name)
        commits = {side: stack.enter_context(check_out(getattr(asked, side), folder / side)) for side in (BASE, HEAD)}
        sources = {side: source for side, (_, source) in commits.items()}
        for workload in asked.only:
            own = folder / workload
            own.mkdir()
            try:
                found[workload] = compare(WORKLOADS[workload], sources, own, asked)
            except SystemExit as error:
                found[workload] = {"failed": str(error)}
            print(_format(workload, found[workload]), flush=True)
    slower = [name for name, one in found.items() if one.get("verdict") == SLOWER]
    failed = [name for name, one in found.items() if "failed" in one]
    _show(commits, found, slower, asked.limit)
    told: dict[str, Any] = {side: number for side, (number, _) in commits.items()}
    settings = {"limit": asked.limit, "starts": asked.starts, "rounds": asked.rounds, "threads": asked.threads}
    told |= {"slower": slower, "failed": failed, "workloads": found, **settings, **describe_machine()}
    print_result(told, asked.json)
    sys.exit(1 if slower or failed else 0)


def _parse() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("base", metavar="BASE", help="a commit")
    parser.add_argument(
        "head", metavar="HEAD", nargs="?", default="HEAD", help="a commit, or a dot for the working tree"
    )
    names = list(WORKLOADS)
    parser.add_argument("--only", type=_read_names, default=names, metavar="NAMES", help=f"of {', '.join(names)}")
    parser.add_argument("--starts", type=options.read_count, default=3, help="process starts per workload")
    parser.add_argument("--rounds", type=options.read_count, default=5, help="rounds per start, after a warm-up of two")
    parser.add_argument("--limit", type=float, default=LIMIT, help="ratio of CPU times that counts as slower")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--place", type=Path, default=Path("runs/speed"), help="where model folders are kept")
    return parser.parse_args()


def _read_names(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := set(names) - set(WORKLOADS):
        raise argparse.ArgumentTypeError(
            f"unknown workloads: {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}"
        )
    return names


def compare(workload: Workload, sources: dict[str, Path], folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Run a workload on both sides, and decide whether it got slower.

    Args:
        workload: workload to run.
        sources: folder of each side.
        folder: folder for its data and runs.
        asked: options with starts, rounds, threads, limit and the folder of models.
    """
    told = workload.describe(asked.place, folder, asked.threads)
    starts, laps = [], []
    warm_up = 2 if workload.module else 1
    for number in range(asked.starts):
        with ExitStack() as stack:
            sides = {
                side: stack.enter_context(workload.start(told, asked.threads, source, folder / f"{side}-{number}"))
                for side, source in sources.items()
            }
            rounds = in_turns(sides, workload.rounds or asked.rounds, warm_up)
        pairs = zip(rounds[BASE], rounds[HEAD], strict=True)
        starts.append([(_cost(one), _cost(other)) for one, other in pairs])
        laps += [one["machine"] for own in rounds.values() for one in own]
    return {**judge(starts, asked.limit), "load": load.sum_up(laps)}


def _cost(figures: Figures) -> float:
    """Return CPU seconds, per token if they are counted, because sampled answers may differ in length."""
    return float(figures["cpu"] / (figures["tokens"] or 1))


def _format(name: str, one: dict[str, Any]) -> str:
    if "failed" in one:
        return f"{name:<16}does not run: {one['failed'].splitlines()[0][:120]}"
    busy = "  (busy machine)" if one["load"]["busy"] else ""
    return f"{name:<16}{one['ratio']:8.3f}  [{one['low']:.3f}, {one['high']:.3f}]  {one['verdict']}{busy}"


def _show(commits: dict[str, tuple[str, Path]], found: dict[str, Any], slower: list[str], limit: float) -> None:
    print(f"\n{commits[HEAD][0][:12]} over {commits[BASE][0][:12]}: times the processor time, and its 99 % interval\n")
    for name, one in found.items():
        print(f"{_format(name, one)}   {WORKLOADS[name].what}")
    print(
        f"\n{'Slower by more than' if slower else 'Nothing is slower by more than'} {limit - 1:.0%}"
        f"{': ' + ', '.join(slower) if slower else ''}."
    )


if __name__ == "__main__":
    main()
