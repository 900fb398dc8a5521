"""Does GRPO learn to call a tool? Sums of several numbers with and without a calculator, from SFT, over seeds.

    python benchmarks/tools.py --seeds 0,1,2 --out runs/tools

Both arms have the same questions and steps. With the tool, half of the demonstrations call it; without it, none does.
Prints a table, then one line of JSON. Existing runs are reused.
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

TASK, PROBLEMS = "long_sums", 500
# Only the demonstrations explain the tool, because a tiny model cannot read an instruction.
TOOL = ["--environment", "calculator", "--data.environment_options", "calculator.instruction="]
ARMS = {
    "with the calculator": ["--tasks", TASK, *TOOL],
    "without": ["--tasks", f"{TASK}:train-plain"],
}


def command(arm: str, seed: int, steps: Sequence[int]) -> list[str]:
    """Return the command of one arm with one seed: SFT, then GRPO with a reward only for the right answer."""
    learning = ["--sft.learner.steps", str(steps[0]), "--rl.learner.steps", str(steps[1]), "--seed", str(seed)]
    rewarded = ["--rl.data.reward", "accuracy", "--sampling.max_tokens", "80"]
    measuring = ["--evaluation.tasks", f"{TASK}:test", "--evaluation.problems", str(PROBLEMS)]
    return ["pipeline", "--model", "new:tiny", *ARMS[arm], *learning, *rewarded, *measuring]


def made(arm: str, seed: int, steps: Sequence[int], out: Path) -> dict[str, Any]:
    """Return one run's accuracy and share of calls before and after GRPO, after making the run if it does not exist."""
    folder, row = out / f"{arm.replace(' ', '-')}-{'-'.join(map(str, steps))}-{seed}", {"arm": arm, "seed": seed}
    if not (folder / "report.html").is_file() and (error := make_run(command(arm, seed, steps), folder)):
        return {**row, "error": error}
    measured = {step: next(iter(tasks.values())) for step, tasks in read_evaluations(folder)}
    return {
        **row,
        "before": measured[steps[0]],
        "after": measured[sum(steps)],
        "calling": [share_calling(folder, steps[0]), share_calling(folder, sum(steps))],
    }


def share_calling(folder: Path, step: int) -> float:
    """Return the share of a step's sampled answers to held-out problems that got a reply from a tool."""
    rows = read_lines(folder / "eval" / f"step_{step:06d}" / f"{TASK}.jsonl")
    return fmean(bool(row.get("turns")) for row in rows if row["decoding"] == "sampled")


def card(rows: Sequence[dict[str, Any]], steps: Sequence[int]) -> list[str]:
    """Format a Markdown table: means over seeds, with the 95 % confidence interval over all answers of all seeds."""
    lines = [
        f"{steps[0]} steps of SFT, {steps[1]} of GRPO, {PROBLEMS} held-out problems a seed; sampled answers, right.",
        "",
        "| arm | seeds | SFT | then GRPO [95 %] | each seed | greedy, before, after | calling, before, after |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        if broken := [row["error"] for row in own if "error" in row]:
            lines.append(f"| {arm} | {len(own)} | – | {broken[0]} | | | |")
            continue
        before, after = ([row[when]["sampled"] for row in own] for when in ("before", "after"))
        right = sum(round(each["accuracy"] * each["n"]) for each in after)
        low, high = compute_wilson_interval(right, sum(each["n"] for each in after))
        greedy = [fmean(row[when]["greedy"]["accuracy"] for row in own) for when in ("before", "after")]
        first, last = (100 * fmean(row["calling"][when] for row in own) for when in (0, 1))
        lines.append(
            f"| {arm} | {len(own)} | {100 * fmean(each['accuracy'] for each in before):.1f} % | "
            f"{100 * fmean(each['accuracy'] for each in after):.1f} % [{100 * low:.1f}, {100 * high:.1f}] | "
            f"{', '.join(format(100 * each['accuracy'], '.0f') for each in after)} | "
            f"{100 * greedy[0]:.1f} %, {100 * greedy[1]:.1f} % | {first:.1f} %, {last:.1f} % |"
        )
    return lines


def main() -> None:
    """Make the requested runs and print the table."""
    parser = build_parser(__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", default="600,60", help="steps of SFT and of GRPO")
    parser.add_argument("--jobs", type=int, default=2, help="concurrent runs, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/tools"))
    asked = parser.parse_args()
    steps = [int(count) for count in asked.steps.split(",")]
    jobs = [(arm, int(seed)) for seed in asked.seeds.split(",") for arm in ARMS]
    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = list(pool.map(lambda job: made(*job, steps, asked.out), jobs))
    print("\n".join(card(rows, steps)))
    print_result({"steps": steps, "runs": rows}, asked.json)


if __name__ == "__main__":
    main()
