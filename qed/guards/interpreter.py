"""Refuses a process in which the libraries would fail later, with an error that names no cause."""

from __future__ import annotations

import os
import sys

from qed.errors import UsageError


def require_usable_process() -> None:
    """Check the current folder, which MKL needs to find its libraries, and the docstrings, which transformers reads.

    Raises:
        UsageError: the current folder is gone, or Python leaves docstrings out.
    """
    try:
        os.getcwd()
    except OSError as error:
        what = "no longer exists" if isinstance(error, FileNotFoundError) else f"cannot be used: {error.strerror}"
        raise UsageError(f"The current folder {what}. Go to a folder that exists (cd), and start again.") from error
    if sys.flags.optimize > 1:
        raise UsageError(
            "Python leaves out docstrings here (python -OO, or PYTHONOPTIMIZE of 2 or more), and the library "
            "transformers needs them. Start again without -OO, and with PYTHONOPTIMIZE unset."
        )
