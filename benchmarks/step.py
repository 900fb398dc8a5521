"""One GRPO step: sample, grade, advantages, update. qed alone, or against TRL's GRPOTrainer.

    python benchmarks/step.py --against trl --rounds 5
    python benchmarks/step.py --against trl --model new:small --group 8 --problems 8 --tokens 128 --lengths uneven
    python benchmarks/step.py --against trl --live-only --improved 60

Each side is a separate process; the sides take turns. They load the same folder, get the same prompts token by token,
and call the same reward; one update per batch, no KL, temperature 1. A little noise in the reward gives every row a
gradient, so that both train all rows; --live-only omits the noise, and then qed computes only the rows that have a
gradient, while TRL computes all. The last line is JSON.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from results import print_result
from speed_parts import figures, floor, options, places
from speed_parts.process import Figures, Worker, in_turns
from speed_parts.rewards import NOISE

from qed.rollout.stages import Stream

WARM_UP = 2


def main() -> None:
    """Measure, print the summary, then one line of JSON."""
    asked = _asked()
    with tempfile.TemporaryDirectory() as out:
        told = _told(asked, Path(out))
        with ExitStack() as stack:
            modules = {"qed": "step_ours", **({"trl": "step_trl"} if asked.against else {})}
            workers = {
                side: stack.enter_context(Worker(module, told, asked.threads)) for side, module in modules.items()
            }
            ceilings = workers["qed"].ready
            rounds = in_turns(workers, asked.rounds, WARM_UP)
    _check(rounds)
    sides = {side: figures.summary(own) for side, own in rounds.items()}
    ours, rival = sides["qed"], sides.get("trl")
    work = floor.Floor(Path(told["folder"]), ours["rows"], ours["tokens"], ours["prompt_tokens"])
    passes = 1 + (1 + floor.BACKWARD) * ours["live_rows"] / ours["rows"]
    flops = passes * work.forward(ours["prompt_tokens"] / asked.problems)
    share = floor.share(flops, ours, ceilings)
    result = figures.result(options.plain(asked), ours, rival, floor=share, signal_share=ours["signal_share"])
    _card(result, sides)
    print_result(result, asked.json)


def _asked() -> argparse.Namespace:
    parser = options.parser(__doc__)
    options.add_answers(parser, places.NATURAL)
    parser.add_argument("--live-only", action="store_true", help="omit the noise in the reward")
    return parser.parse_args()


def _told(asked: argparse.Namespace, out: Path) -> Figures:
    """Return the settings for both workers."""
    folder = options.folder_of(asked)
    # The problems in the order of qed's run.
    lines = (folder / places.DATA).read_text(encoding="utf-8").splitlines()
    (out / places.DATA).write_text("\n".join(Stream(lines, 0, "problems 0").take(len(lines))) + "\n", encoding="utf-8")
    return {
        **options.plain(asked),
        "folder": str(folder),
        "order": str(out / places.DATA),
        "out": str(out / "run"),
        "noise": 0.0 if asked.live_only else NOISE,
    }


def _check(rounds: dict[str, list[Figures]]) -> None:
    """Exit if the sides did not get the same prompts."""
    for number, steps in enumerate(zip(*rounds.values(), strict=True), 1):
        if len({step["prompts"] for step in steps}) > 1:
            raise SystemExit(f"In round {number} the sides read different prompts, so nothing can be compared.")


def _card(result: dict[str, Any], sides: dict[str, Figures]) -> None:
    figures.show(f"GRPO step, {figures.describe_answers(result['settings'])}", result, sides)
    for side, one in sides.items():
        print(
            f"{side}: {one['live_rows']:.0f} of {one['rows']:.0f} rows trained, sampling and grading "
            f"{one['cpu_sample']:.3f} CPU s of {one['cpu']:.3f}; {one['signal_share']:.0%} of groups with signal"
        )
    if result["rival"]:
        print(
            f"TRL needs {result['ratio']:.2f} times the CPU seconds ({result['ratio_per_token']:.2f} for each token), "
            f"{result['ratio_wall']:.2f} times the time, {result['ratio_rss']:.2f} times the memory"
        )
    figures.tell_tokens(result["ours"], result["rival"])


if __name__ == "__main__":
    main()
