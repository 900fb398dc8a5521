"""How useful is a reward model? Trained on right and wrong answers to the built-in task, then used in GRPO, over seeds.

    python benchmarks/reward_models.py --seeds 0,1,2 --out runs/reward-models

For each seed: answers of the SFT start are sampled, a right and a wrong one of each problem make a pair, `qed
reward-model` learns from four fifths of the pairs, and GRPO is rewarded by the model while the grader only measures;
GRPO rewarded by the grader is shown for comparison. Prints tables, then one line of JSON. Existing runs are reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from making_runs import build_parser, make_run, write_rows
from results import print_result

from qed.data.splits import VALIDATION
from qed.evaluation.intervals import compute_wilson_interval
from qed.runs.run import read_evaluations, read_lines
from qed.training.best import PREFERRED

CONFIG, START, TASK, PROMPT = "arithmetic-rl", "sft:arithmetic-sft", "arithmetic", "think_answer"
ARMS: dict[str, tuple[str, ...]] = {
    "the model": (),
    "the model with a KL": ("--algorithm.kl", "0.3"),
    "the model and the grader": (),
    "the grader": (),
}
HACKED = "reward_hacking"  # alarm for a reward that rises while held-out accuracy does not
SAMPLING = ("--sampling.problems_per_step", "64", "--sampling.group_size", "8", "--steps", "12")


def make_pairs(seed: int, out: Path) -> Path:
    """Write a file with a pair of a right and a wrong answer of the SFT start for each problem that has both."""
    folder, file = out / f"answers-{seed}", out / f"pairs-{seed}.jsonl"
    frozen = ["--lr", "0", "--evaluation.every", "0", "--evaluation.at_start", "false", "--evaluation.problems", "2"]
    made = make_run(["grpo", CONFIG, "--model", START, "--seed", str(seed), *SAMPLING, *frozen], folder)
    if made and not list(folder.glob("rollouts/*.jsonl.zst")):
        raise SystemExit(made)
    pairs: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("rollouts/*.jsonl.zst")):
        for row in read_lines(path):
            pair = pairs.setdefault(row["question"], {"prompt": row["question"]})
            pair.setdefault("chosen" if row["correct"] else "rejected", row["text"])
    return write_rows(file, [pair for pair in pairs.values() if len(pair) == 3])


def measure(seed: int, out: Path) -> dict[str, Any]:
    """Return the figures of one seed."""
    pairs, model = make_pairs(seed, out), out / f"model-{seed}"
    common = ["--model", START, "--seed", str(seed), "--run.save_rollouts", "false"]
    training = ["--lr", "3e-4", "--steps", "0", "--learner.epochs", "6", "--learner.batch_size", "32"]
    held_out = ["--data.validation_split", "0.2", "--prompt", PROMPT, "--run.save_every", "10"]
    error = make_run(["reward-model", *common, "--tasks", str(pairs), *training, *held_out], model)
    row: dict[str, Any] = {"seed": seed, "pairs": len(read_lines(pairs))}
    if error:
        return row | {"error": error}
    ranked = [figures for figures in read_lines(model / "metrics.jsonl") if PREFERRED in figures]
    best = max(ranked, key=lambda figures: figures[PREFERRED])
    row |= {
        "ranked": best[PREFERRED],
        "held_out": round(0.2 * row["pairs"]),
        "margin": best[f"eval/{VALIDATION}/margin"],
    }
    folder = model / ("best" if (model / "best").exists() else "final") / "hf"
    for name, settings in ARMS.items():
        run = out / f"grpo-{name.replace(' ', '_')}-{seed}"
        reward = {"the grader": "auto", "the model and the grader": f"0.2*model:{folder},auto"}.get(
            name, f"model:{folder}"
        )
        arguments = [
            "grpo",
            CONFIG,
            *common,
            "--steps",
            "60",
            "--reward",
            reward,
            "--evaluation.every",
            "20",
            *settings,
        ]
        if error := make_run([*arguments, "--evaluation.problems", "500"], run):
            return row | {"error": error}
        first, *_, last = (scores[TASK] for _, scores in read_evaluations(run))
        rewards = [figures for figures in read_lines(run / "metrics.jsonl") if "reward/mean" in figures]
        row[name] = {
            "before": first["sampled"]["accuracy"],
            "after": last["sampled"]["accuracy"],
            "greedy": last["greedy"]["accuracy"],
            "reward": [fmean(figures["reward/mean"] for figures in part) for part in (rewards[:10], rewards[-10:])],
            "alarms": [row["name"] for row in read_lines(run / "events.jsonl") if row.get("event") == "alarm"],
            "accuracy": [fmean(figures["accuracy"] for figures in part) for part in (rewards[:10], rewards[-10:])],
        }
    return row


def card(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Format two Markdown tables: the reward models, and the results of GRPO with them."""
    lines = ["| seed | pairs | held out | ranked right [95 %] |", "|--:|--:|--:|--:|"]
    for row in rows:
        low, high = compute_wilson_interval(round(row["ranked"] * row["held_out"]), row["held_out"])
        interval = f"{100 * row['ranked']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        lines.append(f"| {row['seed']} | {row['pairs']} | {row['held_out']} | {interval} |")
    lines += ["", "| GRPO by | seed | mean reward | right in training | held-out, start | after | greedy | alarm |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|---|"]
    for name in ARMS:
        for row in rows:
            own = row[name]
            rose = " → ".join(f"{value:.2f}" for value in own["reward"])
            alarm = "yes" if HACKED in own["alarms"] else "no"
            right = " → ".join(f"{100 * value:.0f} %" for value in own["accuracy"])
            lines.append(
                f"| {name} | {row['seed']} | {rose} | {right} | {100 * own['before']:.1f} % | "
                f"{100 * own['after']:.1f} % | {100 * own['greedy']:.1f} % | {alarm} |"
            )
    return lines


def main() -> None:
    """Make the requested runs and print the tables."""
    parser = build_parser(__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("runs/reward-models"))
    asked = parser.parse_args()
    rows = [measure(int(seed), asked.out) for seed in asked.seeds.split(",")]
    for row in rows:
        if "error" in row:
            print(f"seed {row['seed']}: {row['error']}")
    print("\n".join(card([row for row in rows if "error" not in row])))
    print_result({"runs": rows}, asked.json)


if __name__ == "__main__":
    main()
