"""Does a curriculum learn more from the same number of answers? GRPO and DAPO with each curriculum, over seeds.

    python benchmarks/curricula.py --seeds 0,1,2 --out runs/curricula

All arms have the same start (SFT on `arithmetic`), problems (from all three of its levels, many of them too hard or too
easy, and few enough to be repeated several times) and answers per step; DAPO samples more if groups have no signal, and
the table shows how much. Prints a table, then one line of JSON. Existing runs are reused.
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

LEVELS = ("", "-level2", "-level3")
POOL = 300  # problems
ARMS = {
    f"{algorithm}, {curriculum}": (algorithm, curriculum)
    for algorithm in ("grpo", "dapo")
    for curriculum in ("uniform", "difficulty", "thompson", "learnability")
}


def command(arm: str, seed: int, steps: int) -> list[str]:
    """Return the command of one arm with one seed."""
    algorithm, curriculum = ARMS[arm]
    data = ["--data.unique_examples", str(POOL)]
    learning = ["--steps", str(steps), "--seed", str(seed), "--run.save_rollouts", "false"]
    data += ["--tasks", ",".join(f"arithmetic:train{level}" for level in LEVELS), "--sampling.curriculum", curriculum]
    measuring = ["--evaluation.tasks", ",".join(f"arithmetic:test{level}" for level in LEVELS)]
    measuring += ["--evaluation.problems", "300"]
    return [algorithm, "arithmetic-rl", "--model", "sft:arithmetic-sft", *learning, *data, *measuring]


def made(arm: str, seed: int, steps: int, out: Path) -> dict[str, Any]:
    """Return one run's sampled accuracy before and after, over all levels, after making the run if it is missing."""
    folder, row = out / f"{arm.replace(', ', '-')}-{steps}-{seed}", {"arm": arm, "seed": seed}
    if not (folder / "report.html").is_file() and (error := make_run(command(arm, seed, steps), folder)):
        return {**row, "error": error}
    first, *_, last = [tasks for _, tasks in read_evaluations(folder)]
    metrics = [line for line in read_lines(folder / "metrics.jsonl") if "groups/zero_std" in line]
    return {
        **row,
        "before": count(first),
        "after": count(last),
        "zero_std": fmean(line["groups/zero_std"] for line in metrics),
        "rounds": fmean(line["groups/rounds"] for line in metrics),
    }


def count(tasks: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of right sampled answers and of all sampled answers to all tasks."""
    figures = [task["sampled"] for task in tasks.values()]
    return sum(round(each["accuracy"] * each["n"]) for each in figures), sum(each["n"] for each in figures)


def card(rows: Sequence[dict[str, Any]], steps: int) -> list[str]:
    """Format a Markdown table: means over seeds, with the 95 % confidence interval over all answers of all seeds."""
    lines = [
        f"{steps} steps of 16 of {POOL} problems x 8 answers; sampled answers to 900 held-out problems, right.",
        "",
        "| arm | seeds | start | after [95 %] | each seed | groups without signal | rounds a step |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        if not own or any("error" in row for row in own):
            lines.append(
                f"| {arm} | {len(own)} | – | {next((row['error'] for row in own if 'error' in row), '')} | | | |"
            )
            continue
        before, after = ([row[when] for row in own] for when in ("before", "after"))
        right, asked = sum(each[0] for each in after), sum(each[1] for each in after)
        low, high = compute_wilson_interval(right, asked)
        lines.append(
            f"| {arm} | {len(own)} | {100 * fmean(r / n for r, n in before):.1f} % | {100 * right / asked:.1f} % "
            f"[{100 * low:.1f}, {100 * high:.1f}] | {', '.join(format(100 * r / n, '.0f') for r, n in after)} | "
            f"{100 * fmean(row['zero_std'] for row in own):.0f} % | {fmean(row['rounds'] for row in own):.1f} |"
        )
    return lines


def main() -> None:
    """Make the requested runs and print the table."""
    parser = build_parser(__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2, help="concurrent runs, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/curricula"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    first, *others = ARMS
    with ThreadPoolExecutor(asked.jobs) as pool:
        # One run of every seed comes first, to make its SFT start.
        rows = list(pool.map(lambda seed: made(first, seed, asked.steps, asked.out), seeds))
        jobs = [(arm, seed) for seed in seeds for arm in others]
        rows += pool.map(lambda job: made(*job, asked.steps, asked.out), jobs)
    print("\n".join(card(rows, asked.steps)))
    print_result({"steps": asked.steps, "runs": rows}, asked.json)


if __name__ == "__main__":
    main()
