"""Grade stored answers, or explain a verdict: `qed grade answers.jsonl`, `qed grade --explain GOLD ANSWER`."""
# ruff: noqa: PLC0415, T201 -- the grader is imported after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qed.cli.commands.base import Parser, add_extract_option, add_lists_option
from qed.cli.commands.verdict_options import (
    add_also_option,
    add_policy_option,
    check_reward_options,
    read_also,
    read_rewards,
)
from qed.cli.sharing import add_sharing_options, check_sharing, run_shared
from qed.errors import UsageError
from qed.grading.policy import find_policy
from qed.guards.redaction import strip_control

ABOUT = """Grade answers stored in jsonl, csv or parquet files.

Every row needs the correct answer and a model's response. Rows of kind `answer` are graded verbatim; from the others
the final answer is extracted. With --reward, a built-in or custom reward grades them."""
EPILOG = """examples:
  qed grade answers.jsonl --response-key completion --out graded.jsonl
  qed grade rollouts.parquet --gold-key reward_model.ground_truth --reward r1_zero --json
  qed grade answers.jsonl --policy qwen --also-grade math,math_verify
  qed grade --explain '\\frac12' 0.5"""

MODES = ("strict", "flexible", "lenient")
EXPLAIN = ("explain", "extract", "policy", "json", "debug")  # options that have an effect on --explain
MAX_SECONDS = 86_400


def run(arguments: Sequence[str]) -> int:
    """Grade the files, or explain one verdict."""
    parser = _build_parser()
    args = parser.parse(arguments)
    if args.explain and args.files:
        raise UsageError(
            f"qed grade --explain takes GOLD and ANSWER, but got {args.files[0]} too. Is a quote missing? A text with "
            "spaces needs quotes: qed grade --explain 0.5 'It is 1/2.' To grade a file, leave --explain out."
        )
    if args.explain:
        if unused := [name for name, action in parser.list_given(arguments) if action.dest not in EXPLAIN]:
            raise UsageError(f"qed grade --explain explains one verdict on two texts. Leave out {', '.join(unused)}.")
        from qed.grading.explain import explain_response

        gold, answer = args.explain
        # The terminal may pass arguments that are not valid Unicode.
        shown = explain_response(gold, answer, args.extract, find_policy(args.policy), args.json)
        print(strip_control(shown).encode("utf-8", "replace").decode())
        return 0
    if not args.files:
        raise UsageError("qed grade needs a file of answers, or --explain GOLD ANSWER.")
    from qed.evaluation.grade_files import require_graded

    figures = _grade_files(args)
    if args.json:
        print(json.dumps(figures))
    require_graded(figures)
    return 0


def _build_parser() -> Parser:
    parser = Parser("grade", ABOUT, EPILOG)
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="jsonl, json, csv, tsv (also compressed) or parquet")
    add("--gold-key", default="", metavar="COLUMN", help="correct answer (default: gold, or the first known column)")
    add("--response-key", default="", metavar="COLUMN", help="response (default: prediction, response, text, …)")
    add_extract_option(add, MODES)
    add_lists_option(add)
    add("--reward", default="", metavar="NAME,…", help="grade by a reward, or a sum such as boxed,0.5*length")
    add("--reward-options", default="", metavar="NAME.FIELD=VALUE,…", help="options of the rewards")
    add_policy_option(add)
    add_also_option(add)
    add("--seconds", type=float, default=10.0, help="CPU seconds per answer for a custom reward (default: 10)")
    add("--out", type=Path, metavar="FILE", help="rows with their verdicts: .jsonl, .jsonl.gz, .csv or .parquet")
    add_sharing_options(parser)
    add("--overwrite", action="store_true", help="with --shard or --cluster, start over if there are other shards")
    add("--json", action="store_true", help="print a summary as one line of JSON, as the last line of stdout")
    add("--explain", nargs=2, metavar=("GOLD", "ANSWER"), help="show each step of one verdict")
    return parser


def _grade_files(args: argparse.Namespace) -> dict[str, Any]:
    _check_options(args)
    from qed.console.live import Console
    from qed.evaluation.grade_run import GradeJob

    console = Console(args.json)
    names, options = read_rewards(args)
    files = tuple(map(str, args.files))
    job = GradeJob(
        files, (args.gold_key, args.response_key), args.extract, names, options, args.seconds, lists=args.lists
    )
    job = replace(job, policy=args.policy, also=read_also(args.also_grade))
    if not (args.shard or args.cluster):
        return job.write(job.grade_files(written=bool(args.out)), args.out, console)
    from qed.evaluation.shards import find_shard_folder

    return run_shared(args, job, find_shard_folder(args.out, is_file=True), console)


def _check_options(args: argparse.Namespace) -> None:
    from qed.data.sources.local import require_file

    for file in args.files:
        require_file(file, "to grade")
    if not MAX_SECONDS >= args.seconds > 0:
        raise UsageError(f"--seconds must be more than 0 and at most {MAX_SECONDS:,}, not {args.seconds:g}.")
    check_reward_options(args)
    check_sharing(args)
    if args.shard or args.cluster:
        from qed.data.sources.writing import require_suffix

        require_suffix(args.out)
