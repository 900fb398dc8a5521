"""Entry point of the `qed` script and of `python -m qed`."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

from qed import host
from qed.errors import INTERRUPTED


def run() -> None:
    """Run the command line, and exit without freeing imported modules.

    At exit Python would free a million objects of torch and transformers one by one, which takes a second. `atexit`
    handlers still run and threads are still joined; only files left open are not flushed.
    """
    codes: list[int] = []
    if not atexit._ncallbacks():  # handlers run in reverse order; coverage, for example, registers earlier
        atexit.register(_leave, codes)
    host.collect_garbage_rarely()
    try:
        from qed.cli.main import main  # noqa: PLC0415 -- its imports register atexit handlers too

        main()
    except KeyboardInterrupt:  # during the import; later `main` handles it
        sys.stderr.write("interrupted\n")
        codes.append(INTERRUPTED)
        raise SystemExit(INTERRUPTED) from None
    except SystemExit as ended:
        codes.append(int(ended.code or 0))
        raise


def _leave(codes: list[int]) -> None:
    """End the process with the exit code of the command, if it has one."""
    if not codes:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # no stream, a broken pipe, a closed stream
            stream.flush()
    os._exit(codes[0])


if __name__ == "__main__":
    run()
