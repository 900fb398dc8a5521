"""How the CPU time of sampling and of the update grows with the batch, the length, the model and the vocabulary.

    python benchmarks/growth.py                       # about half an hour
    python benchmarks/growth.py --quick               # two or three small sizes on each axis
    python benchmarks/growth.py --page                # redraws the figure from the committed numbers

One quantity grows at a time, while the others stay fixed: new:small, 32 answers (8 per prompt) of 64 tokens, vocabulary
2,048. No answer ends early, and every row of the update has a gradient. The figure has logarithmic scales; a slope of 1
means that the time grows in proportion to the work, and less means that a fixed cost takes a part of it. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from making_runs import build_parser
from results import print_result
from sampler import read_prompts
from speed_parts import load, places
from speed_parts.floor import Floor
from speed_parts.growth_figure import Panel, draw_growth, fit_slope
from speed_parts.machine import describe_machine
from speed_parts.process import Worker, in_turns
from speed_parts.rollouts import sample_rollouts

DOCS = Path(__file__).resolve().parents[1] / "docs" / "performance"
GROUP = 8
LINES = {"sampling": "sampler_ours", "update": "learner_ours"}
PARAMETERS = "parameters"


@dataclass(frozen=True)
class Work:
    """The work to measure: the model's name, its vocabulary, the number of prompts, and the tokens per answer."""

    size: str = "small"
    vocabulary: int = 2048
    problems: int = 4
    tokens: int = 64


@dataclass(frozen=True)
class Axis:
    """A quantity that grows: title, unit, field of `Work`, its values, and the amount that one of them counts."""

    title: str
    unit: str
    field: str
    values: tuple[Any, ...]
    each: int = 1


AXES = {
    "batch": Axis("Batch", "answers", "problems", (1, 2, 4, 8, 16, 32), GROUP),
    "length": Axis("Length", "tokens of an answer", "tokens", (16, 32, 64, 128, 256, 512)),
    "model": Axis("Model", PARAMETERS, "size", ("tiny", "small", "medium", "large")),
    "vocabulary": Axis("Vocabulary", "tokens of the vocabulary", "vocabulary", (512, 2048, 8192, 32_768, 131_072)),
}
QUICK = {"batch": (1, 4), "length": (16, 64), "model": ("tiny", "small"), "vocabulary": (512, 2048)}


def main() -> None:
    """Measure, draw the figure, print the slopes, then one line of JSON."""
    asked = _parse()
    numbers = asked.out / "growth.json"
    if asked.page:
        result = json.loads(numbers.read_text(encoding="utf-8"))
    else:
        result = _measure_all(asked)
        asked.out.mkdir(parents=True, exist_ok=True)
        numbers.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (asked.out / "growth.svg").write_text(draw_growth(read_panels(result)), encoding="utf-8")
    print(
        f"{result['date']}, {result['machine']}, {result['settings']['precision']}, "
        f"{result['settings']['threads']} threads; {result['versions']}\n"
    )
    for name, slopes in result["slopes"].items():
        print(f"{name:<12}" + ", ".join(f"{line} grows with slope {slope:.2f}" for line, slope in slopes.items()))
    if note := load.describe_load(result["load"]):
        print(note)
    print_result(result, asked.json)


def _parse() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--axes", default=",".join(AXES), help="some of these, comma-separated")
    parser.add_argument("--quick", action="store_true", help="only a few small values of each axis")
    parser.add_argument("--page", action="store_true", help="only redraw the figure, without measuring")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per size, after a warm-up")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--place", type=Path, default=Path("runs/speed"), help="where model folders are kept")
    parser.add_argument("--out", type=Path, default=DOCS, help="where growth.json and growth.svg are written")
    return parser.parse_args()


def _measure_all(asked: argparse.Namespace) -> dict[str, Any]:
    """Measure the points of all axes; return them with their slopes and the machine."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    laps: list[dict[str, Any]] = []
    known: dict[Work, dict[str, Any]] = {}  # the axes share their middle point
    for name in asked.axes.split(","):
        axis = AXES[name]
        found[name] = {line: [] for line in LINES}
        for value in QUICK[name] if asked.quick else axis.values:
            work = replace(Work(), **{axis.field: value})
            print(f"{name} {value}", file=sys.stderr, flush=True)
            point = known[work] = known.get(work) or measure(work, asked)
            laps += point["laps"]
            across = point[PARAMETERS] if axis.unit == PARAMETERS else value * axis.each
            for line in LINES:
                found[name][line].append((across, point[line]))
    slopes = {
        name: {line: round(fit_slope(points)[0], 3) for line, points in lines.items()} for name, lines in found.items()
    }
    settings = {"precision": asked.precision, "threads": asked.threads, "rounds": asked.rounds, "quick": asked.quick}
    told = {"points": found, "slopes": slopes, "settings": settings, "date": date.today().isoformat()}
    return {**told, **describe_machine(), "load": load.sum_up(laps)}


def measure(work: Work, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the median CPU seconds of sampling and of an update, and the number of parameters of the model."""
    model = f"new:{work.size}@{work.vocabulary}"
    folder = places.prepared(asked.place, places.Kind(model, places.EVEN)).resolve()
    with tempfile.TemporaryDirectory() as out, ExitStack() as stack:
        prompts, rollouts = Path(out) / "prompts.json", Path(out) / "rollouts.json"
        told = {"folder": str(folder), "problems": work.problems, "group": GROUP, "tokens": work.tokens, "lr": 1e-6}
        told |= {"precision": asked.precision, "threads": asked.threads, "extra": {}, "out": f"{out}/run"}
        told |= {"prompts": str(prompts), "rollouts": str(rollouts)}
        prompts.write_text(json.dumps(read_prompts(folder, work.problems)), encoding="utf-8")
        rollouts.write_text(json.dumps(sample_rollouts(told), default=list), encoding="utf-8")
        workers = {line: stack.enter_context(Worker(each, told, asked.threads)) for line, each in LINES.items()}
        rounds = in_turns(workers, asked.rounds, warm_up=1)
    size = Floor(folder, 1, 1, 1)
    seconds = {line: statistics.median(one["cpu"] for one in own) for line, own in rounds.items()}
    return {**seconds, PARAMETERS: size.blocks + size.head, "laps": [one["machine"] for one in rounds["sampling"]]}


def read_panels(result: dict[str, Any]) -> list[Panel]:
    """Return the panels of the figure from the numbers."""
    return [
        Panel(AXES[name].title, AXES[name].unit, {line: [(x, y) for x, y in points] for line, points in lines.items()})
        for name, lines in result["points"].items()
    ]


if __name__ == "__main__":
    main()
