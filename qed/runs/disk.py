"""Checks that the disk has space for a run's checkpoints."""

from __future__ import annotations

import shutil

from qed.errors import QedError
from qed.runs.run import Run


def require_space(run: Run, needed: int) -> None:
    """Check that the disk has space for a checkpoint of `needed` bytes.

    Raises:
        QedError: it has not; the message says how much is missing, where, and what to do.
    """
    free = shutil.disk_usage(run.folder).free
    if free < needed:
        raise QedError(
            f"A checkpoint of this run needs {needed / 2**30:.2f} GiB, but the disk of {run.folder} has only "
            f"{free / 2**30:.2f} GiB free. No part of it was written, and earlier checkpoints are unchanged. Free "
            "some space and continue with --resume, keep fewer checkpoints with run.keep_last (--resume applies it "
            "first), or write elsewhere with another --out."
        )
