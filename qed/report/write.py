"""One self-contained HTML file about a run, or about several side by side. It reads run folders and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qed.errors import DataError, QedError
from qed.guards.redaction import redact
from qed.report.page import render_page
from qed.report.record import read_record
from qed.runs.run import write_bytes


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report of one run, or of several overlaid.

    Args:
        runs: the folders.
        out: the file; it is whole or it is not there.

    Returns:
        the file.

    Raises:
        DataError: a folder is no run, has no metrics or holds a damaged file.
        QedError: the file cannot be written.
    """
    if not runs:
        raise DataError("A report needs at least one run's folder.")
    content = redact(render_page([read_record(folder) for folder in runs])).encode()
    beside = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(beside, content)
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise QedError(f"Cannot write {out}: {error.strerror or error}. Name another file with --out.") from error
    return out
