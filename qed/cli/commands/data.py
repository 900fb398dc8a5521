"""Look at data, convert it, snapshot tasks, check files: `qed data inspect | convert | prepare | validate`."""
# ruff: noqa: PLC0415, T201 -- what reads data is imported once the options are read, and this prints results

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.errors import DataError, UsageError, suggest_nearest

if TYPE_CHECKING:
    from qed.data.tools.filters import Filters

USAGE = """Usage: qed data inspect TASK|FILE…       what is in data, and three samples with the trained tokens marked
       qed data convert IN OUT           from one schema to another, filtered on the way
       qed data prepare --tasks … --to DIR   an offline snapshot of tasks, compared with benchmarks
       qed data validate FILE…           every row checked

`qed data ACTION --help` lists what each takes."""
TARGETS = ("jsonl", "csv", "parquet", "verl", "luffy", "trl", "gsm8k")
DEDUPE = ("rows", "questions")


def run(arguments: Sequence[str]) -> int:
    """Do what the first word says."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else UsageError.exit_code
    action, rest = arguments[0], arguments[1:]
    if action not in ACTIONS:
        raise UsageError(
            f"qed data has no action '{action}'.{suggest_nearest(action, ACTIONS)} There are: {', '.join(ACTIONS)}."
        )
    parser, act = ACTIONS[action]
    return act(parser().parse(rest))


def _build_parser(action: str, about: str, epilog: str) -> Parser:
    parser = Parser(f"data {action}", about, epilog)
    parser.add_argument(
        "--map", "--data.map", default="", metavar="OURS=THEIRS,…", help="renamed columns, such as question=problem"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON, the last of stdout")
    return parser


def _add_prompt_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--model", default="", help="measure in the tokens of this model; new:small makes a tokenizer of the data")
    add("--prompt", default="", metavar="NAME", help="how problems are asked (default: the task's own)")
    add("--prompt-options", default="", metavar="NAME.FIELD=VALUE,…", help="settings of the prompt")


def _add_filters(parser: Parser) -> None:
    add = parser.add_argument
    add("--dedupe", nargs="?", const="questions", default="", choices=DEDUPE, help="each row, or question, once")
    add("--correct-only", action="store_true", help="only problems whose worked solution is right")
    add("--max-prompt-percentile", type=float, default=100.0, metavar="P", help="of prompts, by length")
    add("--max-tokens", type=int, default=0, metavar="N", help="of prompt and demonstration; needs --model")
    add("--max-characters", type=int, default=0, metavar="N", help="of question and demonstration")
    add("--unique-train-examples", default="all", metavar="N", help="so many, drawn by the seed (default: all)")
    add("--validation-split", "--split", type=float, default=0.0, metavar="SHARE", help="held back, such as 0.1")
    add("--seed", type=int, default=0, help="of the draws")
    add("--overwrite", action="store_true", help="replace what is there")


def _build_inspect_parser() -> Parser:
    about = "Show what is in tasks or files: schema, counts, lengths, unreadable answers, and three samples."
    parser = _build_parser(
        "inspect", about, "example:\n  qed data inspect train.jsonl --model new:small --prompt r1_zero"
    )
    parser.add_argument("names", nargs="+", metavar="TASK|FILE", help="NAME[:split][@PATH], or a data file")
    _add_prompt_options(parser)
    return parser


def _build_convert_parser() -> Parser:
    about = "Write the problems of a task or file in another schema; what cannot be held is counted."
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
        "Write tasks into a folder that --tasks NAME:SPLIT@DIR reads without the hub. Filters are for splits to train "
        "on; benchmarks are kept whole."
    )
    epilog = "example:\n  qed data prepare --tasks gsm8k:train --against gsm8k:test,math:test500 --to data"
    parser = _build_parser("prepare", about, epilog)
    add = parser.add_argument
    add("--tasks", required=True, metavar="NAME,…", help="NAME[:split][@PATH], or data files")
    add("--to", required=True, type=Path, metavar="DIR", help="the folder to write")
    add("--against", default="", metavar="NAME,…", help="benchmarks that the training problems are compared with")
    add("--words", type=int, default=13, metavar="N", help="how many words in a row are an overlap (default: 13)")
    add("--drop-contaminated", action="store_true", help="leave out training problems that overlap")
    add("--revisions", default="", metavar="NAME=COMMIT,…", help="of the hub, in place of the pinned ones")
    _add_prompt_options(parser)
    _add_filters(parser)
    return parser


def _build_validate_parser() -> Parser:
    about = "Check every row of files. Exit code 3 where rows cannot be used; remarks alone are no error."
    parser = _build_parser(
        "validate", about, "example:\n  qed data validate train.jsonl --map question=problem --strict"
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="jsonl, json, csv (also .gz) or parquet")
    parser.add_argument("--strict", action="store_true", help="remarks are errors too")
    return parser


def _inspect(asked: argparse.Namespace) -> int:
    from qed.console.live import Console
    from qed.data import tasks
    from qed.data.tools import inspect, tables
    from qed.data.tools.load import load_data
    from qed.data.tools.prompting import load_prompt_view

    console, told = Console(asked.json), []
    for name in asked.names:
        data = load_data(name, _parse_pairs(asked.map, "--map"))
        prompt = asked.prompt or tasks.suggest_prompt(name)
        put = load_prompt_view(prompt, _split_words(asked.prompt_options), asked.model, data.problems)
        told.append({**inspect.inspect_data(data, put), "prompt": prompt})
        tables.show_figures(console, told[-1])
        tables.show_samples(console, prompt, put, data.problems)
    return _print_json(asked, {"data": told})


def _convert(asked: argparse.Namespace) -> int:
    filters = _read_filters(asked)
    from qed.console.live import Console
    from qed.data.tools import convert, tables
    from qed.data.tools.load import load_data

    target = convert.Target(asked.out, asked.to, asked.prompt, _split_words(asked.prompt_options), asked.overwrite)
    target.check(bool(filters.validation_split))
    data = load_data(asked.name, _parse_pairs(asked.map, "--map"))
    found = convert.convert(data, target, filters, asked.model)
    tables.show_converted(Console(asked.json), found)
    return _print_json(asked, found)


def _prepare(asked: argparse.Namespace) -> int:
    filters = _read_filters(asked)
    if not _split_words(asked.tasks):
        raise UsageError("--tasks names no task.")
    if asked.words < 1:
        raise UsageError("--words must be at least 1.")
    if asked.drop_contaminated and not asked.against:
        raise UsageError("--drop-contaminated needs --against, which names the benchmarks to compare with.")
    from qed.console.live import Console
    from qed.data.tools import prepare, snapshot, tables
    from qed.data.tools.load import load_data

    snapshot.require_free_folder(asked.to, asked.overwrite)
    mapping, revisions = _parse_pairs(asked.map, "--map"), _parse_pairs(asked.revisions, "--revisions")
    loaded = [load_data(name, mapping, revisions) for name in _split_words(asked.tasks)]
    prepare.check_names(loaded)
    against = prepare.label_benchmarks([load_data(name, {}, revisions, "test") for name in _split_words(asked.against)])
    options = (asked.prompt, _split_words(asked.prompt_options))
    plan = prepare.Plan(filters, against, asked.words, asked.drop_contaminated, asked.model, options, revisions)
    manifest = prepare.prepare(loaded, asked.to, plan, asked.overwrite)
    tables.show_prepared(Console(asked.json), manifest, str(asked.to))
    return _print_json(asked, manifest)


def _validate(asked: argparse.Namespace) -> int:
    from qed.console.live import Console
    from qed.data.tools import tables
    from qed.data.tools.validate import validate_file

    console = Console(asked.json)
    found = [validate_file(file, _parse_pairs(asked.map, "--map")) for file in asked.files]
    for one in found:
        tables.show_checked(console, one)
    bad = any(one.errors or (asked.strict and one.remarks) for one in found)
    _print_json(asked, {"files": [one.as_dict() for one in found], "valid": not bad})
    return DataError.exit_code if bad else 0


def _read_filters(asked: argparse.Namespace) -> Filters:
    if asked.max_tokens and not asked.model:
        raise UsageError("--max-tokens counts in a model's tokens: name it with --model, or take --max-characters.")
    number = asked.unique_train_examples
    if number != "all" and not (number.isascii() and number.isdigit() and int(number) > 0):
        raise UsageError(f"--unique-train-examples wants a number above 0, or all, not '{number}'.")
    from qed.data.tools.filters import Filters

    return Filters(
        asked.dedupe,
        asked.correct_only,
        asked.max_prompt_percentile,
        asked.max_tokens,
        asked.max_characters,
        0 if number == "all" else int(number),
        asked.validation_split,
        asked.seed,
    )


def _print_json(asked: argparse.Namespace, figures: Mapping[str, Any]) -> int:
    if asked.json:
        print(json.dumps(figures, default=str))
    return 0


def _parse_pairs(text: str, option: str) -> dict[str, str]:
    from qed.data.splits import parse_pairs

    return parse_pairs(_split_words(text), option)


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


ACTIONS: dict[str, tuple[Callable[[], Parser], Callable[[argparse.Namespace], int]]] = {
    "inspect": (_build_inspect_parser, _inspect),
    "convert": (_build_convert_parser, _convert),
    "prepare": (_build_prepare_parser, _prepare),
    "validate": (_build_validate_parser, _validate),
}
