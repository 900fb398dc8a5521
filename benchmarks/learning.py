"""Does every algorithm learn? Each runs from the same SFT start on the built-in task, over seeds.

    python benchmarks/learning.py --seeds 0,1,2 --out runs/learning
    python benchmarks/learning.py --algorithms grpo,dapo --steps 60

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

from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.evaluation.intervals import compute_wilson_interval
from qed.runs.run import read_evaluations

CONFIG, START, TASK = "arithmetic-rl", "sft:arithmetic-sft", "arithmetic"
# These run with three seeds, the other algorithms only with the first.
THREE = (
    *("expert_iteration", "reinforce", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "exgrpo", "online_dpo"),
    *("chord", "hpt", "prefix_rft", "relift", "srft", "uft"),
)
# Pass@k training learns from groups with a single best answer, which are rare among eight answers.
SETTINGS = {"grpo_passk": ("--sampling.group_size", "4", "--sampling.problems_per_step", "32")}


def command(algorithm: str, seed: int, steps: int) -> list[str]:
    """Return the command of one algorithm with one seed."""
    learning = ["--steps", str(steps), "--seed", str(seed), "--run.save_rollouts", "false"]
    measuring = ["--evaluation.every", "0", "--evaluation.problems", "500"]
    # The configuration's average would replace the algorithm's own.
    average = ["--algorithm.average", load_algorithm(algorithm)().average]
    own = [*average, *SETTINGS.get(algorithm, ())]
    return [algorithm, CONFIG, "--model", START, *learning, *measuring, *own]


def measured(folder: Path) -> dict[str, Any] | None:
    """Return the first and the last evaluation of a finished run."""
    found = list(read_evaluations(folder))
    if not (folder / "report.html").is_file() or len(found) < 2:
        return None
    return {"before": found[0][1][TASK], "after": found[-1][1][TASK]}


def made(algorithm: str, seed: int, steps: int, out: Path) -> dict[str, Any]:
    """Return one run's evaluations, after making the run if it does not exist."""
    folder, row = out / f"{algorithm}-{steps}-{seed}", {"algorithm": algorithm, "seed": seed}
    if measured(folder) is None and (error := make_run(command(algorithm, seed, steps), folder)):
        return {**row, "error": error}
    return {**row, **(measured(folder) or {"error": "no evaluation"})}


def card(rows: Sequence[dict[str, Any]], steps: int) -> list[str]:
    """Format a Markdown table: means over seeds, and the 95 % confidence interval over all answers of all seeds."""
    lines = [
        f"{steps} steps of 16 problems x 8 answers, 500 held-out problems a seed; sampled answers, right.",
        "",
        "| algorithm | seeds | start | after [95 %] | each seed | greedy, start | greedy, after |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        own = [row for row in rows if row["algorithm"] == algorithm]
        if broken := [row["error"] for row in own if "error" in row]:
            lines.append(f"| `{algorithm}` | {len(own)} | – | {broken[0]} | | | |")
            continue
        low, high = compute_wilson_interval(
            sum(round(row["after"]["sampled"]["accuracy"] * row["after"]["sampled"]["n"]) for row in own),
            sum(row["after"]["sampled"]["n"] for row in own),
        )
        lines.append(
            f"| `{algorithm}` | {len(own)} | {mean(own, 'before', 'sampled'):.1f} % | "
            f"{mean(own, 'after', 'sampled'):.1f} % [{100 * low:.1f}, {100 * high:.1f}] | "
            f"{', '.join(format(100 * row['after']['sampled']['accuracy'], '.0f') for row in own)} | "
            f"{mean(own, 'before', 'greedy'):.1f} % | {mean(own, 'after', 'greedy'):.1f} % |"
        )
    return lines


def mean(rows: Sequence[dict[str, Any]], when: str, decoding: str) -> float:
    """Return the mean accuracy over seeds in percent."""
    return 100 * fmean(row[when][decoding]["accuracy"] for row in rows)


def main() -> None:
    """Make the requested runs and print the table."""
    parser = build_parser(__doc__)
    online = [name for name in plugins.list_leaves("algorithms") if load_algorithm(name).online]
    # Algorithms that learn from another model are compared in the laboratory, which trains the teacher.
    shelf = [name for name in online if not load_algorithm(name)().teacher_setting]
    parser.add_argument("--algorithms", default=",".join(sorted(shelf, key=lambda name: (name not in THREE, name))))
    parser.add_argument(
        "--seeds", default="0,1,2", help="seeds of the algorithms that run with three; others use only the first"
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2, help="concurrent runs, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    made("grpo", seeds[0], asked.steps, asked.out)  # makes the SFT start, which the others then reuse
    jobs = [(name, seed) for name in asked.algorithms.split(",") for seed in (seeds if name in THREE else seeds[:1])]
    jobs.sort(key=lambda job: seeds.index(job[1]))
    with ThreadPoolExecutor(asked.jobs) as pool:
        # One run of every seed comes first, to make its SFT start.
        first = list(pool.map(lambda seed: made("grpo", seed, asked.steps, asked.out), seeds))
        rows = list(pool.map(lambda job: made(*job, asked.steps, asked.out), jobs))
    rows = [row for row in [*first, *rows] if row["algorithm"] in asked.algorithms.split(",")]
    unique = list({(row["algorithm"], row["seed"]): row for row in rows}.values())
    print("\n".join(card(unique, asked.steps)))
    print_result({"steps": asked.steps, "runs": unique}, asked.json)


if __name__ == "__main__":
    main()
