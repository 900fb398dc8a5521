"""Evaluate several models, temperatures, prompts or other values of options: `qed evaluate --sweep OPTION=VALUE,…`."""
# ruff: noqa: PLC0415, T201 -- torch is imported once the options are read, and this prints results

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.cli.commands.base import Parser
from qed.config.sweep import name_folder
from qed.config.values import split_items
from qed.errors import Interrupted, QedError, UsageError, find_exit_code, follows_interrupt, suggest_nearest

if TYPE_CHECKING:
    from qed.evaluation.sweeping import Cell, CellOutcome, SweepTable

# Options that apply to the whole sweep.
NEVER = {"out", "sweep", "shard", "cluster"}
CellRunner = Callable[[argparse.Namespace, Sequence[str]], dict[str, Any]]


def add_sweep_option(parser: Parser) -> None:
    """Add `--sweep`."""
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="OPTION=VALUE,…",
        help="evaluate once per value, such as model=A,B or temperature=0,0.6; if repeated, once per combination",
    )


def run_sweep(
    parser: Parser, arguments: Sequence[str], check: Callable[[argparse.Namespace], None], evaluate: CellRunner
) -> int:
    """Evaluate every cell in a separate folder, and print one table; see `qed.evaluation.sweeping` for the files.

    Args:
        parser: the parser of the command.
        arguments: the options of a configuration, followed by the command line with its sweep.
        check: checks the options of a cell before the first one starts.
        evaluate: evaluates one cell.

    Returns:
        The exit code: 1 if a cell failed.

    Raises:
        UsageError: the sweep or one of its cells is invalid.
        Interrupted: a signal stopped it; finished cells are in the table and in the files.
    """
    args = parser.parse(arguments, layered=True)
    cells, table = _list_cells(parser, args, arguments)
    for cell in cells:
        check(parser.parse(cell.arguments, layered=True))
    from qed.console.live import Console
    from qed.evaluation.stored_problems import write_count
    from qed.evaluation.sweeping import format_outcomes

    console, folder = Console(args.json), table.folder
    outcomes: list[CellOutcome] = []
    folder.mkdir(parents=True, exist_ok=True)
    table.write()
    try:
        for number, cell in enumerate(cells, 1):
            console.say(f"sweep {number}/{len(cells)}: {cell.folder.name}")
            outcomes.append(_evaluate_cell(parser.parse(cell.arguments, layered=True), cell, evaluate))
            table.add(outcomes[-1])
    except (Interrupted, KeyboardInterrupt) as stopped:
        print(format_outcomes(outcomes), file=sys.stderr, flush=True)
        raise Interrupted(
            f"Interrupted after {len(outcomes)} of {len(cells)} evaluations. Finished ones are saved in {folder}; "
            f"continue with the same command and --out {folder}.",
            find_exit_code(stopped),
        ) from stopped
    print(f"\n{format_outcomes(outcomes)}", file=sys.stderr if args.json else sys.stdout, flush=True)
    more = len(table.outcomes) - len(outcomes)
    also = f", with {write_count(more, 'cell')} of earlier sweeps" if more else ""
    console.say(f"The table is in {folder / 'sweep.csv'}, all figures are in {folder / 'sweep.json'}{also}.")
    if args.json:
        print(json.dumps([outcome.describe() for outcome in outcomes], default=str))
    return 1 if any(outcome.error for outcome in outcomes) else 0


def _evaluate_cell(args: argparse.Namespace, cell: Cell, evaluate: CellRunner) -> CellOutcome:
    """Evaluate a cell; a failure is reported, and the sweep continues."""
    from qed.evaluation.sweeping import CellOutcome

    try:
        return CellOutcome(cell, evaluate(args, cell.arguments))
    except Interrupted:
        raise
    except Exception as error:  # the failure of one cell must not stop the others
        if follows_interrupt(error):
            raise KeyboardInterrupt from error
        if args.debug:
            traceback.print_exception(error)
        text = str(error) if isinstance(error, QedError) else f"{type(error).__name__}: {error}"
        print(f"error: {text}", file=sys.stderr, flush=True)
        return CellOutcome(cell, {}, text)


