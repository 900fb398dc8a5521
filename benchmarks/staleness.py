"""What sampling ahead costs in learning and saves in time: GRPO on the default task with rollout.max_staleness k.

    python benchmarks/staleness.py --staleness 0,1,2,4 --seeds 0,1,2 --out runs/staleness
    python benchmarks/staleness.py --staleness 4 --correction none

Each run begins from the same SFT start, in a separate process with one thread; the native server of k >= 1 is another
process with one thread. A step samples and trains in turn with k = 0, and concurrently otherwise, so
two cores must be free. Prints a table, then one line of JSON. Existing runs are reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from making_runs import build_parser, make_run
from results import print_result

from qed.evaluation.intervals import compute_wilson_interval
from qed.runs.run import read_evaluations, read_lines

CONFIG, START, TASK = "arithmetic-rl", "sft:arithmetic-sft", "arithmetic"
STAGES = ("step", "sample", "wait", "score", "update", "sync")


def command(staleness: int, seed: int, steps: int, sampler: str, correction: str) -> list[str]:
    """Return the command of one staleness with one seed."""
    learning = ["--steps", str(steps), "--seed", str(seed), "--run.save_rollouts", "false"]
    measuring = ["--evaluation.every", "0", "--evaluation.problems", "500"]
    ahead = ["--rollout.max_staleness", str(staleness), *(["--sampling.sampler", sampler] if staleness else [])]
    own = ["--algorithm.correction", correction] if correction and staleness else []
    return ["grpo", CONFIG, "--model", START, *learning, *measuring, *ahead, *own]


def measured(folder: Path) -> dict[str, Any] | None:
    """Return the first and the last evaluation of a finished run, and its median seconds by stage."""
    found = list(read_evaluations(folder))
    if not (folder / "report.html").is_file() or len(found) < 2:
        return None
    rows = [row for row in read_lines(folder / "metrics.jsonl") if "time/update" in row]
    seconds = {stage: median(row.get(f"time/{stage}", 0.0) for row in rows) for stage in STAGES}
    means = {name: fmean(row.get(name, 0.0) for row in rows) for name in ("mismatch/kl", "clip/high", "clip/low")}
    return {"before": found[0][1][TASK], "after": found[-1][1][TASK], "seconds": seconds, **means}


def made(row: dict[str, Any], steps: int, sampler: str, correction: str, out: Path) -> dict[str, Any]:
    """Return one run's figures, after making the run if it does not exist."""
    own = [sampler, *([correction] if correction else [])] if row["staleness"] else []
    folder = out / "-".join(map(str, (*row.values(), steps, *own)))
    if measured(folder) is None and (
        error := make_run(command(**row, steps=steps, sampler=sampler, correction=correction), folder)
    ):
        return {**row, "error": error}
    return {**row, **(measured(folder) or {"error": "no evaluation"})}


def card(rows: Sequence[dict[str, Any]], steps: int) -> list[str]:
    """Format a Markdown table: means over seeds, and the 95 % confidence interval over all answers of all seeds."""
    lines = [
        f"{steps} steps of 16 problems x 8 answers, 500 held-out problems a seed; medians of a step's seconds.",
        "",
        "| k | sampled answers, right, after [95 %] | each seed | greedy, after | step s | of it sampling or waiting |",
        "|--:|--:|---|--:|--:|--:|",
    ]
    for staleness in dict.fromkeys(row["staleness"] for row in rows):
        own = [row for row in rows if row["staleness"] == staleness]
        if broken := [row["error"] for row in own if "error" in row]:
            lines.append(f"| {staleness} | {broken[0]} | | | | |")
            continue
        after = [row["after"]["sampled"] for row in own]
        low, high = compute_wilson_interval(
            sum(round(each["accuracy"] * each["n"]) for each in after), sum(each["n"] for each in after)
        )
        seconds = {stage: fmean(row["seconds"][stage] for row in own) for stage in STAGES}
        shares = [100 * each["accuracy"] for each in after]
        lines.append(
            f"| {staleness} | {fmean(shares):.1f} % [{100 * low:.1f}, {100 * high:.1f}] | "
            f"{', '.join(format(share, '.0f') for share in shares)} | "
            f"{100 * fmean(row['after']['greedy']['accuracy'] for row in own):.1f} % | {seconds['step']:.3f} | "
            f"{seconds['sample'] + seconds['wait']:.3f} |"
        )
    return lines


def main() -> None:
    """Make the runs one after another, because their times are compared, and print the table."""
    parser = build_parser(__doc__)
    parser.add_argument("--staleness", default="0,1,2,4")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--sampler", default="native", help="sampler of the runs with k >= 1")
    parser.add_argument("--correction", default="", help="algorithm.correction of the runs with k >= 1")
    parser.add_argument("--out", type=Path, default=Path("runs/staleness"))
    chosen = parser.parse_args()
    pairs = [
        {"staleness": int(staleness), "seed": int(seed)}
        for seed in chosen.seeds.split(",")
        for staleness in chosen.staleness.split(",")
    ]
    rows = [made(pair, chosen.steps, chosen.sampler, chosen.correction, chosen.out) for pair in pairs]
    print("\n".join(card(rows, chosen.steps)))
    print_result({"steps": chosen.steps, "correction": chosen.correction, "runs": rows}, chosen.json)


if __name__ == "__main__":
    main()
