"""`python -m qed`, which is the script `qed`: a command line with a process of its own."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

from qed import host
from qed.errors import INTERRUPTED


def run() -> None:
    """Run the command line, and end the process without freeing what it has imported.

    Python frees a million objects of torch and transformers one by one, which takes a second. What is registered with
    `atexit` runs, and threads are waited for, as in any process; only files that were left open are not flushed.
    """
    codes: list[int] = []
    if not atexit._ncallbacks():  # what is registered first runs last; coverage, for one, registers before us
        atexit.register(_leave, codes)
    host.collect_garbage_rarely()
    try:
        from qed.cli.main import main  # noqa: PLC0415 -- it imports modules that register functions too

        main()
    except KeyboardInterrupt:  # while it is imported; later `main` takes it
        sys.stderr.write("interrupted\n")
        codes.append(INTERRUPTED)
        raise SystemExit(INTERRUPTED) from None
    except SystemExit as ended:
        codes.append(int(ended.code or 0))
        raise


def _leave(codes: list[int]) -> None:
    """End the process with the code of the command, if it has ended by itself."""
    if not codes:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # no stream, a broken pipe, a closed stream
            stream.flush()
    os._exit(codes[0])


if __name__ == "__main__":
    run()
