"""Follow a run until it ends: send what it appends to its files as server-sent events."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from qed.report.numbers import read_number
from qed.runs.metric_names import rename_old_metrics
from qed.viewer.cards import LONGEST, build_card
from qed.viewer.cleaning import clean_value
from qed.viewer.curves import NAMES
from qed.viewer.details import list_answer_steps
from qed.viewer.library import Library
from qed.viewer.line_file import Row, parse_line, read_last_rows
from qed.viewer.params import Params, Refused
from qed.viewer.replies import encode_reply
from qed.viewer.threads import call_in_thread

SECONDS = 1.0  # between two polls
QUIET_LOOKS = 10  # polls without news after which a comment keeps the connection open
MOST_BYTES = 4_000_000  # of a file that are read in one poll
LAST_BYTES = 65_536  # of the metrics, whose rows are sent first
PLACES = re.compile(r"(\d{1,15})-(\d{1,15})")  # the id of an event: positions in the metrics and in the events
VOLATILE = ("updated",)  # fields of a card that change without news

Message = tuple[str, dict[str, Any]]


class GrowingFile:
    """The rows that are appended to a JSON lines file.

    Args:
        path: the file, which need not exist.
        place: the byte at which new rows begin; None for the end of the last complete line.
    """

    def __init__(self, path: Path, place: int | None = None) -> None:
        self.path = path
        self.place = _find_end(path) if place is None else place

    def read(self) -> list[Row]:
        """Return the new rows; leave an incomplete last line for later, and skip damaged ones."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                # A resumed run truncated its file to its checkpoint.
                self.place = min(self.place, size)
                file.seek(self.place)
                content = file.read(MOST_BYTES)
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and len(content) == MOST_BYTES:
            whole = content  # skip a line that does not end
        self.place += len(whole)
        return [row for line in whole.split(b"\n") if (row := parse_line(line)) is not None]


def _find_end(path: Path) -> int:
    """Return the end of the last complete line of a file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - MOST_BYTES)
            file.seek(start)
            return start + file.read(MOST_BYTES).rfind(b"\n") + 1
    except OSError:
        return 0


class RunTail:
    """The end of a run. A run that has ended is polled once, because it may have been live when its page was loaded.

    Args:
        library: the runs.
        params: `run`, and `after`, the last step that the listener has. Without it, the last rows are sent first, some
            of which the listener may have, because it read the metrics before it began to listen.
        resume: the id of the last event that the listener received, if it was disconnected.

    Raises:
        Refused: there is no such run.
    """

    def __init__(self, library: Library, params: Params, resume: str = "") -> None:
        self.library, self.run = library, library.find(params.text("run"))
        metrics, events = (self.run.locate(name) for name in ("metrics.jsonl", "events.jsonl"))
        found = PLACES.fullmatch(resume)
        places = (int(found[1]), int(found[2])) if found else (None, None)
        self.metrics, self.events = GrowingFile(metrics, places[0]), GrowingFile(events, places[1])
        self.missed: list[Row] = []
        if found is None and metrics.is_file():
            after = params.number("after", 0)
            last = read_last_rows(metrics, MOST_BYTES if "after" in params else LAST_BYTES)
            self.missed = [row for row in last if _read_step(row) > after]
        self.steps = list_answer_steps(self.run)
        self.card = build_card(library, self.run)
        if self.card["status"] != "live":
            self.card = {}  # so that the first poll reports how the run ended
        self.is_live = True

    @property
    def place(self) -> str:
        """The id of an event, from which a disconnected listener can resume."""
        return f"{self.metrics.place}-{self.events.place}"

    def look(self) -> list[Message]:
        """Return what is new since the last poll."""
        messages: list[Message] = []
        rows, self.missed = [*self.missed, *self._read_new(self.metrics)], []
        if rows:
            messages.append(("metrics", {"rows": [_describe_row(rename_old_metrics(row)) for row in rows]}))
        steps = list_answer_steps(self.run)
        if steps != self.steps:
            messages.append(("steps", {"steps": steps}))
        self.steps = steps
        if events := self._read_new(self.events):
            messages.append(("events", {"events": [clean_value(event) for event in events]}))
        before, self.card = self.card, build_card(self.library, self.run)
        if _drop_volatile(self.card) != _drop_volatile(before):
            messages.append(("status", {"card": self.card}))
        self.is_live = self.card["status"] == "live"
        if not self.is_live:
            self.run.locate()  # raises if the folder is gone: the card would look like that of a run that has ended
        return messages

    def _read_new(self, file: GrowingFile) -> list[Row]:
        """Return the new rows of a file; none once it is a link.

        Raises:
            Refused: it has become a link that leads out of the run, or something that is not a file.
        """
        path = self.run.locate(*file.path.relative_to(self.run.folder).parts)
        return file.read() if path == file.path else []


async def stream_events(tail: RunTail) -> AsyncIterator[bytes]:
    """Yield the events of a run until it ends or its folder is gone; the last event is `end`."""
    yield b"retry: 5000\n\n"
    quiet = 0
    while True:
        try:
            messages = await call_in_thread(tail.look)
        except Refused as error:
            yield _format_event("end", encode_reply({"error": str(error)}), tail.place)
            return
        for name, content in messages:
            yield _format_event(name, encode_reply(content), tail.place)
        if not tail.is_live:
            yield _format_event("end", b"{}", tail.place)
            return
        quiet = 0 if messages else quiet + 1
        if quiet and quiet % QUIET_LOOKS == 0:
            yield b": still live\n\n"
        await asyncio.sleep(SECONDS)


def _format_event(name: str, content: bytes, place: str) -> bytes:
    """Return an event; its data is one line, because the JSON has no line breaks."""
    return b"id: " + place.encode() + b"\nevent: " + name.encode() + b"\ndata: " + content + b"\n\n"


def _drop_volatile(card: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in card.items() if name not in VOLATILE}


def _describe_row(row: Row) -> Row:
    """Return the step, the phase and the numbers of a row of metrics."""
    numbers = {name: read_number(value) for name, value in row.items() if name not in NAMES}
    known = {name: number for name, number in numbers.items() if number is not None}
    return {"step": _read_step(row), "phase": str(row.get("phase", ""))[:LONGEST], **known}


def _read_step(row: Row) -> int:
    step = row.get("step")
    return step if isinstance(step, int) else -1
