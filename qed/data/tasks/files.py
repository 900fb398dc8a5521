"""Your own data: a jsonl, json, csv or parquet file or a folder of them, recognised by its columns.

Supports the schemas of GSM8K, MATH and competitions, OpenR1, verl, LUFFY, prime-rl, TRL, ShareGPT, Alpaca, MMLU and
GPQA. Other columns are renamed with --data.map question=problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from qed.data.sources import local
from qed.data.tasks import base
from qed.errors import UsageError
from qed.types import Problem

PROMPT = "r1_zero"


def load(split: str) -> list[Problem]:
    """Raise a UsageError, because this task needs a path."""
    raise UsageError("The task 'files' needs a path: give the data file itself, for example --tasks data/train.jsonl.")


def read(
    split: str,
    path: str = "",
    mapping: Mapping[str, str] | None = None,
    left_out: Counter[str] | None = None,
    revision: str = "",
    originals: base.Originals | None = None,
) -> list[Problem]:
    """Load the problems of a data file or folder, one per row; `mapping` maps qed's column names to the file's.

    Raises:
        DataError: the file is missing, a row (named by its number) is broken, or there is no question or answer column.
    """
    if not path:
        return load(split)
    rows = local.read_rows(path, split)
    return base.build_problems(rows, Path(path).stem, mapping, left_out, originals=originals)
