"""Grade large JSON Lines files in several processes, each of which reads, grades and encodes whole chunks of lines.

The process that writes the result parses no rows. A worker reads ASCII lines directly from the file, and returns its
rows in a temporary file, because nesting JSON in JSON would cost up to a third of the grading time. If a worker was
killed or could not be started, this process grades its chunk itself.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from qed import host
from qed.data.sources import local
from qed.data.sources.json_files import parse_lines
from qed.data.sources.rows import Place, Rows
from qed.data.sources.texts import read_text
from qed.data.sources.writing import Writer, encode_row
from qed.errors import DataError
from qed.evaluation.answer_rows import check_lists, expand_checked
from qed.evaluation.grade_files import Summary, grade_groups
from qed.evaluation.map_ahead import map_ahead
from qed.grading.fork_server import ForkServer
from qed.grading.policy import PolicyName, find_policy
from qed.grading.session import FailedError, Limits, NotLoadedError, Session, TimedOutError

MIN_BYTES = 16 << 20  # smaller files are graded faster than workers start
CHUNK_CHARS = 1 << 19  # a few hundred rows, so that workers finish at about the same time
MAX_WORKERS = 8
# Grading does bounded work, so chunks need no limits of their own; LIMITS only ends a worker that hangs.
GARBAGE = 50_000  # garbage collection threshold of a worker, in objects
LIMITS = Limits(cpu=600.0, wall=3600.0)


@dataclass(frozen=True)
class Comparison:
    """How rows are graded, see `GradeJob`: the columns of gold and answer, the extraction, the lists, the policy.

    `written` says whether to return the graded rows, and not only their counts.
    """

    keys: tuple[str, str]
    mode: str
    lists: str
    policy: PolicyName
    written: bool


class Chunk(NamedTuple):
    """Consecutive lines of a file, and the number of the first one.

    `text` has the lines, or is empty if they are the bytes from `start` to `end` of the file. `out` is the file for the
    graded rows.
    """

    name: str
    first: int
    start: int
    end: int
    text: str
    out: str = ""

    def read(self) -> str:
        """Return the lines."""
        if self.text:
            return self.text
        with open(self.name, "rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start).decode("ascii")


@dataclass(frozen=True)
class GradedChunk:
    """The counts of a chunk's rows, and the graded rows as JSON Lines if requested.

    `error` says why grading stopped before the last line.
    """

    lines: str
    fields: dict[str, Any]
    error: str

    def add_to(self, summary: Summary, writer: Writer | None, rewarded: bool) -> None:
        """Count the rows, and write them.

        Raises:
            DataError: a row cannot be graded; the rows before it are counted and written.
        """
        summary.merge(self.fields)
        if writer is not None:
            writer.add_lines(self.lines)
        if self.error:
            raise DataError(self.error)


def count_workers(files: Iterable[str]) -> int:
    """Return how many processes grade the files; 1 (this process) if they are small or not JSON Lines."""
    paths = [Path(name) for name in files]
    if not all(map(local.has_lines, paths)) or sum(path.stat().st_size for path in paths) < MIN_BYTES:
        return 1
    return max(1, min(MAX_WORKERS, host.count_usable_cores()))


def grade_in_workers(files: Iterable[str], comparison: Comparison, workers: int) -> Iterator[GradedChunk]:
    """Yield the graded chunks of files, in order.

    Raises:
        DataError: a file is broken, or its first rows have no answers, see `expand_lists`.
    """
    server = ForkServer("qed.evaluation.grade_workers:serve", [asdict(comparison)], LIMITS, beside=False)
    threads, idle = ThreadPoolExecutor(workers), deque[Session]()
    try:
        server.start()  # it loads while the first rows are checked
        chunks, first = iter(_split_files(files)), list[Chunk]()
        check_lists(_read_first(chunks, first), comparison.keys, comparison.lists)
        with tempfile.TemporaryDirectory(prefix="qed-grade-", ignore_cleanup_errors=True) as folder:
            numbered = enumerate(chain(first, chunks))
            placed = (chunk._replace(out=os.path.join(folder, str(number))) for number, chunk in numbered)
            yield from map_ahead(threads, partial(_grade_chunk, server, idle, comparison), placed, 2 * workers)
    finally:  # on an interrupt, do not wait for the chunks in progress
        threads.shutdown(wait=False, cancel_futures=True)
        server.close()


def _split_files(files: Iterable[str]) -> Iterator[Chunk]:
    for name in files:
        text, start, number = read_text(Path(name)), 0, 1
        # Then characters are bytes of the file, which is not compressed and has no byte order mark.
        plain = text.isascii() and len(text) == Path(name).stat().st_size
        while start < len(text):
            end = text.find("\n", start + CHUNK_CHARS) + 1 or len(text)
            yield Chunk(name, number, start, end, "" if plain else text[start:end])
            start, number = end, number + text.count("\n", start, end)


def _read_first(chunks: Iterator[Chunk], taken: list[Chunk]) -> Rows:
    """Yield the rows of chunks, and append the chunks to `taken`."""
    for chunk in chunks:
        taken.append(chunk)
        yield from _read_chunk(chunk)


def _read_chunk(chunk: Chunk) -> Rows:
    for number, row in parse_lines(Path(chunk.name), chunk.read(), chunk.first):
        yield Place(chunk.name, number), row


def _grade_chunk(server: ForkServer, idle: deque[Session], comparison: Comparison, chunk: Chunk) -> GradedChunk:
    """Grade a chunk in an idle worker, or start another one."""
    try:
        session = idle.pop() if idle else server.open_session()
        answer = session.ask(chunk)
    except (TimedOutError, FailedError, NotLoadedError):
        answer = _grade_lines(comparison, chunk)
    else:
        idle.append(session)
    return GradedChunk(_take_lines(Path(chunk.out)) if comparison.written else "", *answer)


def _take_lines(out: Path) -> str:
    """Return the content of a file, and delete it."""
    lines = out.read_text(encoding="ascii")
    out.unlink()
    return lines


def _grade_lines(comparison: Comparison, chunk: Chunk) -> tuple[dict[str, Any], str]:
    """Grade the lines of a chunk, write the rows if requested, and return the other fields of a `GradedChunk`."""
    summary, lines, error = Summary(), list[str](), ""
    rows = expand_checked(_read_chunk(chunk), comparison.keys, comparison.lists)
    groups, policy = ([each] for each in rows), find_policy(comparison.policy)
    try:
        for graded in grade_groups(groups, comparison.keys, comparison.mode, (None, ()), 1, policy):
            summary.add(graded)
            if comparison.written:
                lines.append(encode_row(graded.as_row(rewarded=False)))
    except DataError as broken:
        error = str(broken)
    if comparison.written:
        Path(chunk.out).write_text("".join(lines), encoding="ascii")
    return summary.as_fields(), error


def serve(fields: dict[str, Any]) -> tuple[None, Callable[[list[Any]], Any]]:
    """Load the grader in a worker, and return the function that grades a chunk."""
    gc.freeze()  # loaded modules are no garbage, and grading leaves few reference cycles
    gc.set_threshold(GARBAGE)
    comparison = Comparison(**{**fields, "keys": tuple(fields["keys"])})
    return None, lambda chunk: _grade_lines(comparison, Chunk(*chunk))
