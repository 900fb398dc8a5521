"""Where answers are: in a training step, or in one decoding of an evaluation's task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.errors import DataError
from qed.runs.run import Row
from qed.runs.step_index import StepIndex, read_group
from qed.viewer.details import find_answers, list_answer_steps
from qed.viewer.evaluations import find_rows, load_evaluations
from qed.viewer.library import Library, RunPlace
from qed.viewer.outcomes import load_index
from qed.viewer.params import Params, Refused


@dataclass(frozen=True)
class Where:
    """The answers of a step: their run, file and index; `task` and `decoding` are empty for those of training."""

    place: RunPlace
    step: int
    task: str
    decoding: str
    data: Path
    index: StepIndex

    @property
    def is_training(self) -> bool:
        """Return whether the answers were sampled for training."""
        return not self.task

    def describe(self) -> dict[str, Any]:
        """Return the request parameters that name it."""
        names = {} if self.is_training else {"task": self.task, "decoding": self.decoding}
        return {"run": self.place.key, "step": self.step, **names}

    def find_neighbours(self) -> dict[str, int | None]:
        """Return the previous and the next step with answers of the same kind."""
        steps = list_answer_steps(self.place) if self.is_training else self._list_evaluated_steps()
        before, after = [step for step in steps if step < self.step], [step for step in steps if step > self.step]
        return {"previous": max(before, default=None), "next": min(after, default=None)}

    def _list_evaluated_steps(self) -> list[int]:
        same = (self.task, self.decoding)
        found = [each.step for each in load_evaluations(self.place) if each.name == same]
        return [step for step in found if find_rows(self.place, step, self.task)]

    def has(self, group: Mapping[str, Any]) -> bool:
        """Return whether a group is of this decoding."""
        return self.is_training or str(group.get("decoding")) == self.decoding

    def list_groups(self) -> list[int]:
        """List the numbers of the groups of this decoding."""
        return [number for number, group in enumerate(self.index.groups) if self.has(group)]

    def read_rows(self, group: int, texts_only: bool = False) -> list[Row]:
        """Read the answers of a group; with `texts_only` without tokens and later fields, which is much faster.

        Raises:
            Refused: there is no such group, or the file is damaged there.
        """
        if not 0 <= group < len(self.index.groups) or not self.has(self.index.groups[group]):
            raise Refused(404, f"Step {self.step} has no group {group}.")
        try:
            return read_group(self.data, self.index, group, texts_only)
        except DataError as error:
            raise Refused(422, str(error)) from error


def find_where(library: Library, params: Params) -> Where:
    """Return where the requested answers are: `run`, `step`, and for an evaluation `task` and `decoding`.

    Raises:
        Refused: there are no such answers, or their file is damaged.
    """
    place = library.find(params.text("run"))
    step, task, decoding = params.number("step"), params.text("task", ""), params.text("decoding", "")
    data = find_rows(place, step, task) if task else find_answers(place, step)
    if data is None:
        kind = f"the evaluation of {task} at step {step}" if task else f"step {step}"
        raise Refused(404, f"The run {place.key} has no saved answers of {kind}.")
    index = load_index(library, data)
    if index is None:
        raise Refused(422, f"{data.name} of the run {place.key} is damaged and cannot be read.")
    if task and not any(str(group.get("decoding")) == decoding for group in index.groups):
        raise Refused(404, f"The evaluation of {task} at step {step} has no decoding '{decoding[:40]}'.")
    return Where(place, step, task, decoding, data, index)
