"""Write the files and figures of an evaluation once all its answers exist, from one process or from shards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.errors import UsageError
from qed.evaluation.choice_figures import show_choices, summarize_choices
from qed.evaluation.endpoint.usage import describe_usage
from qed.evaluation.outputs import write_outputs
from qed.evaluation.store import Store
from qed.evaluation.summary import average_tasks, summarize
from qed.evaluation.table import show_summary
from qed.evaluation.verdicts import show_verdicts, summarize_verdicts
from qed.runs.run import Row, name_step_folder

ENVIRONMENT = "env.json"
HOLDS = ("eval", "settings.yaml", ENVIRONMENT, "shards")  # a folder with one of these may hold evaluations


@dataclass(frozen=True)
class TaskRecord:
    """What the files of a task hold besides its answers, in a form for JSON.

    `settings` determine the answers, `order` has the ids of the problems, `figures` are known before sampling, and
    `references` belong to a task that is not `judged`, see `qed.evaluation.outputs`.
    """

    label: str
    decoding: str
    judged: bool
    settings: Row
    order: list[str]
    figures: Row
    left_out: dict[str, int]
    references: dict[str, Row] = field(default_factory=dict)

    @property
    def ties(self) -> str:
        """The requested tie rule of maj@k."""
        return str(self.figures.get("maj_ties", "split"))


def finish_task(store: Store, record: TaskRecord, model: str, console: Console) -> Row:
    """Write the answers of a task in the order of its problems, with their figures.

    Returns:
        the figures; for a task without gold answers, the path of its outputs.
    """
    rows = store.order(record.order)
    if not record.judged:
        return write_outputs(store, record.references, model, console)
    computed = {
        **summarize(rows, record.ties),
        **summarize_verdicts(rows),
        **summarize_choices(rows),
    }
    figures = store.finish({**record.figures, **computed, "left_out": record.left_out})
    for line in describe_usage(record.label, figures) if "usage" in figures else ():
        console.say(line)
    return figures


def build_result(
    folder: Path,
    step: int,
    records: Mapping[str, TaskRecord],
    figures: Mapping[str, Row],
    checks: Row,
    console: Console,
) -> dict[str, Any]:
    """Print the figures of all tasks, and return them; see `qed.evaluation.run.run_evaluation`."""
    summaries = {label: figures[label] for label, record in records.items() if record.judged}
    outputs = {label: figures[label]["outputs"] for label, record in records.items() if not record.judged}
    result: dict[str, Any] = {"folder": str(folder), "step": step, "tasks": summaries, "outputs": outputs}
    result["sampler_check"] = checks
    if summaries:
        result["overall"] = average_tasks(list(summaries.values()))
        show_summary(console, summaries, result["overall"])
        show_choices(console, summaries)
        show_verdicts(console, summaries)
    console.say(f"Every answer is in {folder / name_step_folder(step)}.")
    return result


def write_environment(folder: Path, environment: Row, commands: Sequence[str]) -> None:
    """Write the environment and the commands to a folder of evaluations; a run's folder already has them.

    Raises:
        UsageError: the folder cannot be written.
    """
    if (folder / ENVIRONMENT).exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ENVIRONMENT).write_text(json.dumps(environment, indent=1), encoding="utf-8")
        (folder / "command.txt").write_text("".join(f"{command}\n" for command in commands), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made or written: {error.strerror}.") from error


def require_evaluations(folder: Path) -> None:
    """Raise if a folder holds anything other than evaluations.

    Raises:
        UsageError: it does, or is a file.
    """
    taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken and not any((folder / name).exists() for name in HOLDS):
        raise UsageError(f"The folder {folder} already exists and contains no evaluation; choose another --out.")
