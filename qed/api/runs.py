"""Read a run's folder from Python."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from qed.config.changes import read_saved
from qed.errors import DataError, UsageError
from qed.report.write import write_report
from qed.runs.run import Row, iterate_rows, read_evaluations, read_lines

FRAME = '<iframe srcdoc="{}" style="width: 100%; height: 600px; border: 0"></iframe>'


class Records(Iterator[Row]):
    """An iterator of dicts that can also become a data frame."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = iter(rows)

    def __next__(self) -> Row:
        return next(self._rows)

    def to_pandas(self) -> Any:
        """Return the remaining rows as a `pandas.DataFrame`, one column per key.

        Raises:
            qed.errors.UsageError: pandas is not installed.
        """
        try:
            import pandas  # noqa: PLC0415 -- optional, and slow to import
        except ImportError as error:
            raise UsageError("to_pandas needs pandas, which is not installed: pip install pandas.") from error
        return pandas.DataFrame(list(self))


class Run:
    """A run's folder; everything is read from its files on demand, also while the run is in progress.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The rows passed to `qed.train` from Python, by name: no file holds them, and an evaluation may need them.
        # None if this process has not trained the run.
        self.given: Mapping[str, list[Row]] | None = None

    def __repr__(self) -> str:
        return f"qed.load_run({str(self.path)!r})"

    def _repr_html_(self) -> str | None:
        """Show the report in a notebook, if there is something to report."""
        page = self.path / "report.html"
        with suppress(DataError):
            shown = page if page.is_file() else self.report()
            return FRAME.format(html.escape(shown.read_text(encoding="utf-8")))
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings in settings.yaml, by section; `qed.load_settings(run.path)` returns them checked and typed."""
        return read_saved(self.path / "settings.yaml")

    @property
    def model(self) -> Path:
        """The folder of the trained model, which transformers can load and another run can use as its `model`.

        Raises:
            qed.errors.DataError: the run has not finished.
        """
        folder = self.path / "final" / "hf"
        if not folder.is_dir():
            raise DataError(f"The run {self.path} has no final model: it has not finished.")
        return folder

    def metrics(self) -> Records:
        """Return the rows of metrics.jsonl: one for each step, and one for each evaluation."""
        return Records(read_lines(self.path / "metrics.jsonl"))

    def events(self) -> Records:
        """Return the rows of events.jsonl: warnings, alarms, resumes and other events, with their time."""
        return Records(read_lines(self.path / "events.jsonl"))

    def rollouts(self, step: int | None = None) -> Records:
        """Return the sampled answers, one row each: question, text, reward, advantage, tokens, log-probs and more.

        Args:
            step: return only the answers of this step; by default those of all steps, one file after another.

        Raises:
            qed.errors.DataError: no answers of this step are saved.
        """
        files = sorted((self.path / "rollouts").glob("step_*.jsonl.zst"))
        if step is not None:
            wanted = self.path / "rollouts" / f"step_{step:0>6}.jsonl.zst"
            if wanted not in files:
                found = [int(file.name[5:].partition(".")[0]) for file in files]
                kept = f"those of steps {found[0]} to {found[-1]} ({len(found):,} in all)" if found else "none"
                raise DataError(f"The run {self.path} has no rollouts of step {step}; it has {kept}.")
            files = [wanted]
        return Records(row for file in files for row in iterate_rows(file))

    def evaluations(self) -> Records:
        """Return the figures of all evaluations: a row for each step, task and decoding (`greedy`, `sampled`).

        `accuracy` has the 95 % confidence interval `ci_lo` to `ci_hi`; `n` is the number of problems, `k` the number of
        answers per problem.
        """
        return Records(
            {"step": step, "task": task, "decoding": decoding, **figures}
            for step, tasks in read_evaluations(self.path)
            for task, decodings in tasks.items()
            for decoding, figures in decodings.items()
        )

    def report(self) -> Path:
        """Write report.html, replacing an existing one, and return its path."""
        return write_report([self.path], self.path / "report.html")


def load_run(path: str | os.PathLike[str]) -> Run:
    """Return the run in a folder.

    Raises:
        qed.errors.DataError: the folder is not a run's folder.
    """
    folder = Path(path)
    if not (folder / "settings.yaml").is_file():
        raise DataError(f"{folder} holds no run: it has no settings.yaml.")
    return Run(folder)
