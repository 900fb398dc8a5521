"""Inspect data, convert it, snapshot tasks, check files: `qed data inspect | convert | prepare | validate`."""
# ruff: noqa: PLC0415, T201 -- readers of data are imported after the options are parsed, and this prints results

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser, split_words
from qed.data.sources.explain import use_column_option
from qed.errors import DataError, UsageError, suggest_nearest

if TYPE_CHECKING:
    from qed.data.tools.filters import Filters

USAGE = """Usage: qed data inspect TASK|FILE…       show statistics, and three samples with the trained tokens marked
       qed data convert IN OUT           convert from one schema to another, with filters
       qed data prepare --tasks … --to DIR   write an offline snapshot of tasks, compared with benchmarks
       qed data validate FILE|FOLDER…    check every row

`qed data ACTION --help` lists the options of each."""
TARGETS = ("jsonl", "csv", "parquet", "verl", "luffy", "trl", "gsm8k")
DEDUPE = ("rows", "questions")


@use_column_option("--map")
def run(arguments: Sequence[str]) -> int:
    """Run the action that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else UsageError.exit_code
    action, rest = arguments[0], arguments[1:]
    if action not in ACTIONS:
        raise UsageError(
            f"qed data has no action '{action}'.{suggest_nearest(action, ACTIONS)} There are: {', '.join(ACTIONS)}."
        )
    build_parser, run_action = ACTIONS[action]
    return run_action(build_parser().parse(rest))


def _build_parser(action: str, about: str, epilog: str) -> Parser:
    parser = Parser(f"data {action}", about, epilog)
    parser.add_argument(
        "--map", "--data.map", default="", metavar="OURS=THEIRS,…", help="columns to rename, such as question=problem"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON, as the last line of stdout")
    return parser


def _add_prompt_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--model", default="", help="measure lengths in this model's tokens; new:small trains a tokenizer on the data")
    add("--prompt", default="", metavar="NAME", help="prompt by name (default: the task's default)")
    add("--prompt-options", default="", metavar="NAME.FIELD=VALUE,…", help="options of the prompt")


def _add_filters(parser: Parser) -> None:
    add = parser.add_argument
    add("--dedupe", nargs="?", const="questions", default="", choices=DEDUPE, help="drop duplicate rows, or questions")
    add("--correct-only", action="store_true", help="only problems whose worked solution is correct")
    add("--max-prompt-percentile", type=float, default=100.0, metavar="P", help="maximum length of prompts")
    add("--max-tokens", type=int, default=0, metavar="N", help="maximum of prompt and demonstration; needs --model")
    add("--max-characters", type=int, default=0, metavar="N", help="maximum of question and demonstration")
    add("--unique-train-examples", default="all", metavar="N", help="problems to draw by the seed (default: all)")
    add(
        "--validation-split", "--split", type=float, default=0.0, metavar="SHARE", help="share to hold out, such as 0.1"
    )
    add("--seed", type=int, default=0, help="random seed")
    add("--overwrite", action="store_true", help="replace existing output")


def _build_inspect_parser() -> Parser:
    about = "Show statistics of tasks or files: schema, counts, lengths, unreadable answers, and three samples."
    parser = _build_parser(
        "inspect", about, "example:\n  qed data inspect train.jsonl --model new:small --prompt r1_zero"
    )
    parser.add_argument("names", nargs="+", metavar="TASK|FILE", help="NAME[:split][@PATH], or a data file")
    _add_prompt_options(parser)
    return parser


def _build_convert_parser() -> Parser:
    about = "Write the problems of a task or file in another schema; problems that do not fit it are counted."
    parser = _build_parser(
        "convert", about, "example:\n  qed data convert train.jsonl train.parquet --to luffy --correct-only"
    )
    add = parser.add_argument
    add("name", metavar="IN", help="NAME[:split][@PATH], or a data file")
    add("out", type=Path, metavar="OUT", help="the file to write: .jsonl, .jsonl.gz, .csv or .parquet")
    add("--to", default="", metavar="SCHEMA", choices=TARGETS, help=f"{', '.join(TARGETS)} (default: by OUT's name)")
    _add_prompt_options(parser)
    _add_filters(parser)
    return parser


def _build_prepare_parser() -> Parser:
    about = (
        "Write tasks into a folder that --tasks NAME:SPLIT@DIR reads without the hub. Filters apply to training splits "
        "only; benchmarks are not filtered."
    )
    epilog = "example:\n  qed data prepare --tasks gsm8k:train --against gsm8k:test,math:test500 --to data"
    parser = _build_parser("prepare", about, epilog)
    add = parser.add_argument
    add("--tasks", required=True, metavar="NAME,…", help="NAME[:split][@PATH], or data files")
    add("--to", required=True, type=Path, metavar="DIR", help="the folder to write")
    add("--against", default="", metavar="NAME,…", help="benchmarks to compare the training problems with")
    add("--words", type=int, default=13, metavar="N", help="consecutive shared words that count as an overlap (13)")
    add("--drop-contaminated", action="store_true", help="drop training problems that overlap")
    add("--revisions", default="", metavar="NAME=COMMIT,…", help="hub commits to use instead of the pinned ones")
    _add_prompt_options(parser)
    _add_filters(parser)
    return parser


def _build_validate_parser() -> Parser:
    about = "Check every row of files. Exits with code 3 if rows cannot be used; remarks alone are not errors."
    parser = _build_parser(
        "validate", about, "example:\n  qed data validate train.jsonl --map question=problem --strict"
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE|FOLDER",
        help="jsonl, json, csv, tsv (also compressed) or parquet; all such files of a folder and its subfolders",
    )
    parser.add_argument("--strict", action="store_true", help="treat remarks as errors")
    return parser


def _inspect(args: argparse.Namespace) -> int:
    from qed.console.live import Console
    from qed.data import tasks
    from qed.data.tools import inspect, tables
    from qed.data.tools.load import load_data
    from qed.data.tools.prompting import load_prompt_view

    console, reports = Console(args.json), []
    for name in args.names:
        data = load_data(name, _parse_pairs(args.map, "--map"))
        prompt = args.prompt or tasks.suggest_prompt(name)
        view = load_prompt_view(prompt, split_words(args.prompt_options), args.model, data.problems)
        reports.append({**inspect.inspect_data(data, view), "prompt": prompt})
        tables.show_figures(console, reports[-1])
        tables.show_samples(console, prompt, view, data.problems)
    return _print_json(args, {"data": reports})


def _convert(args: argparse.Namespace) -> int:
    filters = _read_filters(args)
    from qed.console.live import Console
    from qed.data.tools import convert, tables
    from qed.data.tools.load import load_data

    target = convert.Target(args.out, args.to, args.prompt, split_words(args.prompt_options), args.overwrite)
    target.check(bool(filters.validation_split))
    data = load_data(args.name, _parse_pairs(args.map, "--map"))
    result = convert.convert(data, target, filters, args.model)
    tables.show_converted(Console(args.json), result)
    return _print_json(args, result)


def _prepare(args: argparse.Namespace) -> int:
    filters = _read_filters(args)
    if not split_words(args.tasks):
        raise UsageError("--tasks names no task.")
    if args.words < 1:
        raise UsageError("--words must be at least 1.")
    if args.drop_contaminated and not args.against:
        raise UsageError("--drop-contaminated needs --against, which names the benchmarks to compare with.")
    from qed.console.live import Console
    from qed.data.tools import prepare, snapshot, tables
    from qed.data.tools.load import load_data

    snapshot.require_free_folder(args.to, args.overwrite)
    mapping, revisions = _parse_pairs(args.map, "--map"), _parse_pairs(args.revisions, "--revisions")
    loaded = [load_data(name, mapping, revisions) for name in split_words(args.tasks)]
    prepare.check_names(loaded)
    against = prepare.label_benchmarks([load_data(name, {}, revisions, "test") for name in split_words(args.against)])
    options = (args.prompt, split_words(args.prompt_options))
    plan = prepare.Plan(filters, against, args.words, args.drop_contaminated, args.model, options, revisions)
    manifest = prepare.prepare(loaded, args.to, plan, args.overwrite)
    tables.show_prepared(Console(args.json), manifest, str(args.to))
    return _print_json(args, manifest)


def _validate(args: argparse.Namespace) -> int:
    from qed.console.live import Console
    from qed.data.tools import tables
    from qed.data.tools.validate import validate_file

    console = Console(args.json)
    checks = [validate_file(file, _parse_pairs(args.map, "--map")) for file in args.files]
    for check in checks:
        tables.show_checked(console, check)
    bad = any(check.errors or (args.strict and check.remarks) for check in checks)
    _print_json(args, {"files": [check.as_dict() for check in checks], "valid": not bad})
    return DataError.exit_code if bad else 0


def _read_filters(args: argparse.Namespace) -> Filters:
    if args.max_tokens and not args.model:
        raise UsageError("--max-tokens counts a model's tokens: name the model with --model, or use --max-characters.")
    number = args.unique_train_examples
    if number != "all" and not (number.isascii() and number.isdigit() and int(number) > 0):
        raise UsageError(f"--unique-train-examples must be a number above 0, or all, not '{number}'.")
    from qed.data.tools.filters import Filters

    return Filters(
        args.dedupe,
        args.correct_only,
        args.max_prompt_percentile,
        args.max_tokens,
        args.max_characters,
        0 if number == "all" else int(number),
        args.validation_split,
        args.seed,
    )


def _print_json(args: argparse.Namespace, figures: Mapping[str, Any]) -> int:
    if args.json:
        print(json.dumps(figures, default=str))
    return 0


def _parse_pairs(text: str, option: str) -> dict[str, str]:
    from qed.data.splits import parse_pairs

    return parse_pairs(split_words(text), option)


ACTIONS: dict[str, tuple[Callable[[], Parser], Callable[[argparse.Namespace], int]]] = {
    "inspect": (_build_inspect_parser, _inspect),
    "convert": (_build_convert_parser, _convert),
    "prepare": (_build_prepare_parser, _prepare),
    "validate": (_build_validate_parser, _validate),
}
