"""The logs of a run's attempts and ranks, one window at a time."""

from __future__ import annotations

import re
from typing import Any

from qed.guards.redaction import redact
from qed.viewer.library import Library, RunPlace
from qed.viewer.params import Params, Refused
from qed.viewer.run_files import find_file, list_folder, read_size

WINDOW = 128 << 10  # the most bytes of a reply
MAX_ATTEMPTS, MAX_LOGS = 200, 500
ATTEMPT = re.compile(r"attempt_([1-9][0-9]{0,8})")
MARGIN = 512  # bytes before a window that are read with it, so that a secret across its border is recognised


def list_attempts(place: RunPlace) -> list[dict[str, Any]]:
    """List the attempts of a run with the names and sizes of their logs, oldest first."""
    numbers = sorted({int(found[1]) for name in list_folder(place, "logs") if (found := ATTEMPT.fullmatch(name))})
    return [{"attempt": number, "logs": _list_logs(place, number)} for number in numbers[-MAX_ATTEMPTS:]]


def _list_logs(place: RunPlace, attempt: int) -> list[dict[str, Any]]:
    """List the regular files of an attempt that are within the run, main.log first."""
    folder = ("logs", f"attempt_{attempt}")
    logs = [
        {"name": name, "bytes": size}
        for name in list_folder(place, *folder)
        if (path := find_file(place, *folder, name)) and (size := read_size(path)) is not None
    ]
    return sorted(logs, key=lambda log: log["name"] != "main.log")[:MAX_LOGS]


def read_log(library: Library, params: Params) -> dict[str, Any]:
    """Read the whole lines of at most WINDOW bytes of a log up to `end`, by default the end of the file.

    Args:
        library: the runs.
        params: `run`, `attempt`, `name` of the log, and `end` in bytes.

    Raises:
        Refused: there is no such log.
    """
    place = library.find(params.text("run"))
    attempt, name = params.number("attempt"), params.text("name")
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise Refused(400, f"{name!r} is not the name of a log. The endpoint `run` lists the names.")
    path = place.locate("logs", f"attempt_{attempt}", name)
    size = read_size(path)
    if size is None:
        raise Refused(404, f"The run {place.key} has no log {name} of attempt {attempt}.")
    end = min(size, params.number("end", high=1 << 40)) if "end" in params else size
    start = max(0, end - WINDOW + MARGIN)
    before = max(0, start - MARGIN)
    try:
        with path.open("rb") as file:
            file.seek(before)
            content = file.read(end - before)
    except OSError as error:
        raise Refused(404, f"The log {name} of attempt {attempt} cannot be read: {error.strerror}.") from error
    start, content = _begin_at_line(content, before, start)
    return {"text": redact(content.decode("utf-8", "replace")), "start": start, "end": end, "bytes": size}


def _begin_at_line(content: bytes, before: int, start: int) -> tuple[int, bytes]:
    """Drop what is before the window, up to the beginning of a line, or of a word if one line fills the window."""
    skipped = start - before
    if skipped == 0:
        return start, content
    cut = content.rfind(b"\n", 0, skipped) + 1
    for separator in (b"\n", b" "):
        cut = cut or content.find(separator, skipped) + 1
    return before + cut, content[cut:]
