"""How a task is named: NAME[:split][@PATH], or the path of a data file or folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")


@dataclass(frozen=True)
class TaskName:
    """A task as it was named: which leaf, which split, and the file to read in place of its own source."""

    leaf: str
    split: str = ""
    path: str = ""

    @property
    def label(self) -> str:
        """A short name for tables and file names; the test split of a task goes by the task's name alone."""
        if self.leaf == "files":
            name = Path(self.path).name
            return next((name[: -len(suffix)] for suffix in DATA_SUFFIXES if name.lower().endswith(suffix)), name)
        # A user's own task goes by the last part of its path or dotted name.
        name = Path(self.leaf).stem if self.leaf.endswith(".py") else self.leaf.rpartition(".")[2]
        return name if self.split in ("", "test") else f"{name}-{self.split}"


def parse_task(name: str) -> TaskName:
    """Read NAME[:split][@PATH], or the path of a data file or folder."""
    is_file = name.lower().endswith(DATA_SUFFIXES) and ("@" not in name or Path(name).is_file())
    # A folder is told from a task of its name by the stroke in its path: ./gsm8k.
    is_folder = "/" in name and Path(name).is_dir()
    if is_file or is_folder or (Path(name).is_file() and not name.endswith(".py")):
        return TaskName("files", "", name)
    front, _, path = name.partition("@")
    leaf, _, split = front.partition(":")
    return TaskName(leaf, split, path)
