"""Go on when nobody reads the output any more, as behind `| head`: what is printed then is lost, and nothing else."""

from __future__ import annotations

import os
import select
from typing import IO


def drop_unread(stream: IO[str]) -> bool:
    """Discard what is written to a stream from here on, if the reader of its pipe has gone; return whether it has.

    What is left in the stream's buffer is discarded too, so that flushing it at exit does not raise.
    """
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # no file, or a closed one
        return False
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
    return True
