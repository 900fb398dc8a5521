"""Continue when nobody reads the output any more, as after `| head`; only further output is lost."""

from __future__ import annotations

import os
import select
from typing import IO


def drop_unread(stream: IO[str]) -> bool:
    """If the reader of a stream's pipe is gone, discard all further output to it; return whether the reader is gone.

    The stream's buffer is discarded too, so that flushing it at exit does not raise.
    """
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # not a file, or closed
        return False
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
    return True
