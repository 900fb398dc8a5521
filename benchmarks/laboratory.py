"""Guidance and distillation in one training loop at equal compute: all methods on three tasks, over seeds.

    python benchmarks/laboratory.py [--jobs 4]    # the whole study: about an hour on 4 cores
    python benchmarks/laboratory.py --quick       # three seeds, one task
    python benchmarks/laboratory.py --page        # writes docs/laboratory.md from the committed summaries

Each run has the same budget of multiply-adds and one thread. A method's learning rate, one of the same four, is chosen
on validation problems with a seed that no final run uses. An interrupted study continues where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from laboratory_parts.methods import METHODS
from laboratory_parts.tasks import TASKS

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = tuple(method.name for method in METHODS)


def main() -> None:
    """Run the requested part of the study, or write its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--page", action="store_true", help="only write docs/laboratory.md and its figure, without runs"
    )
    parser.add_argument("--quick", action="store_true", help="three seeds, one task; its summaries stay in --out")
    parser.add_argument("--tasks", type=partial(split_names, TASKS), default=list(TASKS), help=", ".join(TASKS))
    parser.add_argument("--methods", type=partial(split_names, NAMES), default=list(NAMES), help=", ".join(NAMES))
    parser.add_argument("--seeds", type=int, default=5, help="final runs per method and task")
    parser.add_argument("--jobs", type=int, default=4, help="concurrent runs, one thread each")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/laboratory"),
        help="folder of the study, where an interrupted one continues",
    )
    parser.add_argument("--summaries", type=Path, default=DOCS / "laboratory")
    asked = parser.parse_args()
    if asked.page:
        from laboratory_parts.page import write_page  # noqa: PLC0415

        write_page(asked.summaries, asked.summaries.with_suffix(".md"))
        return
    from laboratory_parts.planning import run_study  # noqa: PLC0415

    methods = [method for method in METHODS if method.name in asked.methods]
    tasks, seeds, summaries = asked.tasks, asked.seeds, asked.summaries
    if asked.quick:
        tasks, seeds, summaries = tasks[:1], min(seeds, 3), asked.out / "quick"
    try:
        run_study(asked.out.resolve(), summaries, tasks, methods, seeds, asked.jobs)
    except KeyboardInterrupt:
        raise SystemExit("Stopped. The same command continues with the unfinished runs.") from None


def split_names(known: Sequence[str], text: str) -> list[str]:
    """Split a comma-separated list; every name must be known."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
