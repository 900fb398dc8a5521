"""How fast `qed view` starts and answers: on many runs, on many steps, and on a step of many long answers.

    python benchmarks/viewer.py [--runs 200] [--steps 2000] [--groups 512] [--answers 8] [--tokens 8192]

Run folders are generated (the defaults take 1 GB of disk space and some minutes). A separate server answers for each
part; times are medians of `--rounds` requests, the first of which is shown separately if it builds an index. First
paint is measured on a page that has never been opened, in a headless Chromium, and is skipped without one. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from grading_parts.card import machine
from making_runs import build_parser
from results import print_result
from viewer_parts.asking import Server, open_browser, serve
from viewer_parts.making import write_large_run, write_long_run, write_runs

from qed.runs.step_index import build_index, name_index, write_index

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
Figures = dict[str, Any]


def main() -> None:
    """Generate, measure, print a table, then one line of JSON."""
    asked = _parse()
    with tempfile.TemporaryDirectory(prefix="viewer-", dir=asked.place) as name:
        place = Path(name)
        began = time.perf_counter()
        write_runs(place / "runs", asked.runs, asked.rows)
        long = write_long_run(place / "one", asked.steps)
        large = write_large_run(place / "two", asked.groups, asked.answers, asked.tokens)
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        print(f"generated {size / 2**20:,.0f} MiB in {time.perf_counter() - began:.0f} s", flush=True)
        figures: Figures = {"machine": machine(), "python": platform.python_version(), "asked": _sizes(asked)}
        with _browser(asked) as paint:
            figures["runs"] = measure_runs(place / "runs", place / "cache", asked.rounds, paint)
            figures["steps"] = measure_steps(long, place / "cache", asked.rounds, asked.steps, paint)
            figures["older"] = measure_older(large, place / "cache", asked.rounds)
            figures["answers"] = measure_answers(large, place / "another", asked.rounds, paint)
    show(figures)
    print_result(figures, asked.json)


def measure_runs(place: Path, cache: Path, rounds: int, paint: Any) -> Figures:
    """Measure a folder of many runs: start, the list at first and later, and the page."""
    started = []
    for _ in range(rounds):
        with serve([place], cache) as server:
            started.append(server.started)
    with serve([place], cache) as server:
        first, size, reply = server.ask("runs")
        again = _repeat(rounds, lambda: server.ask("runs"))
        figures = {"n": len(reply["runs"]), "start_s": median(started), "first_s": first, "again_s": again}
        return figures | {"bytes": size, "memory": server.memory(), "page": _paint(paint, server, "#/", "main table")}


def measure_steps(run: Path, cache: Path, rounds: int, steps: int, paint: Any) -> Figures:
    """Measure a run of many steps: its page, its curves, and the answers of one of its last steps."""
    with serve([run], cache) as server:
        key = server.ask("runs")[2]["runs"][0]["key"]
        found: Figures = {"n": len(server.ask("run", run=key)[2]["steps"])}
        found["run_s"] = _repeat(rounds, lambda: server.ask("run", run=key))
        found["metrics_s"] = _repeat(rounds, lambda: server.ask("metrics", run=key))
        found["first_step_s"], _, _ = server.ask("step", run=key, step=steps)
        found["step_s"] = _repeat(rounds, lambda: server.ask("step", run=key, step=steps))
        found["problem_list_s"], _, _ = server.ask("problems", run=key)
        return found | {"memory": server.memory(), "page": _paint(paint, server, f"#/run/{key}", "main svg")}


def measure_older(run: Path, cache: Path, rounds: int) -> Figures:
    """Measure the same step as written by an earlier version, without an index: the first request builds one."""
    with serve([run], cache) as server:
        where = {"run": server.ask("runs")[2]["runs"][0]["key"], "step": 1}
        first, _, _ = server.ask("step", **where)
        return {"first_s": first, "again_s": _repeat(rounds, lambda: server.ask("step", **where)), **server.memory()}


def measure_answers(run: Path, cache: Path, rounds: int, paint: Any) -> Figures:
    """Measure a step of many long answers with an index: the table at first and later, a group, an answer, a search."""
    data = run / "rollouts" / "step_000001.jsonl.zst"
    write_index(name_index(data), build_index(data))
    with serve([run], cache) as server:
        before = server.memory()["rss"]
        where = {"run": server.ask("runs")[2]["runs"][0]["key"], "step": 1}
        first, size, reply = server.ask("step", **where)
        found: Figures = {"n": len(reply["rows"]["group"]), "groups": len(reply["groups"]), "bytes": size}
        found |= {"first_s": first, "again_s": _repeat(rounds, lambda: server.ask("step", **where))}
        middle = found["groups"] // 2
        found["group_s"] = _repeat(rounds, lambda: server.ask("group", **where, group=middle))
        found["answer_s"] = _repeat(rounds, lambda: server.ask("answer", **where, group=middle, answer=0))
        memory = server.memory()
        found["search_s"], _, hits = server.ask("search", **where, q="every case", fields="text")
        found["search"] = {"hits": hits["n"], "complete": hits["complete"]}
        found["memory"] = {"before": before, **memory, "after_search": server.memory()["peak"]}
        return found | {"page": _paint(paint, server, f"#/run/{where['run']}/step/1", "main table")}


def show(figures: Figures) -> None:
    """Print the table."""
    print(f"\n{figures['machine']}, Python {figures['python']}\n")
    runs, steps, answers = figures["runs"], figures["steps"], figures["answers"]
    _line(f"{runs['n']} runs: start to the first answer of /", runs["start_s"])
    _line("  list of runs, first time", runs["first_s"])
    _line(f"  list of runs, later ({runs['bytes'] / 1e3:,.0f} kB)", runs["again_s"])
    _page(runs["page"])
    _line(f"{steps['n']} steps: the run", steps["run_s"])
    for name in ("metrics_s", "first_step_s", "step_s", "problem_list_s"):
        _line(f"  {name.removesuffix('_s').replace('_', ' ')}", steps[name])
    _page(steps["page"])
    _line("the large step without an index: table, first time", figures["older"]["first_s"])
    _line(f"  table, later (memory at most {figures['older']['peak']:.0f} MiB)", figures["older"]["again_s"])
    _line(f"{answers['n']:,} answers in {answers['groups']} groups: table, first time", answers["first_s"])
    _line(f"  table, later ({answers['bytes'] / 1e3:,.0f} kB)", answers["again_s"])
    for name in ("group_s", "answer_s", "search_s"):
        _line(f"  {name.removesuffix('_s')}", answers[name])
    _page(answers["page"])
    for name, part in (("runs", runs), ("steps", steps), ("answers", answers)):
        amounts = ", ".join(f"{kind.replace('_', ' ')} {amount:.0f}" for kind, amount in part["memory"].items())
        print(f"memory of the server of the {name}, MiB: {amounts}")


def _line(label: str, seconds: float) -> None:
    print(f"{label:<64}{seconds * 1000:>10,.0f} ms")


def _page(page: dict[str, float] | None) -> None:
    if page is not None:
        print(f"  page: first paint {page['first_paint']:.0f} ms, complete {page['complete']:.0f} ms")


def _repeat(rounds: int, work: Callable[[], tuple[float, int, Any]]) -> float:
    return median(work()[0] for _ in range(rounds))


def _paint(paint: Any, server: Server, view: str, wanted: str) -> dict[str, float] | None:
    return None if paint is None else paint(f"{server.url}/{view}", wanted)


class _NoBrowser:
    """Placeholder if there is no Chromium."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


def _browser(asked: argparse.Namespace) -> Any:
    return open_browser(CHROMIUM) if CHROMIUM and not asked.no_browser else _NoBrowser()


def _sizes(asked: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(asked, name) for name in ("runs", "rows", "steps", "groups", "answers", "tokens", "rounds")}


def _parse() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--runs", type=int, default=200, help="runs of the first folder")
    parser.add_argument("--rows", type=int, default=300, help="steps in the metrics of each of them")
    parser.add_argument("--steps", type=int, default=2000, help="steps with answers of the long run")
    parser.add_argument("--groups", type=int, default=512, help="groups of the large step")
    parser.add_argument("--answers", type=int, default=8, help="answers per group")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of its longest answers")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each request")
    parser.add_argument(
        "--place", type=Path, help="folder for the generated runs (default: the system's temporary folder)"
    )
    parser.add_argument("--no-browser", action="store_true", help="skip first paint")
    return parser.parse_args()


if __name__ == "__main__":
    main()
