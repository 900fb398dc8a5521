"""Copy warnings into a run's log: those of Python's `warnings` module, and those that libraries log."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Libraries whose loggers do not propagate their records to the root logger.
SEPARATE = ("transformers", "datasets", "huggingface_hub")


class _LogHandler(logging.Handler):
    """Passes the records of a logger to a function."""

    def __init__(self, write: Callable[[str], None], echo: bool) -> None:
        super().__init__(logging.WARNING)
        self.write, self.echo = write, echo

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; formatting errors are reported as `logging` does."""
        try:
            self.write(f"{record.levelname} {record.name}: {record.getMessage()}")
        except Exception:  # noqa: BLE001 -- a broken message of a library must not end a run
            self.handleError(record)
        if self.echo and logging.lastResort is not None:
            logging.lastResort.handle(record)


@contextmanager
def copy_warnings(write: Callable[[str], None]) -> Iterator[None]:
    """Pass all warnings to a function while the block runs; they are still shown as well."""
    show = warnings.showwarning

    def show_and_write(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any, **options: Any
    ) -> None:
        show(message, category, filename, lineno, *rest, **options)
        write(warnings.formatwarning(message, category, filename, lineno).rstrip())

    root, separate = logging.getLogger(), [logging.getLogger(name) for name in SEPARATE]
    loggers = [root, *(logger for logger in separate if not logger.propagate)]
    # `logging` prints to stderr by default only while there is no handler.
    handlers = [_LogHandler(write, echo=not logger.hasHandlers()) for logger in loggers]
    warnings.showwarning = show_and_write
    for logger, handler in zip(loggers, handlers, strict=True):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, handler in zip(loggers, handlers, strict=True):
            logger.removeHandler(handler)
        if warnings.showwarning is show_and_write:
            warnings.showwarning = show
