"""The measurements, each made by workers that may be killed."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from typing import Any

from grading_parts.cases import Case, cosmetic, pairs, strange
from grading_parts.process import Worker

CASE_SECONDS = 20.0  # limit for an ordinary case, enforced from outside
RIVAL_SECONDS = 5.0  # math-verify's own limit, on hostile cases
DEADLINE = 2.25  # the symbolic tier's two wall-clock seconds, and a quarter
KILLED = (False, "killed")
Figures = dict[str, Any]


def one_by_one(worker: Worker, cases: list[Case], seconds: float) -> list[list[Any]]:
    """Grade each case separately, so that killing one does not affect others."""
    results = []
    for case in cases:
        told = worker.ask("grade", seconds=seconds, cases=[case])
        results.append(told["results"][0] if told else [*KILLED, seconds])
    return results


def scores(cases: list[Case], results: list[list[Any]]) -> Figures:
    """Return accuracy, wrongly accepted and wrongly rejected cases, in total and per category."""
    counts: dict[str, Counter[str]] = {}
    for case, (correct, *_) in zip(cases, results, strict=True):
        for name in ("", case.get("category", "")):
            count = counts.setdefault(name, Counter())
            count["n"] += 1
            count["true"] += case["expected"]
            count["false_positives"] += correct and not case["expected"]
            count["false_negatives"] += case["expected"] and not correct
            if not case.get("category"):
                break
    figures = {name: _rates(count) for name, count in counts.items()}
    return {**figures.pop(""), "categories": dict(sorted(figures.items()))}


def _rates(count: Counter[str]) -> Figures:
    wrong = count["false_positives"] + count["false_negatives"]
    return {
        "n": count["n"],
        "accuracy": 1 - wrong / count["n"],
        "false_positives": count["false_positives"],
        "of_false": count["n"] - count["true"],
        "false_negatives": count["false_negatives"],
        "of_true": count["true"],
    }


def speed(cases: list[Case], rounds: int) -> list[tuple[Figures, list[list[Any]]]]:
    """Measure both graders in turns, with a new process per round to keep caches cold; return medians and verdicts."""
    found: dict[str, list[Any]] = {"ours": [], "rival": []}
    for _ in range(rounds):
        for who, runs in found.items():
            with Worker(who) as worker:
                runs.append(worker.ask("grade", cases=cases))
    return [(_speed(runs, len(cases)), runs[0]["results"]) for runs in found.values()]


def _speed(runs: list[Any], n: int) -> Figures:
    seconds = [sorted(second for *_, second in run["results"]) for run in runs]
    return {
        "cases_per_second": statistics.median(n / run["wall"] for run in runs),
        "cases_per_second_cpu": statistics.median(n / run["cpu"] for run in runs),
        "rounds": [round(n / run["wall"], 1) for run in runs],
        "p50_ms": 1e3 * statistics.median(one[n // 2] for one in seconds),
        "p99_ms": 1e3 * statistics.median(one[int(n * 0.99)] for one in seconds),
        "max_ms": 1e3 * max(one[-1] for one in seconds),
    }


def tiers(results: list[list[Any]]) -> Figures:
    """Return the share of cases that each tier decided."""
    counts = Counter(tier for _, tier, _ in results)
    return {tier: count / len(results) for tier, count in counts.most_common()}


def hangs(cases: list[Case], threads: int = 8) -> Figures:
    """Grade inputs of hostile length and depth: in the main thread, distributed over threads, all in each thread."""
    figures = {}
    for name, arguments in (
        ("main_thread", {}),
        ("threads", {"threads": threads}),
        ("each_thread_all", {"threads": threads, "each": True}),
    ):
        with Worker("ours") as worker:
            run = worker.ask("grade", seconds=600, cases=cases, **arguments)
        figures[name] = _hang(cases, run, arguments)
    return figures


def _hang(cases: list[Case], run: Any, arguments: Figures) -> Figures:
    if run is None:
        return {"killed": True}
    labels = [case["expected"] for case in cases] * (len(run["results"]) // len(cases))
    seconds = [second for *_, second in run["results"]]
    return {
        "n": len(seconds),
        "worst_seconds": max(seconds),
        "over_deadline": sum(second > DEADLINE for second in seconds),
        "total_seconds": run["wall"],
        "wrong": sum(correct != label for (correct, *_), label in zip(run["results"], labels, strict=True)),
        "raised": sum(tier.startswith("raised") for _, tier, _ in run["results"]),
        "tiers": dict(Counter(tier for _, tier, _ in run["results"])),
    }


def rival_hangs(cases: list[Case]) -> Figures:
    """Run math-verify on the hostile cases, and kill it from outside after its own limit."""
    with Worker("rival") as worker:
        results = one_by_one(worker, cases, RIVAL_SECONDS)
    return {
        "n": len(cases),
        "killed": sum(tier == "killed" for _, tier, _ in results),
        "worst_seconds": max(second for *_, second in results),
        "total_seconds": sum(second for *_, second in results),
        "wrong": sum(correct != case["expected"] for (correct, *_), case in zip(results, cases, strict=True)),
    }


def injections(who: str, cases: list[Case]) -> Figures:
    """Grade payloads: what an audit hook saw, what was accepted, and what was left in the folder."""
    with Worker(who) as worker:
        results = [worker.ask("grade", seconds=RIVAL_SECONDS * 2, cases=[case]) for case in cases]
        left = worker.left_behind()
    told = [result for result in results if result]
    return {
        "n": len(cases),
        "killed": len(results) - len(told),
        "seen": dict(Counter(event.partition(" ")[0] for result in told for event in result["seen"])),
        "files_left": left,
        "paid": sum(
            result["results"][0][0] and not case["expected"]
            for result, case in zip(results, cases, strict=True)
            if result
        ),
    }


def fuzz(pool: list[str], count: int) -> Figures:
    """Grade random strings against gold answers."""
    with Worker("ours") as worker:
        told = worker.ask("fuzz", golds=pool, texts=strange(pool, count))
        left = worker.left_behind()
    return {
        "n": count,
        "raised": len(told["raised"]),
        "examples": told["raised"][:3],
        "worst_seconds": told["slowest"],
        "growth_mebibytes": told["growth"] / 2**20,
        "seen": told["seen"][:3],
        "files_left": left,
    }


def orders(cases: list[Case]) -> Figures:
    """Compare the verdicts in three orders, and from eight threads that grade everything at once."""
    draw, names = random.Random(4), list(range(len(cases)))
    shuffled = names.copy()
    draw.shuffle(shuffled)
    found = []
    for order in (names, names[::-1], shuffled):
        with Worker("ours") as worker:
            told = worker.ask("grade", cases=[cases[name] for name in order])
        found.append(dict(zip(order, (result[:2] for result in told["results"]), strict=True)))
    with Worker("ours") as worker:
        told = worker.ask("grade", cases=cases, threads=8, each=True)
    many = [result[:2] for result in told["results"]]
    found += [
        dict(zip(names, many[start : start + len(cases)], strict=True)) for start in range(0, len(many), len(cases))
    ]
    differ = [name for name in names if len({str(run[name]) for run in found}) > 1]
    return {
        "n": len(cases),
        "runs": len(found),
        "differ": len(differ),
        "examples": [cases[name]["id"] for name in differ[:5]],
    }


def reflexive(golds: dict[str, list[str]]) -> Figures:
    """Grade every distinct gold answer against itself: unchanged, in a response's box, and with cosmetic edits."""
    pool = [gold for name in golds for gold in dict.fromkeys(golds[name]) if gold.strip()]
    cases = [case for gold in pool for case in cosmetic(gold)]
    with Worker("ours") as worker:
        results = worker.ask("grade", cases=cases)["results"]
    right = [correct for correct, *_ in results]
    kinds = ("itself", "in_a_box", "edited")
    wrong = [case["prediction"] for case, correct in zip(cases, right, strict=True) if not correct]
    return {
        "n": len(pool),
        **{kind: sum(right[place::3]) / len(pool) for place, kind in enumerate(kinds)},
        "examples": [text[-80:] for text in wrong[:8]],
    }


def false_pairs(pool: list[str], count: int) -> Figures:
    """Grade random pairs of different gold answers, and list those that are called equal, because some are.

    The parser reads all of them; only the first tenth goes to the symbolic tier, which takes half a second for a page
    of differential equations.
    """
    drawn = pairs(pool, count)
    with Worker("ours") as worker:
        results = worker.ask("grade", cases=drawn[: count // 10])["results"]
    tenth = tiers(results)
    with Worker("parser") as worker:
        results += worker.ask("grade", cases=drawn[count // 10 :])["results"]
    equal = [case for case, (correct, *_) in zip(drawn, results, strict=True) if correct]
    return {
        "n": count,
        "called_equal": len(equal),
        "share": len(equal) / count,
        "tiers_of_the_first_tenth": tenth,
        "pairs": [[case["gold"], case["prediction"]] for case in equal],
    }
