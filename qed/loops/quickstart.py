"""The whole road in one command: a small model from nothing, SFT, GRPO, a control of equal compute, and a report.

Nothing here belongs to the default task: another pipeline's settings take the same road.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from qed.config.phases import PipelineSettings, Settings
from qed.errors import UsageError
from qed.loops.setup import Setup, open_run
from qed.loops.train import collect_figures, run_phases
from qed.report.write import write_report
from qed.runs.run import Launch, Row, read_evaluations, read_lines

CONTROL = "control"
CONTROL_EVALUATIONS = 6
# Sampling a token takes about as long as training on so many, prompts included; measured on 2 cores (docs/log.md).
SAMPLED_TOKEN_COST = 1.25
EXAMPLES = 3
LONGEST_SHOWN = 600


def run_quickstart(settings: PipelineSettings, launch: Launch) -> dict[str, Any]:
    """SFT, evaluate, RL, evaluate, control, report.

    Returns:
        `sft`, `rl` and `control` with `accuracy, format, sampled_accuracy, sampled_format, n`; `mean_tokens_before` and
        `mean_tokens_after`, of the sampled answers; `seconds`; and `run`, the folder.
    """
    if min(settings.sft.learner.steps, settings.rl.learner.steps) < 1:
        raise UsageError("quickstart compares SFT with RL, so both need at least one step.")
    if settings.skip_sft or settings.skip_rl:
        raise UsageError("quickstart compares SFT with RL, so it can skip neither; `qed pipeline quickstart` can.")
    began = time.perf_counter()
    with open_run(settings, launch, "quickstart") as setup:
        run_phases(setup, settings.phases())
        _run_control(setup, settings)
        report = write_report([setup.run.folder], setup.run.folder / "report.html")
        result = _build_result(setup, settings)
        result |= {"seconds": round(time.perf_counter() - began, 1), "run": str(setup.run.folder)}
        _print_result(setup, settings, result, report)
    return result


def _run_control(setup: Setup, settings: PipelineSettings) -> None:
    """Continue SFT from where RL began, for as long as RL took, with a schedule of its own: the arm that RL must
    beat."""
    folder = setup.run.folder / CONTROL
    if (folder / "final").exists() and setup.launch.resume:
        return
    boundary = settings.sft.learner.steps
    steps = compute_control_steps(read_lines(setup.run.folder / "metrics.jsonl"), boundary)
    sft = settings.phase("sft")
    start = setup.run.folder / "checkpoints" / f"step_{boundary:06d}" / "hf"
    control = replace(
        sft,
        learner=replace(sft.learner, steps=steps),
        model=replace(sft.model, name=str(start), revision=""),
        evaluation=replace(sft.evaluation, every=max(1, -(-steps // CONTROL_EVALUATIONS))),
        run=replace(sft.run, out=str(folder), save_every=0),
    )
    setup.console.say(f"Control: SFT goes on for as long as RL took, {steps} steps.")
    run_child_process(setup, control)


def compute_control_steps(rows: list[Row], boundary: int) -> int:
    """How many SFT steps take as long as the RL steps behind the boundary did.

    Reckoned in tokens rather than by the clock, so that the same seed gives the same control on a busy machine too.
    """
    trained = [row for row in rows if "train/computed_tokens" in row]
    sft = [row["train/computed_tokens"] for row in trained if row["step"] <= boundary]
    rl = [row for row in trained if row["step"] > boundary]
    cost = sum(row["train/computed_tokens"] + SAMPLED_TOKEN_COST * row["length/total"] for row in rl)
    steps: int = round(cost / fmean(sft))
    return max(1, steps)


def run_child_process(setup: Setup, settings: Settings) -> None:
    """A run of one phase in a folder of its own, on the problems and with the prompt that the setup has prepared."""
    command = (*setup.launch.command, f"# {CONTROL}")
    launch = replace(setup.launch, resume=False, overwrite=True, command=command, home=str(setup.run.folder))
    with open_run(settings, launch, CONTROL) as beside:
        run_phases(beside, [settings])


def _build_result(setup: Setup, settings: PipelineSettings) -> dict[str, Any]:
    """What was measured, of the first held-out task."""
    task = next(iter(setup.benchmarks))
    boundary = settings.sft.learner.steps
    measured = dict(read_evaluations(setup.run.folder))
    before, after = measured[boundary], measured[boundary + settings.rl.learner.steps]
    control = list(read_evaluations(setup.run.folder / CONTROL))[-1][1]
    decoding = "sampled" if "sampled" in after[task] else "greedy"
    return {
        "sft": collect_figures(before)[task],
        "rl": collect_figures(after)[task],
        "control": collect_figures(control)[task],
        "mean_tokens_before": before[task][decoding]["mean_tokens"],
        "mean_tokens_after": after[task][decoding]["mean_tokens"],
    }


def _print_result(setup: Setup, settings: PipelineSettings, result: dict[str, Any], report: Path) -> None:
    console = setup.console
    task = next(iter(setup.benchmarks))
    boundary = settings.sft.learner.steps
    last = boundary + settings.rl.learner.steps
    measured = dict(read_evaluations(setup.run.folder))
    arms = [
        ("after SFT", measured[boundary][task]),
        (f"after {settings.rl.method}", measured[last][task]),
        ("control: SFT", list(read_evaluations(setup.run.folder / CONTROL))[-1][1][task]),
    ]
    columns = ["% [95 %]", *arms[0][1], "format", "tokens"]
    rows = [
        [name, *map(_format_interval, arm.values()), f"{100 * arm['greedy']['format']:.1f}", _format_lengths(arm)]
        for name, arm in arms
    ]
    console.say()
    console.table(f"{task}: {arms[0][1]['greedy']['n']} held-out problems answered right", columns, rows)
    for before, after in _collect_examples(setup, task, boundary, last):
        console.say(f"\n{before['question'].strip()[:LONGEST_SHOWN]}  (answer: {before['gold']})")
        for name, row in (("before", before), ("after ", after)):
            console.say(f"  {name} {'right' if row['correct'] else 'wrong'}: {row['text'].strip()[:LONGEST_SHOWN]}")
    console.say(f"\nReport: {report}")
    console.say(f"All of it took {result['seconds']:.0f} s. What to do next:")
    console.say("  your own data    qed pipeline small --tasks your.jsonl --out runs/mine")
    console.say("  a real model     qed grpo --model Qwen/Qwen2.5-0.5B --tasks your.jsonl --prompt r1_zero")
    console.say("  every setting    qed config show quickstart")


def _collect_examples(setup: Setup, task: str, boundary: int, last: int) -> list[tuple[Row, Row]]:
    """Greedy answers to the same problems before and after RL: first those that were mended."""
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


def _format_interval(figures_: Row) -> str:
    right, low, high = (100 * figures_[name] for name in ("accuracy", "ci_lo", "ci_hi"))
    return f"{right:.1f} [{low:.1f}, {high:.1f}]"


def _format_lengths(arm: dict[str, Row]) -> str:
    """Of the decoding that stands last, which is the sampled one."""
    return f"{list(arm.values())[-1]['mean_tokens']:.1f}"
