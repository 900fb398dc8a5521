"""Evaluate from Python, with the same answers, figures and errors as `qed evaluate`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qed.api.keywords import use_keywords
from qed.api.process import prepare_process
from qed.api.runs import Records, Run
from qed.cli.commands.evaluate import evaluate_model, is_switch
from qed.config.values import FALSE, TRUE
from qed.errors import UsageError, suggest_nearest
from qed.evaluation.summary import average_tasks
from qed.runs.run import Row, name_step_folder, read_lines

BY_COMMAS = ("--also-grade", "--url")  # options whose lists are comma-separated, without brackets


@dataclass(frozen=True)
class Estimate:
    """A share between 0 and 1, and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    `tasks` holds the figures of each task, under the names that summary.json in the folder `path` uses. For tasks
    without reference answers, such as alpaca_eval, `outputs` holds the file of the answers instead.
    """

    path: Path
    step: int
    tasks: Mapping[str, Mapping[str, Any]]
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def accuracy(self) -> Estimate:
        """The unweighted mean of the tasks' accuracies.

        Raises:
            qed.errors.UsageError: no task has reference answers.
        """
        if not self.tasks:
            raise UsageError("The tasks of this evaluation have no reference answers, so there is no accuracy.")
        figures = average_tasks(list(self.tasks.values()))
        return Estimate(figures["accuracy"], figures["ci_lo"], figures["ci_hi"])

    def estimate(self, measure: str = "accuracy", task: str = "") -> Estimate:
        """Return a measure of one task.

        Args:
            measure: `accuracy`, `pass@K`, `maj@K`, or the accuracy by another comparison: `strict`, `flexible` or
                `string`.
            task: the name of the task; optional if there is only one.

        Raises:
            qed.errors.UsageError: there is no such task or measure.
        """
        name = self._choose_task(task)
        if name not in self.tasks:
            raise UsageError(f"The task {name} has no reference answers, so it has no measures: see outputs and rows.")
        figures = self.tasks[name]
        found = {"accuracy": {"value": figures["accuracy"], **figures}, **figures["accuracy_by"]}
        found |= {f"{kind}@{k}": each for kind in ("pass", "maj") for k, each in figures[kind].items()}
        if measure not in found:
            hint = suggest_nearest(measure, found)
            raise UsageError(f"The evaluation has no {measure}.{hint} It has: {', '.join(found)}.")
        return Estimate(*(found[measure][part] for part in ("value", "ci_lo", "ci_hi")))

    def rows(self, task: str = "") -> Records:
        """Return the answers, one row each: question, gold, text, extracted, correct, reason, tokens and more.

        Args:
            task: return only the answers to this task; by default those to all tasks.
        """
        tasks = [self._choose_task(task)] if task else [*self.tasks, *self.outputs]
        folder = self.path / name_step_folder(self.step)
        return Records({"task": name, **row} for name in tasks for row in read_lines(folder / f"{name}.jsonl"))

    def to_pandas(self) -> Any:
        """Return the figures as a `pandas.DataFrame`, one row per task."""
        return Records(self._list_figures()).to_pandas()

    def _list_figures(self) -> Iterator[Row]:
        for task, figures in self.tasks.items():
            yield {"task": task, **{name: value for name, value in figures.items() if not isinstance(value, Mapping)}}

    def _choose_task(self, name: str) -> str:
        known = [*self.tasks, *self.outputs]
        if name in known or (not name and len(known) == 1):
            return name or known[0]
        if not name:
            raise UsageError(
                f"There are several tasks: name one, such as task='{known[0]}'. There are: {', '.join(known)}."
            )
        raise UsageError(f"There is no task '{name}'.{suggest_nearest(name, known)} There are: {', '.join(known)}.")

    def __str__(self) -> str:
        return "\n".join(f"{task}: {self.estimate(task=task)}, n = {row['n']}" for task, row in self.tasks.items())


def evaluate(model: str | os.PathLike[str] | Run | None = None, tasks: Any = None, **options: Any) -> Evaluation:
    """Evaluate a model as `qed evaluate` does, and return estimates with confidence intervals, and every answer.

    Args:
        model: a run or its folder, a Hugging Face folder or a name on the hub. Optional with `sampler="server"` and
            `url`: the server then names its model.
        tasks: benchmarks or data files, such as `["gsm8k:test", "test.jsonl"]`, or data: a list of dicts, a
            `datasets.Dataset` or a data frame. For a run, by default its own held-out problems; if these were passed
            from Python, `model` must be the run that `qed.train` returned.
        options: the options of `qed evaluate`, with underscores: `samples`, `greedy`, `temperature`, `top_p`,
            `max_tokens`, `limit`, `seed`, `step`, `prompt`, `reward`, `out`, `overwrite` and others. `reward` may also
            be a function, see `qed.train`.

    Raises:
        qed.errors.UsageError: an option is unknown or invalid.
        qed.errors.DataError: the problems cannot be used.
        qed.errors.ModelError: the model cannot be used.
        qed.errors.Interrupted: a signal stopped the evaluation; the same call with `out=` set to its folder resumes it.
    """
    prepare_process()
    known = model.given if isinstance(model, Run) else None
    with use_keywords({"evaluation.tasks": tasks, **options}, known) as texts:
        result = evaluate_model(list_model_options(model, texts))
    return Evaluation(Path(result["folder"]), result["step"], result["tasks"], result["outputs"])


def list_model_options(model: str | os.PathLike[str] | Run | None, texts: Mapping[str, str]) -> Sequence[str]:
    """Return a model and keywords as options of `qed evaluate`."""
    options = [] if model is None else ["--model", os.fspath(model.path if isinstance(model, Run) else model)]
    if isinstance(model, Run) and model.given is not None and "config" not in texts:
        # The settings of the run name only code that this process has already executed.
        texts = {"allow_user_code": "true", **texts}
    for key, text in texts.items():
        option = "--tasks" if key == "evaluation.tasks" else f"--{key.replace('_', '-')}"
        if option in BY_COMMAS and text.startswith("["):
            text = ",".join(json.loads(text))
        if is_switch(option):
            if text.lower() not in (*TRUE, *FALSE):
                raise UsageError(f"{key} must be True or False, not {text}.")
            options += [option] if text.lower() in TRUE else []
        else:
            options.append(f"{option}={text}")
    return options
