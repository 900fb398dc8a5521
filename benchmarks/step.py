"""One GRPO step: sample, grade, advantages, update. qed alone, or beside TRL's GRPOTrainer.

    python benchmarks/step.py --against trl --rounds 5
    python benchmarks/step.py --against trl --model new:small --group 8 --problems 8 --tokens 128 --lengths uneven
    python benchmarks/step.py --against trl --live-only --improved 60

Each side is a process of its own; the sides take turns. They load the same folder, are asked the same prompts token by
token, and call the same reward; one update for each batch, no KL, temperature 1. A little noise in the reward gives
every row a gradient, so that both train all rows; --live-only leaves it out, and then qed computes only the rows that
have one, while TRL computes all. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from speed_parts import figures, places
from speed_parts.process import Figures, Worker, in_turns
from speed_parts.rewards import NOISE

from qed.rollouts import Stream

WARM_UP = 2


def main() -> None:
    """Measure, print the card, then one line of JSON."""
    asked = _parser().parse_args()
    with tempfile.TemporaryDirectory() as out:
        told = _told(asked, Path(out))
        with ExitStack() as stack:
            modules = {"qed": "step_ours", **({"trl": "step_trl"} if asked.against else {})}
            workers = {
                side: stack.enter_context(Worker(module, told, asked.threads)) for side, module in modules.items()
            }
            rounds = in_turns(workers, asked.rounds, WARM_UP)
    _check(rounds)
    sides = {side: figures.summary(own) for side, own in rounds.items()}
    ours, rival = sides["qed"], sides.get("trl")
    result = {
        **figures.ratios(ours, rival),
        "ours": ours,
        "rival": rival,
        "signal_share": ours["signal_share"],
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in vars(asked).items()},
        **figures.setting(),
    }
    _card(result, sides)
    print(json.dumps(result))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", choices=("trl",), help="the rival; it must be installed (qed[bench])")
    parser.add_argument("--rounds", type=int, default=5, help="of each side, in turns, after the warm-up")
    parser.add_argument("--model", default="new:tiny", help="new:tiny, new:small, new:medium or new:large")
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--group", type=int, default=8, help="answers to each problem")
    parser.add_argument("--tokens", type=int, default=48, help="an answer's longest length")
    parser.add_argument("--lengths", choices=places.LENGTHS, default=places.NATURAL, help="how answers end")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--live-only", action="store_true", help="leave the noise out of the reward")
    parser.add_argument("--taught", type=int, default=500, help="steps of SFT before, for natural lengths")
    parser.add_argument("--improved", type=int, default=0, help="steps of GRPO behind them, for one in mid-training")
    parser.add_argument("--place", type=Path, default=Path("runs/speed"), help="where model folders are kept")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of qed's run")
    return parser


def _told(asked: argparse.Namespace, out: Path) -> Figures:
    """What both workers are told."""
    kind = places.Kind(asked.model, asked.lengths, asked.tokens, asked.taught, asked.improved)
    folder = places.prepared(asked.place, kind)
    # The problems in the order in which qed's run takes them.
    lines = (folder / places.DATA).read_text(encoding="utf-8").splitlines()
    taken = Stream(lines, 0, "problems 0").take(len(lines))
    (out / "order.jsonl").write_text("\n".join(taken) + "\n", encoding="utf-8")
    return {
        "folder": str(folder.resolve()),
        "order": str(out / "order.jsonl"),
        "out": str(out / "run"),
        "problems": asked.problems,
        "group": asked.group,
        "tokens": asked.tokens,
        "precision": asked.precision,
        "lr": asked.lr,
        "noise": 0.0 if asked.live_only else NOISE,
        "extra": dict(entry.split("=", 1) for entry in asked.set),
    }


def _check(rounds: dict[str, list[Figures]]) -> None:
    """End where the sides were not asked the same."""
    for number, steps in enumerate(zip(*rounds.values(), strict=True), 1):
        if len({step["prompts"] for step in steps}) > 1:
            raise SystemExit(f"In round {number} the sides read different prompts, so nothing can be compared.")


def _card(result: dict[str, Any], sides: dict[str, Figures]) -> None:
    told = result["settings"]
    print(
        f"\nGRPO step, {told['model']}, {told['problems']} x {told['group']} answers of at most {told['tokens']} "
        f"tokens ({told['lengths']} lengths), {told['precision']}, {told['threads']} threads, "
        f"{told['rounds']} rounds\n{result['machine']}, {result['versions']}"
    )
    figures.table(sides)
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
