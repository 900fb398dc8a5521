"""Reject a process in which libraries would fail later with an obscure error."""

from __future__ import annotations

import os
import sys

from qed.errors import UsageError


def require_usable_process() -> None:
    """Check that the current folder exists, which MKL needs, and that docstrings are kept, which transformers reads.

    Raises:
        UsageError: the current folder is gone, or Python strips docstrings.
    """
    try:
        os.getcwd()
    except OSError as error:
        what = "no longer exists" if isinstance(error, FileNotFoundError) else f"cannot be used: {error.strerror}"
        raise UsageError(f"The current folder {what}. Go to a folder that exists (cd), and start again.") from error
    if sys.flags.optimize > 1:
        raise UsageError(
            "Python strips docstrings here (python -OO, or PYTHONOPTIMIZE of 2 or more), but transformers needs them. "
            "Start again without -OO, and with PYTHONOPTIMIZE unset."
        )
