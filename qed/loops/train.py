"""Runs of one or two phases: SFT alone, one RL or preference algorithm alone, or SFT and then RL in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qed.config.phases import PipelineSettings, Settings
from qed.data.splits import VALIDATION
from qed.errors import Diverged, Interrupted, NothingTrained
from qed.loops.checkpointer import finish_saving
from qed.loops.epochs import recall_steps
from qed.loops.evaluation_servers import open_background_evaluator
from qed.loops.non_finite import describe_end, is_of_rewards
from qed.loops.online import train_online
from qed.loops.preferences import train_preferences
from qed.loops.resume import list_phases
from qed.loops.setup import Setup, open_run
from qed.loops.sft import train_sft
from qed.report.model_card import write_card
from qed.report.write import write_report
from qed.runs import manifest
from qed.runs.run import Launch, Row, read_evaluation, read_lines
from qed.training.best import LOSS, PERPLEXITY, read_scores
from qed.training.folders import link_checkpoint


def train(settings: Settings, launch: Launch) -> dict[str, Any]:
    """Train with one algorithm.

    Returns:
        The run's folder, its last step and the figures of the last evaluation.
    """
    with open_run(settings, launch, Path(settings.method).stem) as setup:
        return run_phases(setup, list_phases(setup.settings))


def run_pipeline(settings: PipelineSettings, launch: Launch) -> dict[str, Any]:
    """Train with SFT and then RL in one run; either can be skipped."""
    with open_run(settings, launch, "pipeline") as setup:
        return run_phases(setup, list_phases(setup.settings))


def run_phases(setup: Setup, phases: Sequence[Settings]) -> dict[str, Any]:
    """Run the remaining phases in order, and finish the run.

    Raises:
        NothingTrained: no step had a gradient; the model card and the report are still written.
    """
    untrained = None
    with open_background_evaluator(setup, phases[-1]):
        for number, phase in enumerate(phases):
            setup.current = number
            try:
                run_phase(setup, phase, setup.last)
            except NothingTrained as error:
                untrained = error
    result = setup.parallel.run_on_first(lambda: finish_run(setup, setup.last))
    if untrained is not None:
        raise untrained
    return result


def run_phase(setup: Setup, settings: Settings, offset: int = 0) -> None:
    """Run the remaining steps of one phase, and set `setup.last`; see `Phase` for the arguments."""
    name = name_phase(settings)
    state = setup.read_state()
    steps = recall_steps(setup, settings, name)
    if setup.resumed is not None and state["phase"] != name and steps is not None and state["step"] >= offset + steps:
        setup.last = offset + steps
        return
    algorithm = settings.algorithm
    loop = train_online if algorithm.online else train_preferences if algorithm.together == 2 else train_sft
    try:
        with finish_saving(setup):
            loop(setup, settings, name, offset)
    except Diverged as error:
        if is_of_rewards(error):
            setup.save_after_error()
        raise describe_end(setup, error) from error
    except Interrupted as stopped:
        if setup.save_and_describe_exit is None:
            raise
        raise Interrupted(setup.save_and_describe_exit(), stopped.exit_code) from stopped
    except NothingTrained:
        raise
    except Exception:
        setup.save_after_error()
        raise


def name_phase(settings: Settings) -> str:
    """Return a phase's name in metrics and folders: that of its algorithm, or the stem of a user-defined file."""
    return Path(settings.method).stem


def finish_run(setup: Setup, last: int) -> dict[str, Any]:
    """Link `final` and `best` to their checkpoints, write the model card and the report, and print the paths.

    Args:
        setup: setup of the run.
        last: number of the run's last step.

    Returns:
        The run's folder, its last step and the figures of the last evaluation.
    """
    folder = setup.run.folder
    final = link_checkpoint(folder, "final", f"step_{last:06d}")
    best = manifest.read_pointer(folder, "BEST")
    if best is not None:
        chosen = link_checkpoint(folder, "best", f"step_{best:06d}")
        setup.console.say(
            f"The best checkpoint on the validation part is step_{best:06d}: {chosen / 'hf'}."
            + _compare_best(folder, best)
        )
    setup.run.event("finished", step=last)
    write_card(folder, last)
    report = write_report([folder], folder / "report.html")
    setup.console.say(f"Done: {folder}; the model is {final / 'hf'}, the report {report}.")
    figures = collect_figures(read_evaluation(folder, last))
    if loss := _read_loss(folder, last):
        figures[VALIDATION] = {**figures.get(VALIDATION, {}), **loss}
    return {"run": str(folder), "steps": last, **figures}


def _compare_best(folder: Path, best: int) -> str:
    """Describe how the best score compares: steps with the same score, and a higher score before training."""
    scores = read_scores(folder, first=0)
    before, score = scores.pop(0, None), scores.get(best)
    equal = sum(other == score for other in scores.values())
    text = f" It is the earliest of {equal} with the same score." if equal > 1 else ""
    if before is not None and score is not None and before > score:
        text += f" The model before training was better there: {abs(before):.4g}, and this one {abs(score):.4g}."
    return text


def _read_loss(folder: Path, step: int) -> dict[str, float]:
    """Return the loss and perplexity of the held-out demonstrations after a step; empty if not measured."""
    rows = [row for row in read_lines(folder / "metrics.jsonl") if row["step"] == step and LOSS in row]
    return {"loss": rows[-1][LOSS], "perplexity": rows[-1][PERPLEXITY]} if rows else {}


def collect_figures(summaries: dict[str, dict[str, Row]]) -> dict[str, Any]:
    """Return an evaluation's figures by task, as `--json` prints them.

    Greedy answers have `accuracy`, its 95 % interval from `ci_lo` to `ci_hi`, `format`, and their number `n`; sampled
    answers have the same names prefixed with `sampled_`. A task that `qed evaluate` added to the run's folder and that
    has no greedy answers is left out.
    """
    return {
        task: {
            **_collect_shares(decodings["greedy"]),
            **(_collect_shares(decodings["sampled"], "sampled_") if "sampled" in decodings else {}),
            "n": decodings["greedy"]["n"],
        }
        for task, decodings in summaries.items()
        if "greedy" in decodings
    }


def _collect_shares(figures: Row, prefix: str = "") -> dict[str, Any]:
    return {prefix + name: figures[name] for name in ("accuracy", "ci_lo", "ci_hi", "format")}
