"""Write one self-contained HTML file about one or several runs, from their folders only."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Sequence
from pathlib import Path

from qed.errors import DataError, QedError, UsageError
from qed.guards.redaction import redact
from qed.report.page import render_page
from qed.report.record import read_record
from qed.runs.folder import drop_repeated
from qed.runs.run import write_bytes


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report of one run, or of several runs overlaid.

    Args:
        runs: the run folders; one that is named several times is read once.
        out: the file to write, which is replaced atomically and so never incomplete.

    Returns:
        the path of the file.

    Raises:
        DataError: a folder is not a run, has no metrics or contains a damaged file.
        UsageError: there is a file of that name that is not an HTML page.
        QedError: the file cannot be written.
    """
    if not runs:
        raise DataError("A report needs at least one run's folder.")
    if out.is_file() and not _is_page(out):
        raise UsageError(f"{out} exists, and is not an HTML page. Choose another name, or remove it.")
    content = redact(render_page([read_record(folder) for folder in drop_repeated(runs)])).encode()
    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(part, content)
        part.replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):  # on a read-only disk there is no partial file either
            part.unlink(missing_ok=True)
        raise QedError(f"Cannot write {out}: {error.strerror or error}. Name another file with --out.") from error
    return out


def _is_page(file: Path) -> bool:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        start = opened.read(64).removeprefix(codecs.BOM_UTF8).lstrip().lower()
        return not start or start.startswith((b"<!doctype html", b"<html"))
    return True  # let writing report the error
