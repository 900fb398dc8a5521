"""Where on-policy learning cannot begin: LUFFY beside its control, imitation, and both losses together, over seeds.

    python benchmarks/guidance.py --seeds 0,1,2 --out runs/guidance

The start earns nothing (`withheld-base`). 64 of 512 problems have a written answer; every arm has the same problems.
A card for people, a report with the curves of the arms for each seed, one JSON line last. Runs that are there already
are read and not made again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from making_runs import build_parser, make_run

from qed.evaluation.intervals import compute_wilson_interval
from qed.report.write import write_report
from qed.runs.run import read_evaluations

CONFIG, TASK, EASY = "luffy-tiny", "withheld", "withheld-cued"
# Imitation has 64 answers to learn from: more steps only learn them by heart.
ARMS = {
    "on-policy": ["grpo", CONFIG, "--run.on_no_signal", "warn"],
    "luffy": ["luffy", CONFIG],
    "sft": ["sft", CONFIG, "--steps", "100", "--learner.batch_size", "32", "--evaluation.every", "20"],
    "rl-sft": ["rl-sft", CONFIG],
    "relift": ["relift", CONFIG],
    "sft-rl": ["pipeline", "luffy-tiny-sft-rl"],
}


def made(arm: str, seed: int, out: Path) -> dict[str, Any]:
    """One run's first and last evaluation, after making it where it is not there."""
    folder = out / f"{arm}-{seed}"
    if error := make_run([*ARMS[arm], "--seed", str(seed)], folder):
        raise SystemExit(f"{arm}, seed {seed}: {error}")
    found = list(read_evaluations(folder))
    return {"arm": arm, "seed": seed, "before": found[0][1], "after": found[-1][1]}


def card(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of Markdown: means over seeds, the 95 % interval of all answers, and what became of the easy task."""
    lines = [
        "| arm | seeds | greedy, right [95 %] | each seed | sampled, right | with the cue, greedy |",
        "|---|--:|--:|---|--:|--:|",
    ]
    first = [row for row in rows if row["arm"] == rows[0]["arm"]]
    arms = {"start": [row["before"] for row in first]}
    arms |= {arm: [row["after"] for row in rows if row["arm"] == arm] for arm in dict.fromkeys(r["arm"] for r in rows)}
    for arm, found in arms.items():
        greedy = [one[TASK]["greedy"] for one in found]
        low, high = compute_wilson_interval(
            round(sum(one["accuracy"] * one["n"] for one in greedy)), sum(one["n"] for one in greedy)
        )
        each = ", ".join(format(100 * one["accuracy"], ".0f") for one in greedy)
        sampled = fmean(one[TASK]["sampled"]["accuracy"] for one in found)
        easy = fmean(one[EASY]["greedy"]["accuracy"] for one in found)
        mean = fmean(one["accuracy"] for one in greedy)
        lines.append(
            f"| {arm} | {len(found)} | {100 * mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}] | {each} | "
            f"{100 * sampled:.1f} % | {100 * easy:.1f} % |"
        )
    return lines


def main() -> None:
    """Run the arms and print the card."""
    parser = build_parser(__doc__)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/guidance"))
    asked = parser.parse_args()
    arms, seeds = asked.arms.split(","), [int(seed) for seed in asked.seeds.split(",")]
    with ThreadPoolExecutor(asked.jobs) as pool:
        # One arm of every seed comes first, for its start.
        list(pool.map(lambda seed: made(arms[0], seed, asked.out), seeds))
        jobs = [(arm, seed) for arm in arms for seed in seeds]
        rows = list(pool.map(lambda job: made(*job, asked.out), jobs))
    for seed in seeds:
        shown = [asked.out / f"{arm}-{seed}" for arm in arms if arm != "sft-rl"]
        print(f"Curves of seed {seed}: {write_report(shown, asked.out / f'seed-{seed}.html')}")
    print("\n".join(card(rows)))
    print(json.dumps({"runs": rows}))


if __name__ == "__main__":
    main()
