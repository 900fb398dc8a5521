"""Compare two evaluations on the same problems, or the sampled answers of two runs token by token."""
# ruff: noqa: PLC0415, T201 -- numpy is imported once the options are read, and this prints results

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser, add_lists_option
from qed.cli.commands.verdict_options import add_policy_option
from qed.errors import UsageError

ABOUT = """Compare evaluations on the same problems, A before and B after.

A and B are runs (their last evaluation is used), folders eval/step_N, or files of answers. A quoted pattern, or a
comma-separated list of these, is an arm of several runs with different seeds: the spread between seeds counts too.
Differences besides the model are reported. With --rollouts, A and B are runs with the same settings, and the command
shows where they diverge: the first sampled token that differs, and how close the draw was."""
EPILOG = """examples:
  qed compare runs/base runs/trained
  qed compare runs/x/eval/step_000000 runs/x/eval/step_000200 --measure pass@8
  qed compare 'runs/grpo-*' 'runs/dapo-*' --power
  qed compare one.jsonl other.jsonl --response-key completion
  qed compare runs/one_rank runs/two_ranks --rollouts"""


def run(arguments: Sequence[str]) -> int:
    """Compare two evaluations or arms, and print the paired tests."""
    args = _build_parser().parse(arguments)
    if args.more:
        raise UsageError(
            f"qed compare takes A and B, but got {2 + len(args.more)} paths. For arms of several runs, quote the "
            f"patterns: qed compare 'runs/a-*' 'runs/b-*'."
        )
    if not args.after and (args.rollouts or not args.power):
        raise UsageError("qed compare takes A and B; with --power, A alone. `qed compare --help` shows how.")
    from qed.console.live import Console
    from qed.evaluation.compare import compare
    from qed.evaluation.compared_runs import find_places
    from qed.evaluation.detectable import show_power
    from qed.evaluation.stored import Scoring

    places = [place for name in (args.before, args.after) if name for place in find_places(name)]
    if args.policy != "math" and not all(place.is_file() for place in places):
        raise UsageError("--policy is for files of answers, which are graded here. An evaluation is already graded.")
    console = Console(args.json)
    if args.rollouts:
        from qed.evaluation.parting import show_parting  # loads torch, which evaluations do not need

        result = show_parting(Path(args.before), Path(args.after), console)
    else:
        keys = tuple(args.response_key.split(","))
        scoring = Scoring(args.gold_key, keys, args.id_key, lists=args.lists, policy=args.policy)
        if args.after:
            result = compare(args.before, args.after, scoring, console, args.measure, args.power)
        else:
            result = show_power(args.before, scoring, console, args.measure)
    if args.json:
        print(json.dumps(result))
    return 0


def _build_parser() -> Parser:
    parser = Parser("compare", ABOUT, EPILOG)
    add = parser.add_argument
    add("before", metavar="A", help="a run, a folder eval/step_N, a file of answers, or several of them")
    add("after", nargs="?", default="", metavar="B", help="the same, to compare with A")
    add("more", nargs="*", metavar="…", help=argparse.SUPPRESS)
    add("--measure", default="accuracy", metavar="NAME", help="accuracy (default), pass@K or maj@K, such as pass@8")
    add("--power", action="store_true", help="also print the smallest difference that these problems can detect")
    add("--gold-key", default="", metavar="COLUMN", help="for a file of answers: the column of the correct answer")
    add("--response-key", default="", metavar="COLUMN,…", help="for a file of answers: the columns of the answers")
    add("--id-key", default="", metavar="COLUMN", help="for a file of answers: the column that identifies a problem")
    add_policy_option(add)
    add_lists_option(add, "for a file of answers: ")
    add("--rollouts", action="store_true", help="show the first sampled token that differs in two runs")
    add("--json", action="store_true", help="print the tests as one line of JSON, as the last line of stdout")
    return parser
