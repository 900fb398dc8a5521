"""Only the update, on the same rollouts: qed's learner against a plain loop and TRL's GRPOTrainer.

    python benchmarks/learner.py --against trl
    python benchmarks/learner.py --model new:small --problems 8 --tokens 128 --lengths uneven --precision bfloat16

qed's learner runs with its defaults, and once more for each setting that may make it faster; every row has a gradient.
Peak memory is measured in a separate process for each side; if not all fit, --sides selects some of them, --micro
splits the rivals' batch, and --apart starts a side anew for each round and ends it before the next. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from results import print_result
from speed_parts import figures, floor, options, places
from speed_parts.process import Apart, Side, Worker, in_turns
from speed_parts.rollouts import sample_rollouts

SIDES: dict[str, tuple[str, dict[str, str]]] = {
    "qed": ("learner_ours", {}),
    "packing off": ("learner_ours", {"learner.packing": "false"}),
    "plain": ("learner_plain", {}),
}


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _asked()
    with tempfile.TemporaryDirectory() as out, ExitStack() as stack:
        file = Path(out) / "rollouts.json"
        told = {**options.plain(asked), "folder": str(options.folder_of(asked)), "rollouts": str(file), "out": out}
        rollouts = sample_rollouts(told)
        file.write_text(json.dumps(rollouts, default=list), encoding="utf-8")  # columns of numbers
        workers: dict[str, Side] = {}
        for side, (module, extra) in _sides(asked).items():
            start = partial(Worker, module, {**told, "extra": {**told["extra"], **extra}}, asked.threads)
            workers[side] = Apart(start) if asked.apart else stack.enter_context(start())
        ceilings = workers["qed"].ready
        rounds = in_turns(workers, asked.rounds, 0 if asked.apart else 2)
        sides = {side: figures.summary(own) for side, own in rounds.items()}
    ours, rival = sides["qed"], sides.get("trl") or sides.get("plain")
    read = sum(len(row["prompt"]) for row in rollouts) / asked.group
    work = floor.Floor(Path(told["folder"]), len(rollouts), ours["tokens"], read)
    flops = (1 + floor.BACKWARD) * work.forward(read / asked.problems)
    compared = {side: {**one, "ratios": figures.ratios(one, rival)} for side, one in sides.items()}
    share = floor.share(flops, ours, ceilings)
    result = figures.result(options.plain(asked), ours, rival, floor=share, sides=compared)
    _card(result)
    print_result(result, asked.json)


def _asked() -> argparse.Namespace:
    parser = options.parser(__doc__)
    options.add_answers(parser, places.UNEVEN)
    parser.add_argument("--sides", default="qed,packing off,plain,trl", help="some of these; qed is always included")
    parser.add_argument("--apart", action="store_true", help="keep only one side in memory at a time")
    parser.add_argument("--micro", type=int, default=0, help="rows per micro-batch of a rival; 0: all")
    asked = parser.parse_args()
    asked.sides = asked.sides.split(",")
    if unknown := set(asked.sides) - {*SIDES, "trl"}:
        parser.error(f"unknown sides: {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}, trl")
    if asked.micro and asked.problems * asked.group % asked.micro:
        parser.error("--micro must divide the rows of the update, or TRL skips some")
    return asked


def _sides(asked: argparse.Namespace) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the module of every side, and the settings that distinguish it."""
    sides = {**SIDES, **({"trl": ("learner_trl", {})} if asked.against else {})}
    return {side: how for side, how in sides.items() if side in {"qed", *asked.sides}}


def _card(result: dict[str, Any]) -> None:
    figures.show(f"Update, {figures.describe_answers(result['settings'])}", result, result["sides"])
    for side, one in result["sides"].items():
        ratios, beside = one["ratios"], ""
        if result["rival"]:
            beside = (
                f"; the rival needs {ratios['ratio']:.2f} times its CPU seconds, {ratios['ratio_wall']:.2f} times its "
                f"time, {ratios['ratio_rss']:.2f} times its memory"
            )
        print(f"{side:<20} gradient {one['norm']:.4f}{beside}")


if __name__ == "__main__":
    main()
