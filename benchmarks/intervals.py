"""Coverage, false alarms, power and width of the intervals and tests of an evaluation, in simulated evaluations.

    python benchmarks/intervals.py [--simulations 2000] [--quick]

Each simulation draws problems (equally difficult, or with difficulties from a beta distribution) and answers to them;
the truth is the distribution's. Widths and power are compared with those of an oracle that knows the variance. It uses
one core. The last line is JSON.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from functools import partial

from intervals_parts import card, differences, means
from intervals_parts.draws import Design
from results import add_json, print_result

GRID = tuple(Design(*each) for each in ((30, 32), (40, 32), (100, 8), (500, 1), (1319, 1), (5, 8)))
STRATA = tuple(
    Design(*each) for each in ((2, 8), (3, 8), (4, 8), (8, 8), (10, 8), (2, 1), (4, 1), (10, 1), (30, 1), (100, 1))
)


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json(parser)
    parser.add_argument("--simulations", type=int, default=2_000, help="simulations per cell of the grid")
    parser.add_argument("--quick", action="store_true", help="500 simulations per cell")
    asked = parser.parse_args()
    simulations = 500 if asked.quick else asked.simulations
    say = partial(print, file=sys.stderr, flush=True)
    start, cells = time.perf_counter(), []
    for label, part in (
        ("means", means.measure_designs(GRID + STRATA, simulations)),
        ("means of tasks", means.measure_tasks(min(simulations, 2_000))),
        ("differences", differences.measure_designs(GRID + STRATA, simulations)),
        ("arms of several seeds", differences.measure_arms(simulations)),
    ):
        say(label)
        cells += part
    figures = card.summarize(cells)
    card.show(figures)
    setting = {"simulations": simulations, "python": platform.python_version()}
    print_result({**setting, "seconds": round(time.perf_counter() - start), "figures": figures}, asked.json)


if __name__ == "__main__":
    main()
