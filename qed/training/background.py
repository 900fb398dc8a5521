"""Writes one checkpoint at a time in a thread, while training continues."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundSaver:
    """Runs work in a thread, one piece at a time; errors are raised in the caller's thread.

    `has_failed` is True from the time such an error is raised until other work starts.
    """

    def __init__(self) -> None:
        self.has_failed = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, *works: Callable[[], None]) -> None:
        """Run functions one after another in a thread, once the previous work has ended.

        Raises:
            QedError: the previous work has failed.
        """
        self.wait()
        self.has_failed = False
        # A daemon: a second signal ends the run at once, and a partial checkpoint is ignored anyway.
        self._thread = threading.Thread(target=self._run, args=(works,), name="checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of work that has ended.

        Raises:
            QedError: the work has failed.
        """
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until the current work has ended.

        Raises:
            QedError: the work has failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            self.has_failed = True
            raise error

    def _run(self, works: tuple[Callable[[], None], ...]) -> None:
        try:
            for work in works:
                work()
        except BaseException as error:  # noqa: BLE001 -- raised again by `wait`
            self._error = error
