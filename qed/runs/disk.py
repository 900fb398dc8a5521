"""Whether the disk has room for a run's checkpoints."""

from __future__ import annotations

import shutil

from qed.errors import QedError
from qed.runs.run import Run


def require_space(run: Run, needed: int) -> None:
    """Refuse to go on where the disk has no room for a checkpoint of so many bytes.

    Raises:
        QedError: what is needed, where, and what to do.
    """
    free = shutil.disk_usage(run.folder).free
    if free < needed:
        raise QedError(
            f"A checkpoint of this run needs {needed / 2**30:.2f} GiB, and the disk of {run.folder} has "
            f"{free / 2**30:.2f} GiB free. Nothing of it has been written, and earlier checkpoints are as they were. "
            "Free some space and go on with --resume, keep fewer checkpoints with run.keep_last (--resume applies it "
            "first), or write elsewhere with another --out."
        )
