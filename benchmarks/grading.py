"""Grading compared with math-verify: accuracy, speed, hostile text, chance strings, order, reflexivity, false pairs.

    python benchmarks/grading.py [--data ../shared/grading] [--rounds 5] [--quick] [--hang-rival]

Every grader runs in throwaway processes with an address-space limit; math-verify's own time limits are off, and it
is killed from outside. The last line is JSON.
"""

from __future__ import annotations

import argparse
import platform
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grading_parts import card, measures
from grading_parts.cases import HOSTILE, golds, labelled
from grading_parts.process import Worker
from results import add_json, print_result


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _parser().parse_args()
    rounds, strings, drawn = (1, 2_000, 5_000) if asked.quick else (asked.rounds, 20_000, 60_000)
    cases, realistic = labelled(asked.data / "dev.jsonl.gz"), labelled(asked.data / "realistic.jsonl.gz")
    public = golds(asked.golds)
    pool = [gold for name in public if name != "mmlu test" for gold in public[name] if gold.strip()]
    figures = {"ours": {}, "rival": {}, **_setting(asked, rounds)}
    say = partial(print, file=sys.stderr, flush=True)
    say("the ordinary cases")
    _accuracy(figures, [case for case in cases if case["category"] not in HOSTILE])
    say(f"{rounds} rounds on the realistic responses")
    _speed(figures, realistic, rounds)
    say("hostile cases")
    _hostile(figures, cases, asked.hang_rival)
    say("chance strings, orders, golds against themselves, pairs of golds")
    ours = figures["ours"]
    ours["fuzz"] = measures.fuzz(pool, strings)
    ours["orders"] = measures.orders(cases + realistic[:: 10 if asked.quick else 1])
    ours["reflexive"] = measures.reflexive(public)
    ours["pairs"] = measures.false_pairs(pool, drawn)
    card.show(figures)
    print_result(figures, asked.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json(parser)
    parser.add_argument("--data", type=Path, default=Path("../shared/grading"), help="dev and realistic .jsonl.gz")
    parser.add_argument("--golds", type=Path, default=Path("../shared/data"), help="public data sets, for their golds")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per grader on the realistic responses, in turns")
    parser.add_argument("--quick", action="store_true", help="one round, and a tenth of the strings and pairs")
    parser.add_argument(
        "--hang-rival", action="store_true", help="also run math-verify on the hang cases, which takes minutes"
    )
    return parser


def _setting(asked: argparse.Namespace, rounds: int) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "quick": asked.quick,
        "python": platform.python_version(),
        "math_verify": version("math-verify"),
        "machine": card.machine(),
    }


def _accuracy(figures: dict[str, Any], ordinary: list[dict[str, Any]]) -> None:
    for who in ("ours", "rival"):
        with Worker(who) as worker:
            results = measures.one_by_one(worker, ordinary, measures.CASE_SECONDS)
        figures[who]["ordinary"] = measures.scores(ordinary, results)
        figures[who]["ordinary_tiers"] = measures.tiers(results)


def _speed(figures: dict[str, Any], realistic: list[dict[str, Any]], rounds: int) -> None:
    ours, rival = measures.speed(realistic, rounds)
    for who, (rates, results) in (("ours", ours), ("rival", rival)):
        figures[who]["realistic"] = {**measures.scores(realistic, results), **rates, "tiers": measures.tiers(results)}
    for name, rate in (("ratio", "cases_per_second"), ("ratio_cpu", "cases_per_second_cpu")):
        figures[name] = figures["ours"]["realistic"][rate] / figures["rival"]["realistic"][rate]


def _hostile(figures: dict[str, Any], cases: list[dict[str, Any]], hang_rival: bool) -> None:
    hang = [case for case in cases if case["category"] == "adversarial_hang"]
    payloads = [case for case in cases if case["category"] == "injection"]
    figures["ours"]["hang"] = measures.hangs(hang)
    if hang_rival:
        figures["rival"]["hang"] = measures.rival_hangs(hang)
    for who in ("ours", "rival"):
        figures[who]["injection"] = measures.injections(who, payloads)


if __name__ == "__main__":
    main()
