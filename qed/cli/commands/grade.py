"""Grade stored answers, or explain a verdict: `qed grade answers.jsonl`, `qed grade --explain GOLD ANSWER`."""
# ruff: noqa: PLC0415, T201 -- what grades is imported once the options are read, and this prints results

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

ABOUT = """Grade answers that are stored in jsonl, csv or parquet files.

Every row needs the right answer and a model's response. Rows of kind `answer` are graded as they stand; in the others
the final answer is looked for. With --reward a reward decides, one of the shelf or your own."""
EPILOG = """examples:
  qed grade answers.jsonl --response-key completion --out graded.jsonl
  qed grade rollouts.parquet --gold-key reward_model.ground_truth --reward r1_zero --json
  qed grade --explain '\\frac12' 0.5"""
MODES = ("strict", "flexible", "lenient")
MOST_WORKERS = 8
MOST_SECONDS = 86_400


def run(arguments: Sequence[str]) -> int:
    """Grade the files, or explain one verdict."""
    asked = _build_parser().parse(arguments)
    if asked.explain:
        from qed.grading.explain import explain

        gold, answer = asked.explain
        # What the terminal handed over may be no Unicode.
        print(strip_control(explain(gold, answer, as_json=asked.json)).encode("utf-8", "replace").decode())
        return 0
    if not asked.files:
        raise UsageError("qed grade needs a file of answers, or --explain GOLD ANSWER.")
    _grade_files(asked)
    return 0


def _build_parser() -> Parser:
    parser = Parser("grade", ABOUT, EPILOG)
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="jsonl, json, csv (also .gz) or parquet")
    add("--gold-key", default="", metavar="COLUMN", help="the right answer (default: gold, or the first known column)")
    add("--response-key", default="", metavar="COLUMN", help="the response (default: prediction, response, text, …)")
    add("--extract", choices=MODES, default="flexible", help="how an answer is looked for (default: flexible)")
    add("--reward", default="", metavar="NAME,…", help="grade by a reward, or a sum such as boxed,0.5*length")
    add("--reward-options", default="", metavar="NAME.FIELD=VALUE,…", help="settings of the rewards")
    add("--seconds", type=float, default=10.0, help="processor time for one answer, for a reward of your own")
    add("--out", type=Path, metavar="FILE", help="the rows with their verdicts: .jsonl, .jsonl.gz, .csv or .parquet")
    add("--json", action="store_true", help="print a summary as one line of JSON, the last of stdout")
    add("--explain", nargs=2, metavar=("GOLD", "ANSWER"), help="show each step of one verdict")
    return parser


def _grade_files(asked: argparse.Namespace) -> None:
    from qed.console.live import Console
    from qed.data.sources.writing import Writer
    from qed.evaluation.grade_files import Summary, grade_rows
    from qed.grading import symbolic

    _check_options(asked)
    console = Console(asked.json)
    grader, workers = _load_grader(asked)
    symbolic.CHILD.start()  # it loads while the first rows are read
    with Writer(asked.out) if asked.out else nullcontext() as writer:
        summary = Summary()
        try:
            for graded in grade_rows(
                _read_rows(asked.files), (asked.gold_key, asked.response_key), asked.extract, grader, workers
            ):
                summary.add(graded)
                if writer is not None:
                    writer.add(graded.as_row(rewarded=grader is not None))
        except KeyboardInterrupt:
            kept = f"; {writer.part} has them" if summary.n and writer is not None and writer.part.exists() else ""
            console.say(f"Interrupted after {summary.n} rows{kept}.")
            raise
    figures = summary.figures()
    if not summary.n:
        raise DataError(f"{asked.files[0]} has no row to grade.")
    _show_counts(console, figures, asked, list(summary.replaced))
    if asked.json:
        print(json.dumps(figures))


def _check_options(asked: argparse.Namespace) -> None:
    for file in asked.files:
        if file.is_dir():
            raise DataError(f"{file} is a folder. Name the files in it, such as {file / '*.jsonl'}.")
        if not file.is_file():
            raise DataError(f"There is no file {file} to grade.")
    if not MOST_SECONDS >= asked.seconds > 0:
        raise UsageError(f"--seconds must be more than 0 and at most {MOST_SECONDS:,}, not {asked.seconds:g}.")


def _load_grader(asked: argparse.Namespace) -> tuple[Any, int]:
    """What grades by the reward that was asked for, and how many answers at once; None grades by the final answer."""
    if not asked.reward:
        return None, 1
    from qed.config.reward_names import parse_reward
    from qed.grading.session import Limits
    from qed.rewards import grader

    names = [name.strip() for name in asked.reward.split(",")]
    options = [option.strip() for option in asked.reward_options.split(",") if option.strip()]
    outside = any(plugins.is_users_own(parse_reward(name).source) for name in names)
    workers = min(MOST_WORKERS, os.cpu_count() or 1) if outside else 1
    pool = grader.Pool(workers, Limits(asked.seconds, 6 * asked.seconds))
    return grader.make_grader(names, options, pool=pool), workers


def _read_rows(files: Sequence[Path]) -> Rows:
    from qed.data.sources import local

    for file in files:
        yield from local.read_rows(str(file), "")


def _show_counts(console: Any, figures: dict[str, Any], asked: argparse.Namespace, replaced: Sequence[str]) -> None:
    """The counts as tables."""
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
            (label, *(f"{classes[f'fmt{kept}_ans{right}']:,}" for right in (1, 0)))
            for label, kept in (("format kept", 1), ("format broken", 0))
        ],
    )
    if asked.reward:
        mean = figures["mean_reward"]
        without = figures["without_reward"]
        told = "a reward is not finite" if mean is None else f"mean reward {mean:.4f}"
        told = "no answer has a reward" if without == n else told
        console.say(f"{told}; {without:,} answers have none" if 0 < without < n else told)
    if "labelled" in figures:
        console.say(
            f"against the column `expected`: {figures['false_positives']} of {figures['labelled']} wrongly accepted, "
            f"{figures['false_negatives']} wrongly refused"
        )
    if asked.out:
        if replaced:
            console.say(f"Replaced there, because rows had them already: {', '.join(replaced)}.")
        console.say(f"Every verdict is in {asked.out}.")
