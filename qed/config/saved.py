"""Reads the settings of the run that a command line resumes, as the layer below the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qed.config.arguments import Flags
from qed.config.changes import read_saved
from qed.config.fields import Table
from qed.config.layers import Entry, Layer, read_layers, read_method
from qed.errors import UsageError


def read_saved_layer(table: Table, entries: Sequence[Entry], flags: Flags) -> Layer:
    """Return the settings with which the run in `--out` was started, except those on the command line.

    The layer is empty if no run is resumed. Settings of the file that do not exist are skipped, because they are
    reported when the run's settings are compared.

    Raises:
        UsageError: the run has two phases, but the command has one.
        DataError: the file is damaged.
    """
    given = {name for entry in entries for name in table.expand_key(entry.key)}
    out = [entry.raw.text for entry in entries if table.expand_key(entry.key) == ("run.out",)]
    saved = Path(out[-1]) / "settings.yaml" if out else None
    if saved is None or not saved.is_file() or flags.sweep or not (flags.resume or flags.requeue):
        return []
    read_saved(saved)
    if not table.pipeline and read_method(saved) == "pipeline":
        raise UsageError(f"{saved.parent} is a run with two phases: resume it with `qed pipeline --resume --out DIR`.")
    layer = [entry for part in read_layers(saved) for entry in part]
    return [entry for entry in layer if _is_needed(entry, table, given)]


def _is_needed(entry: Entry, table: Table, given: set[str]) -> bool:
    names = table.expand_key(entry.key, shortcuts=False)
    # A layer names the algorithms, which are not settings in the table.
    return entry.key == "method" or (bool(names) and not given.issuperset(names))
