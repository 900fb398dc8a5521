"""Prepare the process of a Python program that calls qed."""

from __future__ import annotations

from qed import host
from qed.guards.interpreter import require_usable_process


def prepare_process() -> None:
    """Set the modes of the numeric libraries, as the command line does; no effect on a library already in use.

    Raises:
        UsageError: the libraries would fail in this process.
    """
    require_usable_process()
    host.set_passive_waiting()
    host.make_products_reproducible()
