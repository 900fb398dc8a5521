"""Random algorithms with random settings, interrupted by random faults and resumed: do they end like undisturbed runs?

    python benchmarks/random_faults.py --runs 50
    python benchmarks/random_faults.py --runs 20 --seed 7

Each run of a few steps is first made undisturbed. Then it meets up to five faults, one after another, each a signal, a
kill or a full disk at the n-th time that the run passes a named point, and is restarted by the same command with
--requeue. It passes if every file of the last checkpoint, every number except times, and every answer equal those of
the undisturbed run. Answers are right by chance, so that an untrained model has something to learn. The last line is
JSON.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from kills import attempt, everything
from making_runs import build_parser, build_problems, run_here, write_rows
from results import print_result

from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.guards import faults
from qed.randomness import derive_seed
from qed.rollout import collector
from qed.types import Grade, Groups

STEPS, PROBLEMS, FAULTS = 4, 14, 5
PAIRED = ("dpo", "reward_model")  # algorithms that learn from pairs of replies
SHARED = ["--model", "new:tiny", "--steps", STEPS, "--lr", 1e-3, "--sampling.max_tokens", 6, "--evaluation.problems", 2]
SHARED += ["--run.threads", 1, "--run.on_no_signal", "warn", "--run.preflight", "false"]
POINTS = ("load", "step", "evaluate", "rollout", "update", "save", "grade")
KINDS = ("sigterm", "sigint", "sighup", "kill", "kill")
PASSINGS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 12)
# For each setting, how often it is drawn, and its values.
SETTINGS: dict[str, tuple[float, tuple[object, ...]]] = {
    "learner.batch_size": (0.5, (3, 6, 8)),
    "learner.tokens_per_microbatch": (0.3, (40, 64, 200)),
    "learner.schedule": (0.3, ("cosine", "linear")),
    "learner.optimizer": (0.2, ("adamw_offload",)),
    "learner.packing": (0.2, ("false",)),
    "learner.skip_norm": (0.2, (0.5,)),
    "model.lora_rank": (0.3, (2,)),
    "model.precision": (0.2, ("bfloat16",)),
    "model.gradient_checkpointing": (0.2, ("true",)),
    "evaluation.every": (0.4, (1, 2)),
    "data.validation_split": (0.3, (0.25,)),
    "run.save_every": (0.8, (1, 2, 3)),
    "run.keep_last": (0.4, (1,)),
}
ONLINE: dict[str, tuple[float, tuple[object, ...]]] = {
    "learner.passes": (0.3, (2, 3)),
    "sampling.sampler": (0.2, ("hf",)),
}
OF_KL: dict[str, tuple[float, tuple[object, ...]]] = {
    "algorithm.reference_every": (0.6, (1, 2)),
    "algorithm.reference_mix": (0.5, (0.3, 0.5)),
}


def main() -> None:
    """Draw runs, disturb them, print the table, then one line of JSON."""
    parser = build_parser(__doc__)
    parser.add_argument("--runs", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random choices")
    asked = parser.parse_args()
    collector.grade = by_chance  # also in the forked processes that make the runs
    with tempfile.TemporaryDirectory() as folder:
        # Modules imported by this run are then loaded in the forked runs.
        run_here(["grpo", "--tasks", data(Path(folder), False), *SHARED, "--steps", 1, "--out", Path(folder) / "warm"])
        source = random.Random(asked.seed)
        found = [disturbed(Path(folder), source, number) for number in range(asked.runs)]
    same = sum(one["same"] for one in found)
    met = sum(len(one["faults"]) for one in found)
    print("| runs | faults that ended an attempt | ended as undisturbed |\n|--:|--:|--:|")
    print(f"| {len(found)} | {met} | {same} |")
    print_result(
        {"runs": len(found), "faults": met, "same": same, "others": [x for x in found if not x["same"]]}, asked.json
    )
    sys.exit(0 if same == len(found) else 1)


def by_chance(groups: Groups, _: Any) -> None:
    """Replace grading: the answer's text decides, as good as by chance."""
    for rollout in (rollout for group in groups for rollout in group):
        right = derive_seed(*rollout.output) % 2 == 0
        rollout.grade = Grade(float(right), right, True, None)


def disturbed(folder: Path, source: random.Random, number: int) -> dict[str, Any]:
    """Draw and disturb a run; return it, its faults, and whether it ended like the undisturbed run."""
    command = drawn(folder, source)
    whole, run, log = folder / "whole", folder / "run", folder / "log"
    code = attempt([*command, "--out", whole], log, None)
    if code:
        raise SystemExit(f"{command} ended with {code}: {log.read_text(encoding='utf-8')[-2000:]}")
    met = []
    for _ in range(FAULTS):
        faults.ARMED = fault(source)
        code = attempt([*command, "--out", run, "--requeue"], log, None)
        if code == 0:
            break
        met.append(faults.ARMED)
    faults.ARMED = ""
    if code:
        code = attempt([*command, "--out", run, "--requeue"], log, None)
    same = code == 0 and everything(run, STEPS) == everything(whole, STEPS)
    print(f"{number}: {command[0]}, {', '.join(met) or 'no fault'}: {'the same' if same else log}", file=sys.stderr)
    for made in (whole, run):
        shutil.rmtree(made, ignore_errors=True)
    return {"command": [str(part) for part in command], "faults": met, "code": code, "same": same}


def fault(source: random.Random) -> str:
    """Draw a fault in the notation of QED_FAULT; a disk fills up only in a save."""
    point = source.choice(POINTS)
    kind = source.choice((*KINDS, "enospc") if point == "save" else KINDS)
    return f"{point}:{kind}:{source.choice(PASSINGS)}"


def drawn(folder: Path, source: random.Random) -> list[Any]:
    """Draw the command of a run, without its folder."""
    name = source.choice(list_drawn())
    algorithm = load_algorithm(name)
    settings = SETTINGS | (ONLINE if algorithm.online else {})
    command: list[Any] = [name, "--tasks", data(folder, name in PAIRED), *SHARED]
    command += ["--sampling.problems_per_step", 5, "--sampling.group_size", 4] if algorithm.online else []
    if hasattr(algorithm, "regularizer") and source.random() < 0.4:
        command += ["--algorithm.kl", 0.1]
        settings |= OF_KL
    for key, (share, values) in settings.items():
        if source.random() < share:
            command += [f"--{key}", source.choice(values)]
    return command


def list_drawn() -> list[str]:
    """List the algorithms to draw from: all except those that need a teacher."""
    return [name for name in plugins.list_leaves("algorithms") if not load_algorithm(name)().teacher_setting]


def data(folder: Path, pairs: bool) -> Path:
    """Write problems with worked solutions, or pairs of a better and a worse reply."""
    rows = build_problems(PROBLEMS)
    if pairs:
        worse = [f"I do not know {number}." for number in range(PROBLEMS)]
        rows = [
            {"prompt": row["question"], "chosen": row["solution"], "rejected": text}
            for row, text in zip(rows, worse, strict=True)
        ]
    return write_rows(folder / ("pairs.jsonl" if pairs else "problems.jsonl"), rows)


if __name__ == "__main__":
    main()
