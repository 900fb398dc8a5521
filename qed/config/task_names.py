"""Parses task names: NAME[:split][@PATH], hub:DATASET[:split][@PATH], or a data file or folder, and their columns.

`?OURS=THEIRS` after any of them renames columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl

from qed.errors import UsageError

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
TEXT_SUFFIXES = tuple(f"{kind}{end}" for kind in (".jsonl", ".json", ".csv", ".tsv") for end in ("", *COMPRESSIONS))
DATA_SUFFIXES = (*TEXT_SUFFIXES, ".parquet")


@dataclass(frozen=True)
class TaskName:
    """A parsed task name.

    Attributes:
        leaf: name of the task.
        split: the split, or empty.
        path: the file or folder to read instead of the task's source.
        source: the Hub data set of the task `hub`, OWNER/NAME[/CONFIG].
        columns: qed's column names mapped to those of this task, instead of `data.map`.
    """

    leaf: str
    split: str = ""
    path: str = ""
    source: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        """Return the name that a revision belongs to: OWNER/NAME of a Hub data set, otherwise the task."""
        return "/".join(self.source.split("/")[:2]) or self.leaf

    @property
    def label(self) -> str:
        """Return a short name for tables and file names; for the test split it is only the task's name."""
        if self.leaf == "files":
            return strip_suffix(Path(self.path).name)
        if self.source:
            name = "-".join(self.source.split("/")[1:]) or self.source
            return name if self.split in ("", "test") else f"{name}-{self.split}"
        # The label of a user-defined task is the last part of its path or dotted name.
        name = Path(self.leaf).stem if self.leaf.endswith(".py") else self.leaf.rpartition(".")[2]
        return name if self.split in ("", "test") else f"{name}-{self.split}"


def parse_task(name: str) -> TaskName:
    """Parse NAME[:split][@PATH], hub:DATASET[:split][@PATH], or the path of a data file or folder, and its columns.

    Columns follow a question mark: FILE?question=frage&answer=antwort.

    Raises:
        UsageError: the question mark is not followed by OURS=THEIRS, or a file name is followed by a split.
    """
    whole, mark, query = name.partition("?")
    if mark and not Path(name).exists():
        return replace(parse_task(whole), columns=_parse_columns(name, query))
    is_file = name.lower().endswith(DATA_SUFFIXES) and ("@" not in name or Path(name).is_file())
    # A slash distinguishes a folder from a task of the same name: ./gsm8k.
    is_folder = "/" in name and Path(name).is_dir()
    if is_file or is_folder or (Path(name).is_file() and not name.endswith(".py")):
        return TaskName("files", "", name)
    front, _, path = name.partition("@")
    leaf, _, split = front.partition(":")
    if leaf == "hub":
        source, _, split = split.partition(":")
        return TaskName(leaf, split, path, source.strip("/"))
    if split and leaf.lower().endswith(DATA_SUFFIXES):
        raise UsageError(
            f"{name}: a file is read whole, without a split: {leaf}. To read one of several lists in a .json file, "
            f"write files:{split}@{leaf}."
        )
    return TaskName(leaf, split, path)


def explain_start(path: str) -> str:
    """Return a sentence that says what a relative path is relative to; an empty string for other paths."""
    if Path(path).is_absolute():
        return ""
    return (
        f" A relative path is relative to the folder in which qed is started, {Path.cwd()}. For the data of a run, "
        "start qed where the run was started."
    )


def strip_suffix(name: str) -> str:
    """Return the name of a data file without its suffix; other names unchanged."""
    return next((name[: -len(suffix)] for suffix in DATA_SUFFIXES if name.lower().endswith(suffix)), name)


def explain_pattern(path: str) -> str:
    """Return a sentence about a path that does not exist and is a glob pattern; an empty string for other paths."""
    if "*" not in path:
        return ""
    return " Glob patterns are not expanded: name the folder, or each file, separated by commas."


def _parse_columns(name: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        pairs = []
    if not pairs or not all(ours and theirs for ours, theirs in pairs):
        raise UsageError(
            f"{name}: the question mark must be followed by columns, OURS=THEIRS joined by &, such as "
            f"{name.partition('?')[0]}?question=frage&answer=antwort."
        )
    columns = dict(pairs)
    if len(columns) < len(set(pairs)):
        raise UsageError(f"{name} names a column twice after the question mark. Remove one of them.")
    return columns
