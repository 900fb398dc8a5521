"""A throwaway process that grades: one JSON request per input line, one JSON answer per output line.

It is run as a program, with the grader's name and its address-space limit. Hostile text is graded only
here.
"""

# ruff: noqa: PLC0415 -- each grader is imported in its own process only

from __future__ import annotations

import json
import logging
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Case = dict[str, Any]
Grader = Callable[[Case], tuple[bool, str]]
# Events that no text may cause in the grading process. The clean process is started before the hook is set.
WATCHED = {
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "os.kill",
    "import",
    "exec",
    "compile",
}
TICK = 1 / os.sysconf("SC_CLK_TCK")
seen: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Record events that must not happen."""
    if event in WATCHED or (event == "open" and str(arguments[1]) not in {"r", "rb", "None"}):
        seen.append(f"{event} {arguments}"[:200])


def ours(symbolic: bool = True) -> Grader:
    """Return qed's grader as used in training, with its symbolic tier loaded."""
    from qed.grading.equal import equal
    from qed.grading.extract import extract_final_answer
    from qed.grading.policy import Policy

    policy = Policy(symbolic=symbolic)

    def graded(case: Case) -> tuple[bool, str]:
        answer = case["prediction"]
        if case.get("kind") == "response":
            found = extract_final_answer(answer)
            if found is None:
                return False, "extract"
            answer = found.answer
        verdict = equal(case["gold"], answer, policy)
        return verdict.correct, verdict.tier

    equal("\\sqrt2", "\\sqrt{2}+0")
    equal("55", "\\sum_{k=1}^{10} k", policy)
    return graded


def parser() -> Grader:
    """Return qed's grader without its symbolic tier."""
    return ours(symbolic=False)


def rival() -> Grader:
    """Return math-verify with its recommended settings, without its own time limits, which use signals."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    of_gold = [LatexExtractionConfig(), ExprExtractionConfig()]
    of_answer = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def graded(case: Case) -> tuple[bool, str]:
        answer = case["prediction"]
        if case.get("kind") != "response":
            answer = f"The final answer is $\\boxed{{{answer}}}$."
        gold = parse(f"${case['gold']}$", of_gold, parsing_timeout=None)
        found = parse(answer, of_answer, parsing_timeout=None)
        return bool(verify(gold, found, timeout_seconds=None)), "math-verify"

    graded({"gold": "\\frac12", "prediction": "x^2+1"})
    return graded


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it started, including their ended children."""
    total = time.process_time()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == os.getpid():
            total += sum(map(int, fields[11:15])) * TICK
    return total


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def attempt(grader: Grader, case: Case) -> tuple[bool, str, float]:
    """Return a verdict, its tier and its seconds; an exception is reported as the tier."""
    began = time.perf_counter()
    try:
        correct, tier = grader(case)
    except BaseException as error:  # noqa: BLE001 -- math-verify raises exceptions that are not Exception
        correct, tier = False, f"raised {type(error).__name__}: {error}"[:300]
    return correct, tier, time.perf_counter() - began


def graded(grader: Grader, cases: list[Case], threads: int = 0, each: bool = False) -> dict[str, Any]:
    """Grade the cases one after the other, distributed over threads, or (`each`) all of them in each thread."""
    del seen[:]
    wall, cpu = time.perf_counter(), cpu_seconds()
    if not threads:
        results = [attempt(grader, case) for case in cases]
    else:
        with ThreadPoolExecutor(threads) as pool:
            if each:
                runs = pool.map(lambda _: [attempt(grader, case) for case in cases], range(threads))
                results = [result for run in runs for result in run]
            else:
                results = list(pool.map(lambda case: attempt(grader, case), cases))
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return {"results": results, "wall": wall, "cpu": cpu, "seen": list(seen)}


def fuzzed(grader: Grader, golds: list[str], texts: list[str]) -> dict[str, Any]:
    """Grade every text against some gold answer, as response and as answer; return exceptions, slowest and memory."""
    draw = random.Random(1)
    cases = [{"gold": draw.choice(golds), "prediction": text} for text in texts]
    graded(grader, cases[: len(cases) // 10])  # fill caches before memory is measured
    before = resident_bytes()
    runs = [graded(grader, [{**case, "kind": kind} for case in cases]) for kind in ("answer", "response")]
    results = [result for run in runs for result in run["results"]]
    return {
        "raised": [tier for _, tier, _ in results if tier.startswith("raised")],
        "slowest": max(seconds for *_, seconds in results),
        "growth": resident_bytes() - before,
        "seen": [event for run in runs for event in run["seen"]],
        "wall": sum(run["wall"] for run in runs),
    }


def end_with(parent: int) -> None:
    """Exit when the parent process has ended, even in the middle of an answer."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Load the grader, then answer requests."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    who, memory = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    grader = {"ours": ours, "parser": parser, "rival": rival}[who]()
    sys.addaudithook(watch)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        job, arguments = json.loads(line)
        told = {"grade": graded, "fuzz": fuzzed}[job](grader, **arguments)
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
