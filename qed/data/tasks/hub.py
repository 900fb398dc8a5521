"""Any data set of the hub: `hub:OWNER/NAME[/CONFIG][:SPLIT]`, recognised by its columns like a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from qed.data.sources import hub, local
from qed.data.tasks import base
from qed.errors import UsageError
from qed.types import Problem

PROMPT = "r1_zero"
EXAMPLE = "hub:openai/gsm8k/main:train"


def load(split: str) -> list[Problem]:
    """Raise a UsageError, because this task needs the name of a dataset."""
    raise UsageError(f"The task 'hub' needs the name of a dataset, for example --tasks {EXAMPLE}.")


def read(
    split: str,
    path: str = "",
    mapping: Mapping[str, str] | None = None,
    left_out: Counter[str] | None = None,
    revision: str = "",
    originals: base.Originals | None = None,
    source: str = "",
) -> list[Problem]:
    """Load the problems of a hub dataset's split, or of a local copy of it.

    Args:
        split: the hub's name of the split; `train+test` concatenates two.
        path: a file, or a folder with the layout of the hub's.
        mapping: qed's column names to those of the dataset.
        left_out: receives counts of skipped rows, by reason.
        revision: commit, branch or tag; the newest if empty.
        originals: receives the rows that were read, by problem id.
        source: OWNER/NAME, or OWNER/NAME/CONFIG.

    Raises:
        UsageError: no dataset is named.
        DataError: the dataset cannot be loaded, a row is broken, or its columns are unknown.
    """
    if not source:
        return load(split)
    parts = source.split("/", 2)
    name, configs = "/".join(parts[:2]), tuple(parts[2:])
    place = hub.HubDataset(name, split, configs, revision=revision or hub.NEWEST)
    rows = local.read_rows(path, split, place) if path else hub.load_rows(place, f"hub:{source}:{split}")
    return base.build_problems(rows, name.rpartition("/")[2], mapping, left_out, originals=originals)
