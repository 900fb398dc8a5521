"""Parse names of tasks: NAME[:split][@PATH], or the path of a data file or folder; ?OURS=THEIRS renames columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl

from qed.errors import UsageError

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")


@dataclass(frozen=True)
class TaskName:
    """A parsed task name: the leaf, the split, the file to read instead of the task's source, and its columns.

    `columns` maps qed's column names to those of this task, and replaces `data.map` for it.
    """

    leaf: str
    split: str = ""
    path: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return a short name for tables and file names; for the test split it is the task's name alone."""
        if self.leaf == "files":
            name = Path(self.path).name
            return next((name[: -len(suffix)] for suffix in DATA_SUFFIXES if name.lower().endswith(suffix)), name)
        # The label of a user's task is the last part of its path or dotted name.
        name = Path(self.leaf).stem if self.leaf.endswith(".py") else self.leaf.rpartition(".")[2]
        return name if self.split in ("", "test") else f"{name}-{self.split}"


def parse_task(name: str) -> TaskName:
    """Parse NAME[:split][@PATH], or the path of a data file or folder, and columns: FILE?question=frage&answer=antwort.

    Raises:
        UsageError: what follows the question mark is not OURS=THEIRS.
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
    return TaskName(leaf, split, path)


def _parse_columns(name: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        pairs = []
    if not pairs or not all(ours and theirs for ours, theirs in pairs):
        raise UsageError(
            f"{name}: after the question mark come columns, OURS=THEIRS joined by &, such as "
            f"{name.partition('?')[0]}?question=frage&answer=antwort."
        )
    return dict(pairs)
