"""Is a critic worth its cost? PPO against GRPO at equal steps and equal operations, from one SFT start, over seeds.

    python benchmarks/critics.py --seeds 0,1,2 --out runs/critics

Prints a table, then one line of JSON. Existing runs are reused. GRPO gets as many more
steps as PPO's critic costs operations (perf/flops in the metrics, including sampling).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from making_runs import build_parser, make_run
from results import print_result

from qed.evaluation.intervals import compute_wilson_interval
from qed.runs.run import read_evaluations, read_lines

CONFIG, START, TASK = "arithmetic-rl", "sft:arithmetic-sft", "arithmetic"
ARMS: dict[str, tuple[str, ...]] = {
    "ppo": ("ppo",),
    "ppo, warm-up of 10": ("ppo", "--algorithm.critic.warmup_steps", "10"),
    "ppo, lambda 1": ("ppo", "--algorithm.gae.policy_lambda", "1"),
    "ppo, groups of 1": ("ppo", "--sampling.problems_per_step", "128", "--sampling.group_size", "1"),
    "ppo, trunk": ("ppo", "--algorithm.critic.trunk", "policy"),
    "grpo": ("grpo",),
}


def make(arm: str, seed: int, steps: int, out: Path) -> dict[str, Any]:
    """Return one run's figures, after making the run if it does not exist."""
    folder = out / f"{arm.replace(', ', '-').replace(' ', '_')}-{steps}-{seed}"
    if not (folder / "report.html").is_file():
        method, *settings = ARMS[arm]
        arguments = [method, CONFIG, "--model", START, "--steps", str(steps), "--seed", str(seed), *settings]
        arguments += ["--run.save_rollouts", "false", "--evaluation.every", "0", "--evaluation.problems", "500"]
        if error := make_run([*arguments, "--algorithm.average", "token"], folder):
            return {"arm": arm, "seed": seed, "steps": steps, "error": error}
    first, *_, last = (scores[TASK] for _, scores in read_evaluations(folder))
    rows = [row for row in read_lines(folder / "metrics.jsonl") if "perf/flops" in row]
    explained = [row["critic/explained_variance"] for row in rows if "critic/explained_variance" in row]
    return {
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "before": first["sampled"]["accuracy"],
        "after": last["sampled"]["accuracy"],
        "greedy": last["greedy"]["accuracy"],
        "n": last["sampled"]["n"],
        "flops": sum(row["perf/flops"] for row in rows),
        "seconds": sum(row["time/step"] for row in rows),
        "explained": fmean(explained[-20:]) if explained else None,
    }


def card(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Format a Markdown table: means over seeds, and the 95 % confidence interval over all answers of all seeds."""
    lines = [
        "16 problems x 8 answers a step, or 128 x 1, 500 held-out problems a seed; sampled answers, right.",
        "",
        "| run | steps | 10^12 operations | seconds | start | after [95 %] | each seed | greedy | explained variance |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|",
    ]
    for arm, steps in dict.fromkeys((row["arm"], row["label"]) for row in rows):
        own = [row for row in rows if (row["arm"], row["label"]) == (arm, steps)]
        if broken := [row["error"] for row in own if "error" in row]:
            lines.append(f"| {arm} | {steps} | {broken[0]} | | | | | | |")
            continue
        right = sum(round(row["after"] * row["n"]) for row in own)
        low, high = compute_wilson_interval(right, sum(row["n"] for row in own))
        explained = [row["explained"] for row in own if row["explained"] is not None]
        operations = fmean(row["flops"] for row in own) / 1e12
        lines.append(
            f"| {arm} | {round(fmean(row['steps'] for row in own))} | {operations:.2f} | "
            f"{fmean(row['seconds'] for row in own):.0f} | {mean(own, 'before'):.1f} % | "
            f"{mean(own, 'after'):.1f} % [{100 * low:.1f}, {100 * high:.1f}] | "
            f"{', '.join(format(100 * row['after'], '.0f') for row in own)} | {mean(own, 'greedy'):.1f} % | "
            f"{format(fmean(explained), '.2f') if explained else ''} |"
        )
    return lines


def mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Return the mean of a share over seeds in percent."""
    return 100 * fmean(row[name] for row in rows)


def main() -> None:
    """Make the requested runs and print the table."""
    parser = build_parser(__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="concurrent runs, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/critics"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    with ThreadPoolExecutor(asked.jobs) as pool:
        # One run of every seed comes first, to make its SFT start.
        pilots = list(pool.map(lambda seed: make("grpo", seed, asked.steps, asked.out), seeds))
        jobs = [(arm, seed) for arm in ARMS if arm != "grpo" for seed in seeds]
        rows = list(pool.map(lambda job: make(*job, asked.steps, asked.out), jobs))
        rows = [{**row, "label": "equal steps"} for row in [*pilots, *rows]]
        needed = [row["flops"] for row in rows if row["arm"] == "ppo" and "flops" in row]
        known = [row["flops"] for row in pilots if "flops" in row]
        longer: list[dict[str, Any]] = []
        if needed and known:
            # Means, because some runs of either kind may have failed.
            steps = round(fmean(needed) / fmean(known) * asked.steps)
            longer = list(pool.map(lambda seed: make("grpo", seed, steps, asked.out), seeds))
    rows += [{**row, "label": "equal operations"} for row in longer]
    print("\n".join(card(rows)))
    print_result({"steps": asked.steps, "runs": rows}, asked.json)


if __name__ == "__main__":
    main()
