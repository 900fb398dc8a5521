"""Convert data from one schema to another, with filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.data.prompts.demonstrations import find_reply
from qed.data.sources.explain import format_reasons
from qed.data.sources.fields import SkippedRow
from qed.data.sources.rows import Row
from qed.data.sources.writing import require_suffix
from qed.data.tools import snapshot
from qed.data.tools.filters import Filters, filter_problems, split_problems
from qed.data.tools.load import Data
from qed.data.tools.prompting import PromptView, check_chat, load_prompt_view
from qed.data.tools.schemas import PLAIN, Layout, list_extra_columns
from qed.errors import DataError, UsageError
from qed.types import Problem


@dataclass(frozen=True)
class Target:
    """A file to write: its schema, the prompt of its messages, and whether it may overwrite an existing file."""

    path: Path
    schema: str = ""
    prompt: str = ""
    prompt_options: tuple[str, ...] = ()
    overwrite: bool = False

    def choose_schema(self) -> str:
        """Return the schema; the default is the plain one of the file's format.

        Raises:
            UsageError: the file's suffix is not a known format, or does not match the schema.
        """
        plain = require_suffix(self.path).split(".")[1]
        if self.schema in PLAIN and self.schema != plain:
            raise UsageError(f"--to {self.schema} does not match {self.path}, which is a {plain} file.")
        return self.schema or plain

    def check(self, validation: bool) -> dict[str, Path]:
        """Check that the files can be written, and return them by part.

        Raises:
            UsageError: a file already exists, or its name does not match the schema.
        """
        snapshot.require_free_path(self.path, self.overwrite)
        self.choose_schema()
        paths = {"train": self.path, **({"validation": self._name_validation_file()} if validation else {})}
        for path in paths.values():
            snapshot.require_free_path(path, self.overwrite)
        return paths

    def _name_validation_file(self) -> Path:
        """Return the file of the validation part: out-validation.parquet for out.parquet."""
        stem, dot, suffixes = self.path.name.partition(".")
        return self.path.with_name(f"{stem}-validation{dot}{suffixes}")


def convert(data: Data, target: Target, filters: Filters, model: str) -> dict[str, Any]:
    """Write a task's problems in another schema.

    Returns:
        the numbers of problems read, written, and skipped by reason.

    Raises:
        UsageError: a file already exists, or schema, prompt and format do not match.
        DataError: no problem is left to write.
    """
    schema = target.choose_schema()
    paths = target.check(bool(filters.validation_split))
    prompt = target.prompt or ("luffy" if schema == "luffy" else "chat")
    view = load_prompt_view(prompt, target.prompt_options, model, data.problems)
    if schema in ("verl", "luffy"):
        check_chat(prompt, view.leaf, schema)
    left_out = Counter(data.left_out)
    problems = _drop_unanswered(data.problems, left_out)
    parts = split_problems(filter_problems(problems, filters, view, left_out), filters, left_out)
    names = {"train": data.split, "validation": "validation"}
    tables: dict[str, list[Row]] = {}
    for (part, path), problems in zip(paths.items(), parts, strict=False):
        tables[str(path)] = build_rows(problems, schema, view, (data.folder, names[part]), left_out)
    if not all(tables.values()):
        empty = next(path for path, table in tables.items() if not table)
        raise DataError(f"Nothing is left to write to {empty}: {format_reasons(left_out) or 'the part is empty'}.")
    for name, table in tables.items():
        snapshot.write_rows(Path(name), table)
    return {
        "schema": schema,
        "prompt": prompt,
        "unit": view.unit,
        "read": len(data.problems),
        "written": {path: len(table) for path, table in tables.items()},
        "without_demonstration": sum(view.demonstration(problem) is None for part in parts for problem in part),
        "left_out": {reason: count for reason, count in left_out.items() if count},
    }


def _drop_unanswered(problems: Sequence[Problem], left_out: Counter[str]) -> list[Problem]:
    """Return the problems with an answer or a demonstration; `qed data validate` reports rows without as errors.

    Others may be meant for a judge or a user-defined reward. They are kept if no row has an answer, or if the row has a
    column that no row with an answer has, such as the tests of a program.
    """
    usable = {problem.id for problem in problems if problem.answer or find_reply(problem)}
    common = {name for problem in problems if problem.id in usable for name in _list_filled(problem)}
    kept = [problem for problem in problems if problem.id in usable or not usable or _list_filled(problem) - common]
    left_out["without an answer and a demonstration"] += len(problems) - len(kept)
    return kept


def _list_filled(problem: Problem) -> set[str]:
    return {name for name, value in problem.meta.items() if value not in (None, "", [], {})}


def build_rows(
    problems: Sequence[Problem], schema: str, view: PromptView, origin: tuple[str, str], left_out: Counter[str]
) -> list[Row]:
    """Build rows of a schema from problems, skipping and counting those that do not fit it.

    Args:
        origin: the task and the split.
    """
    columns = list_extra_columns(problems, simple=schema != "jsonl")
    layout = Layout(schema, view.leaf, *origin, columns)
    table: list[Row] = []
    for problem in problems:
        # A problem that requests k answers is written k times, as is common in such files.
        for _ in range(problem.meta.get("k", 1)):
            try:
                table.append(layout.build_row(len(table), problem))
            except SkippedRow as reason:
                left_out[str(reason)] += 1
    if schema == "trl" and not any(row["completion"] for row in table):
        # Without completions these are prompts for RL, which TRL recognises by the missing column.
        return [{name: value for name, value in row.items() if name != "completion"} for row in table]
    return table
