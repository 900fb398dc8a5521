"""Grade stored answers, or explain a verdict: `qed grade answers.jsonl`, `qed grade --explain GOLD ANSWER`."""
# ruff: noqa: PLC0415, T201 -- the grader is imported after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.config import plugins
from qed.errors import DataError, UsageError
from qed.guards.redaction import strip_control

if TYPE_CHECKING:
    from qed.data.sources.rows import Rows

ABOUT = """Grade answers stored in jsonl, csv or parquet files.

Every row needs the correct answer and a model's response. Rows of kind `answer` are graded as they are; from the
others the final answer is extracted. With --reward, a reward grades them: one of qed's, or your own."""
EPILOG = """examples:
  qed grade answers.jsonl --response-key completion --out graded.jsonl
  qed grade rollouts.parquet --gold-key reward_model.ground_truth --reward r1_zero --json
  qed grade --explain '\\frac12' 0.5"""
MODES = ("strict", "flexible", "lenient")
MAX_WORKERS = 8
MAX_SECONDS = 86_400


def run(arguments: Sequence[str]) -> int:
    """Grade the files, or explain one verdict."""
    args = _build_parser().parse(arguments)
    if args.explain:
        from qed.grading.explain import explain

        gold, answer = args.explain
        # The terminal may pass arguments that are not valid Unicode.
        print(strip_control(explain(gold, answer, as_json=args.json)).encode("utf-8", "replace").decode())
        return 0
    if not args.files:
        raise UsageError("qed grade needs a file of answers, or --explain GOLD ANSWER.")
    _grade_files(args)
    return 0


def _build_parser() -> Parser:
    parser = Parser("grade", ABOUT, EPILOG)
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="jsonl, json, csv, tsv (also compressed) or parquet")
    add("--gold-key", default="", metavar="COLUMN", help="correct answer (default: gold, or the first known column)")
    add("--response-key", default="", metavar="COLUMN", help="response (default: prediction, response, text, …)")
    add("--extract", choices=MODES, default="flexible", help="how the final answer is extracted (default: flexible)")
    add("--reward", default="", metavar="NAME,…", help="grade by a reward, or a sum such as boxed,0.5*length")
    add("--reward-options", default="", metavar="NAME.FIELD=VALUE,…", help="options of the rewards")
    add("--seconds", type=float, default=10.0, help="CPU seconds for one answer, for a reward of your own")
    add("--out", type=Path, metavar="FILE", help="rows with their verdicts: .jsonl, .jsonl.gz, .csv or .parquet")
    add("--json", action="store_true", help="print a summary as one line of JSON, as the last line of stdout")
    add("--explain", nargs=2, metavar=("GOLD", "ANSWER"), help="show each step of one verdict")
    return parser


def _grade_files(args: argparse.Namespace) -> None:
    from qed.console.live import Console
    from qed.data.sources.writing import Writer
    from qed.evaluation.grade_files import Summary, grade_rows
    from qed.grading import symbolic

    _check_options(args)
    console = Console(args.json)
    grader, workers = _load_grader(args)
    symbolic.CHILD.start()  # the process loads while the first rows are read
    with Writer(args.out) if args.out else nullcontext() as writer:
        summary = Summary()
        try:
            for graded in grade_rows(
                _read_rows(args.files), (args.gold_key, args.response_key), args.extract, grader, workers
            ):
                summary.add(graded)
                if writer is not None:
                    writer.add(graded.as_row(rewarded=grader is not None))
        except KeyboardInterrupt:
            saved = f"; {writer.part} has them" if summary.n and writer is not None and writer.part.exists() else ""
            console.say(f"Interrupted after {summary.n} rows{saved}.")
            raise
    figures = summary.figures()
    if not summary.n:
        raise DataError(f"{args.files[0]} has no row to grade.")
    _show_counts(console, figures, args, list(summary.replaced))
    if args.json:
        print(json.dumps(figures))


def _check_options(args: argparse.Namespace) -> None:
    for file in args.files:
        if file.is_dir():
            raise DataError(f"{file} is a folder. Name the files in it, such as {file / '*.jsonl'}.")
        if not file.is_file():
            raise DataError(f"There is no file {file} to grade.")
    if not MAX_SECONDS >= args.seconds > 0:
        raise UsageError(f"--seconds must be more than 0 and at most {MAX_SECONDS:,}, not {args.seconds:g}.")


def _load_grader(args: argparse.Namespace) -> tuple[Any, int]:
    """Return the grader of --reward and its number of workers; None grades by the final answer."""
    if not args.reward:
        return None, 1
    from qed.config.reward_names import parse_reward
    from qed.grading.session import Limits
    from qed.rewards import grader

    names = [name.strip() for name in args.reward.split(",")]
    options = [option.strip() for option in args.reward_options.split(",") if option.strip()]
    user_code = any(plugins.is_users_own(parse_reward(name).source) for name in names)
    workers = min(MAX_WORKERS, os.cpu_count() or 1) if user_code else 1
    pool = grader.Pool(workers, Limits(args.seconds, 6 * args.seconds))
    return grader.make_grader(names, options, pool=pool), workers


def _read_rows(files: Sequence[Path]) -> Rows:
    from qed.data.sources import local

    for file in files:
        yield from local.read_rows(str(file), "")


def _show_counts(console: Any, figures: dict[str, Any], args: argparse.Namespace, replaced: Sequence[str]) -> None:
    """Print the counts as tables."""
    n = figures["n"]
    rows = [
        (label, f"{figures[name]:,}", f"{figures[name] / n:.1%}")
        for label, name in (
            ("right", "correct"),
            ("in format", "format_ok"),
            ("without an answer", "no_answer"),
            ("out of time", "timeouts"),
            ("failed", "errors"),
        )
    ]
    console.table(f"{n:,} answers, {figures['cases_per_second']:,.0f} a second", ("", "n", "share"), rows)
    classes = figures["classes"]
    console.table(
        "format × answer",
        ("", "right", "wrong"),
        [
            (label, *(f"{classes[f'fmt{format_ok}_ans{correct}']:,}" for correct in (1, 0)))
            for label, format_ok in (("format kept", 1), ("format broken", 0))
        ],
    )
    if args.reward:
        mean = figures["mean_reward"]
        without = figures["without_reward"]
        line = "a reward is not finite" if mean is None else f"mean reward {mean:.4f}"
        line = "no answer has a reward" if without == n else line
        console.say(f"{line}; {without:,} answers have none" if 0 < without < n else line)
    if "labelled" in figures:
        console.say(
            f"against the column `expected`: {figures['false_positives']} of {figures['labelled']} wrongly accepted, "
            f"{figures['false_negatives']} wrongly refused"
        )
    if args.out:
        if replaced:
            console.say(f"Columns of the input replaced by new ones: {', '.join(replaced)}.")
        console.say(f"Every verdict is in {args.out}.")
