"""The quickstart: train a small new model with SFT and GRPO, compare with more SFT at equal compute, write a report.

Works with the settings of any pipeline, not only with those of the default task.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from qed.config.phases import PipelineSettings
from qed.errors import RewardFailed, UsageError
from qed.loops.setup import Setup, open_run
from qed.loops.train import collect_figures, run_phases
from qed.report.write import write_report
from qed.runs.run import Launch, Row, read_evaluations, read_lines
from qed.training.checkpoints import name_folder

CONTROL = "control"
CONTROL_EVALUATIONS = 3
# Sampling one token takes as long as training on about this many tokens, prompts included; measured on 2 cores
# (docs/log.md).
SAMPLED_TOKEN_COST = 1.25
EXAMPLES = 3
MAX_CHARACTERS = 600  # of a question or an answer that is printed


def run_quickstart(settings: PipelineSettings, launch: Launch) -> dict[str, Any]:
    """Run SFT, evaluation, RL, evaluation, the control and the report.

    Returns:
        `sft`, `rl` and `control`, each with the figures of `collect_figures`; `mean_tokens_before` and
        `mean_tokens_after`, of the sampled answers; `seconds`; and `run`, the run's folder.
    """
    if min(settings.sft.learner.steps, settings.rl.learner.steps) < 1:
        raise UsageError("quickstart compares SFT with RL, so learner.steps of both must be at least 1.")
    if settings.skip_sft or settings.skip_rl:
        raise UsageError("quickstart compares SFT with RL, so it can skip neither; `qed pipeline quickstart` can.")
    if not settings.evaluation.at_end:
        raise UsageError("quickstart compares the evaluations after its phases, so evaluation.at_end must be true.")
    began = time.perf_counter()
    with open_run(settings, launch, "quickstart") as setup:
        assert isinstance(setup.settings, PipelineSettings)
        settings = setup.settings
        run_phases(setup, settings.phases())
        _run_control(setup, settings)
        report = write_report([setup.run.folder], setup.run.folder / "report.html")
        arms = _read_arms(setup, settings)
        result = _build_result(arms)
        result |= {"seconds": round(time.perf_counter() - began, 1), "run": str(setup.run.folder)}
        _print_result(setup, settings, arms, result["seconds"], report)
    return result


def _run_control(setup: Setup, settings: PipelineSettings) -> None:
    """Continue SFT from the checkpoint where RL began, with the compute of RL and a new learning rate schedule.

    RL must do better than this baseline.
    """
    folder = setup.run.folder / CONTROL
    if (folder / "final").exists() and setup.launch.resume:
        return
    boundary = settings.sft.learner.steps
    steps = compute_control_steps(read_lines(setup.run.folder / "metrics.jsonl"), boundary)
    sft = settings.phase("sft")
    initial = name_folder(setup.run.folder, boundary) / "hf"
    control = replace(
        sft,
        learner=replace(sft.learner, steps=steps),
        model=replace(sft.model, name=str(initial), revision=""),
        evaluation=replace(sft.evaluation, every=max(1, -(-steps // CONTROL_EVALUATIONS))),
        run=replace(sft.run, out=str(folder), save_every=0),
    )
    setup.console.say(f"Control: SFT continues with as much compute as RL took, {steps} steps.")
    command = (*setup.launch.command, f"# {CONTROL}")
    launch = replace(setup.launch, resume=False, overwrite=True, command=command, home=str(setup.run.folder))
    with open_run(control, launch, CONTROL) as run:
        run_phases(run, [control])


def compute_control_steps(rows: list[Row], boundary: int) -> int:
    """Compute how many SFT steps take as much compute as the RL steps after the boundary.

    Compute is counted in tokens and not in seconds, so that the same seed gives the same control on a busy machine.
    """
    trained = [row for row in rows if "train/computed_tokens" in row]
    sft = [row["train/computed_tokens"] for row in trained if row["step"] <= boundary]
    rl = [row for row in trained if row["step"] > boundary]
    cost = sum(row["train/computed_tokens"] + SAMPLED_TOKEN_COST * row["length/total"] for row in rl)
    steps: int = round(cost / fmean(sft))
    return max(1, steps)


def _read_arms(setup: Setup, settings: PipelineSettings) -> dict[str, dict[str, Row]]:
    """Return the figures of the first held-out task by decoding: after SFT, after RL and after the control."""
    task, folder = next(iter(setup.benchmarks)), setup.run.folder
    boundary = settings.sft.learner.steps
    last = max(row["step"] for row in read_lines(folder / CONTROL / "metrics.jsonl"))
    arms = {
        "sft": (folder, boundary),
        "rl": (folder, boundary + settings.rl.learner.steps),
        "control": (folder / CONTROL, last),
    }
    return {name: _read_figures(place, step, task) for name, (place, step) in arms.items()}


def _read_figures(folder: Path, step: int, task: str) -> dict[str, Row]:
    figures = dict(read_evaluations(folder)).get(step, {}).get(task)
    if figures is None:
        raise RewardFailed(
            f"{folder} has no evaluation of {task} after step {step}, so the runs cannot be compared: the reward "
            "failed on all of its answers. Mend the reward, and start again with --overwrite."
        )
    return figures


def _build_result(arms: Mapping[str, dict[str, Row]]) -> dict[str, Any]:
    """Return the figures of each arm."""
    decoding = "sampled" if "sampled" in arms["rl"] else "greedy"
    return {
        **collect_figures(dict(arms)),
        "mean_tokens_before": arms["sft"][decoding]["mean_tokens"],
        "mean_tokens_after": arms["rl"][decoding]["mean_tokens"],
    }


def _print_result(
    setup: Setup, settings: PipelineSettings, arms: Mapping[str, dict[str, Row]], seconds: float, report: Path
) -> None:
    console = setup.console
    task = next(iter(setup.benchmarks))
    boundary = settings.sft.learner.steps
    last = boundary + settings.rl.learner.steps
    names = {"sft": "after SFT", "rl": f"after {settings.rl.method}", "control": "control: SFT"}
    columns = ["% [95 %]", *arms["sft"], "format", "tokens"]
    rows = [
        [names[key], *map(_format_interval, arm.values()), f"{100 * arm['greedy']['format']:.1f}", _format_lengths(arm)]
        for key, arm in arms.items()
    ]
    console.say()
    console.table(f"{task}: {arms['sft']['greedy']['n']} held-out problems answered right", columns, rows)
    for before, after in _collect_examples(setup, task, boundary, last):
        console.say(f"\n{before['question'].strip()[:MAX_CHARACTERS]}  (answer: {before['gold']})")
        for name, row in (("before", before), ("after ", after)):
            console.say(f"  {name} {'right' if row['correct'] else 'wrong'}: {row['text'].strip()[:MAX_CHARACTERS]}")
    console.say(f"\nReport: {report}")
    console.say(f"Total time: {seconds:.0f} s. Next steps:")
    console.say(f"  every answer     qed view {shlex.quote(str(report.parent))}")
    console.say("  your own data    qed pipeline small --tasks your.jsonl --out runs/mine")
    console.say("  a real model     qed grpo --model Qwen/Qwen2.5-0.5B --tasks your.jsonl --prompt r1_zero")
    console.say("  every setting    qed config show quickstart")


def _collect_examples(setup: Setup, task: str, boundary: int, last: int) -> list[tuple[Row, Row]]:
    """Return greedy answers to the same problems before and after RL, starting with those that RL corrected."""
    before, after = (
        [
            row
            for row in read_lines(setup.run.folder / f"eval/step_{step:06d}/{task}.jsonl")
            if row["decoding"] == "greedy"
        ]
        for step in (boundary, last)
    )
    pairs = list(zip(before, after, strict=True))
    pairs.sort(key=lambda pair: not (pair[1]["correct"] and not pair[0]["correct"]))
    return pairs[:EXAMPLES]


def _format_interval(figures: Row) -> str:
    accuracy, low, high = (100 * figures[name] for name in ("accuracy", "ci_lo", "ci_hi"))
    return f"{accuracy:.1f} [{low:.1f}, {high:.1f}]"


def _format_lengths(arm: dict[str, Row]) -> str:
    """Format the mean length of the last decoding, the sampled one if there is one."""
    return f"{list(arm.values())[-1]['mean_tokens']:.1f}"