def _list_cells(parser: Parser, args: argparse.Namespace, arguments: Sequence[str]) -> tuple[list[Cell], SweepTable]:
    """Return the cells in order, and the table in the folder of the sweep."""
    from qed.evaluation.sweeping import Cell, SweepTable
    from qed.runs.folder import CELLS_FIGURES

    if args.shard or args.cluster:
        raise UsageError(
            "A sweep runs in one process. Start a separate command with --shard or --cluster for each of its cells."
        )
    swept = _parse_swept(parser, args.sweep)
    folder = args.out or Path(time.strftime("runs/sweep-evaluate-%Y%m%d-%H%M%S"))
    if args.greedy and "temperature" in swept:
        raise UsageError("--greedy contradicts a sweep of temperature. Leave it out: temperature 0 is greedy decoding.")
    if args.resume and not args.out:
        raise UsageError("--resume needs the sweep's folder: add --out DIR.")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / CELLS_FIGURES).is_file()):
        raise UsageError(f"{folder} already exists and contains no sweep of evaluations; choose another --out.")
    rest = _drop_options(arguments, parser, {"--sweep", "--out", "--resume"})
    cells, table = [], SweepTable(folder)
    for values in itertools.product(*swept.values()):
        point = dict(zip(swept, values, strict=True))
        own = table.choose_folder(point, name_folder(point))
        options = [option for key, value in point.items() for option in _write_option(key, value)]
        # Cells that a resumed sweep has not started yet have nothing to resume.
        resume = ["--resume"] if args.resume and (own / "eval").is_dir() else []
        cells.append(Cell(point, own, (*rest, *options, f"--out={own}", *resume)))
    return cells, table


def _parse_swept(parser: Parser, sweeps: Sequence[str]) -> dict[str, list[str]]:
    """Map the names of swept options to their values, as on a command line."""
    known = {
        option.removeprefix("--"): action
        for action in parser._actions
        for option in action.option_strings
        if action.nargs != 0 and option.startswith("--")
    }
    swept: dict[str, list[str]] = {}
    for sweep in sweeps:
        written, equals, text = sweep.partition("=")
        name = written.strip().removeprefix("--").replace("_", "-")
        if name in NEVER:
            raise UsageError(
                f"--sweep {name}: this option applies to the whole sweep, which creates a folder for each value."
            )
        if name not in known:
            raise UsageError(
                f"--sweep {written} is not an option of {parser.prog} with a value.{suggest_nearest(name, known)}"
            )
        items = split_items(text)
        values = [raw.text if raw.items is None else ",".join(item.text for item in raw.items) for raw in items]
        if not equals or not values or not all(values):
            raise UsageError(f"--sweep {sweep} lacks values: write --sweep {name}=VALUE,VALUE.")
        if name in swept:
            raise UsageError(f"--sweep names {name} twice; give all of its values in one.")
        swept[name] = list(dict.fromkeys(values))
    return swept


def _write_option(key: str, value: str) -> list[str]:
    """Return a swept value as options; a temperature of 0 becomes greedy decoding with one answer."""
    try:
        greedy = key == "temperature" and float(value) == 0
    except ValueError:
        greedy = False
    return ["--greedy", "--samples=1"] if greedy else [f"--{key}={value}"]


def _drop_options(arguments: Sequence[str], parser: Parser, names: set[str]) -> list[str]:
    """Return a command line without these options and their values."""
    switches = {option for action in parser._actions if action.nargs == 0 for option in action.option_strings}
    kept, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.partition("=")
        if name not in names:
            kept.append(argument)
        elif not equals and name not in switches and rest:
            rest.pop(0)
    return kept
