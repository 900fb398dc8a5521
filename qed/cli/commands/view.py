"""Look at runs in a browser: curves, answers token by token, problems through training, run against run."""
# ruff: noqa: PLC0415, T201 -- the server is imported after the options are parsed, and this prints its address

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qed import host
from qed.cli.commands.base import Parser
from qed.errors import UsageError
from qed.guards.redaction import strip_control
from qed.runs.choose import suggest_run

if TYPE_CHECKING:
    from qed.viewer.server import ViewerOptions

IN_EACH_RANK = True  # each machine may show its own folders
ABOUT = """Look at runs in a browser: curves, answers token by token, problems through training, run against run.

The server stays in the foreground and prints its address. It reads the given folders and changes nothing in them. It
answers only this machine unless --host and a token are given. Ctrl-C stops it."""
EPILOG = """examples:
  qed view runs/first
  qed view runs --open
  qed view runs/a runs/b --port 8000
  qed view runs --host 0.0.0.0 --token auto
  qed view runs/first --export first.html --steps 1,10-20"""
RUNS = "runs"  # the default folder
AUTO = "auto"
TOKEN = "QED_VIEW_TOKEN"  # environment variable
MOST_STEPS = 10_000  # the most steps that --steps may name


def run(arguments: Sequence[str]) -> int:
    """Serve runs until a signal comes, or write a static copy."""
    args = _build_parser().parse(arguments)
    if args.steps is not None and args.export is None:
        raise UsageError("qed view: --steps is for --export. Add --export PATH, or leave --steps out.")
    from qed.runs.folder import drop_tables

    args.places = list(map(str, drop_tables([Path(name) for name in args.places])))
    places = [Path(name) for name in args.places] or [Path(RUNS if Path(RUNS).is_dir() else ".")]
    from qed.viewer.library import Library, has_runs

    for place in places:
        _require_runs(place, has_runs, given=bool(args.places))
    library = Library(places, host.find_cache() / "view")
    if args.export is not None:
        from qed.viewer.export import export_site

        export_site(library, Path(args.export), None if args.steps is None else parse_steps(args.steps), _say)
        return 0
    from qed.viewer.server import run_viewer

    options = _read_options(args)
    return run_viewer(library, options, lambda url: _report(args, options, url))


def _build_parser() -> Parser:
    parser = Parser("view", ABOUT, EPILOG)
    add = parser.add_argument
    add("places", nargs="*", metavar="RUN|FOLDER", help="runs, and folders of runs (default: runs/, or this folder)")
    add("--port", type=int, metavar="N", help="the port (default: 7860, or the next free one); 0 takes any free one")
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: 127.0.0.1); others need a token",
    )
    add("--open", action="store_true", help="open the browser")
    add("--token", metavar=f"TEXT|{AUTO}", help=f"token a browser must send; {AUTO} creates one; {TOKEN} does the same")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME[:PORT]",
        help="an additional host name for opening the viewer, such as localhost for a tunnel to another port",
    )
    add("--export", metavar="PATH", help="write a static copy instead: one file PATH.html, or a folder")
    add("--steps", metavar="LIST", help="the steps of the copy, such as 1,10-20 (default: a few of each run)")
    add("--json", action="store_true", help="print one line of JSON with url and pid once the server answers")
    return parser


def _require_runs(place: Path, has_runs: Callable[[Path], bool], given: bool) -> None:
    """Require that a place has runs.

    Raises:
        UsageError: it does not exist, is not a folder, or contains no run.
    """
    if "\0" in str(place) or not place.is_dir():
        what = "It is not a folder." if "\0" not in str(place) and place.exists() else "There is no such folder."
        shown = str(place)[:200].replace("\0", "\\0")
        raise UsageError(f"qed view cannot show '{shown}'. {what}{_suggest(place)}")
    if has_runs(place):
        return
    if not given:
        raise UsageError("qed view found no run here, and no folder runs/. Name a run, or a folder of runs.")
    raise UsageError(
        f"qed view found no run in '{place}': a run has settings.yaml, metrics.jsonl or eval/.{_suggest(place)}"
    )


def _suggest(place: Path) -> str:
    try:
        return suggest_run(place)
    except (OSError, ValueError):
        return ""  # such as a name that is too long


def _read_options(args: argparse.Namespace) -> ViewerOptions:
    """Return where to listen and who may connect; the token is removed from the environment of child processes."""
    from qed.viewer.guard import create_token
    from qed.viewer.server import ViewerOptions

    token = args.token or os.environ.pop(TOKEN, "")
    args.shows_token = token == AUTO
    if any(not name or "/" in name or not name.isascii() for name in args.allow_host):
        raise UsageError("qed view: --allow-host is a name or an address, with a port or without: NAME[:PORT].")
    return ViewerOptions(args.host, args.port, create_token() if token == AUTO else token, tuple(args.allow_host))


def _report(args: argparse.Namespace, options: ViewerOptions, url: str) -> None:
    """Print the address of the server, and open it; a token is shown only if the user does not know it."""
    from qed.viewer.server import PORT

    with_token = f"{url}/?token={options.token}" if options.token else url
    if args.json:
        print(json.dumps({"url": with_token if args.shows_token else url, "pid": os.getpid()}), flush=True)
    else:
        shown = with_token if args.shows_token or not options.token else f"{url}/?token=${TOKEN}"
        moved = args.port is None and not url.endswith(f":{PORT}")
        note = f"; port {PORT} is in use" if moved else ""
        print(f"Viewing {_describe(args.places)} at {shown} (Ctrl-C ends the viewer{note})", flush=True)
    if args.open:
        # In a thread, because with some browsers the call blocks until they exit.
        threading.Thread(target=webbrowser.open, args=(with_token,), daemon=True).start()


def _describe(places: Sequence[str]) -> str:
    return strip_control(", ".join(places[:3]) + (" …" if len(places) > 3 else "")) or "runs"


def _say(text: str) -> None:
    print(strip_control(text), file=sys.stderr, flush=True)


def parse_steps(text: str) -> list[int]:
    """Return the steps that a list names, such as `1,10-20`, in order.

    Raises:
        UsageError: it is not a list of steps.
    """
    steps: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(one.isascii() and one.isdecimal() and len(one) <= 9 for one in ends):
            raise UsageError(f"qed view: --steps is a list such as 1,10-20, not '{text[:80]}'.")
        low, high = map(int, ends)
        if low > high or high - low >= MOST_STEPS:
            raise UsageError(f"qed view: --steps {part.strip()} goes backwards, or names over {MOST_STEPS} steps.")
        steps.update(range(low, high + 1))
    return sorted(steps)
