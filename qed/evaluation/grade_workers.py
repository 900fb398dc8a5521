"""Grade large files of JSON lines in several processes, each of which reads, grades and encodes whole chunks of lines.

The process that writes the result parses no row. A worker reads its lines from the file, where these are ASCII, and
leaves its rows in a temporary file: JSON in JSON would cost as much as a third of the grading. What a worker cannot do,
because it was killed or could not be started, this process does itself.
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
from qed.evaluation.grade_files import Summary, check_lists, expand_checked, grade_rows
from qed.evaluation.map_ahead import map_ahead
from qed.grading.fork_server import ForkServer
from qed.grading.policy import PolicyName, find_policy
from qed.grading.session import FailedError, Limits, NotLoadedError, Session, TimedOutError

MIN_BYTES = 16 << 20  # of files whose rows take longer than the workers to load
CHUNK_CHARS = 1 << 19  # some hundred rows: a worker that ends early waits for little
MAX_WORKERS = 8
# A verdict does bounded work, so that no chunk needs a limit of its own: these end a worker that hangs all the same.
GARBAGE = 50_000  # objects in a worker after which garbage is looked for
LIMITS = Limits(cpu=600.0, wall=3600.0)


@dataclass(frozen=True)
class Comparison:
    """How rows are graded, see `GradeJob`: the columns of gold and answer, the extraction, the lists, the policy.

    `written` says whether the graded rows are wanted, and not only their counts.
    """

    keys: tuple[str, str]
    mode: str
    lists: str
    policy: PolicyName
    written: bool


class Chunk(NamedTuple):
    """Adjacent lines of a file, and the number of the first one.

    `text` has the lines; it is empty where they are the bytes from `start` to `end` of the file. `out` is the file for
    the graded rows.
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
    """The counts of a chunk's rows, and the graded rows as lines of JSON if they are wanted.

    `error` says why the rows end before the lines.
    """

    lines: str
    fields: dict[str, Any]
    error: str

    def add_to(self, summary: Summary, writer: Writer | None, rewarded: bool) -> None:
        """Count the rows, and write them.

        Raises:
            DataError: a row cannot be graded; those before it are counted and written.
        """
        summary.merge(self.fields)
        if writer is not None:
            writer.add_lines(self.lines)
        if self.error:
            raise DataError(self.error)


def count_workers(files: Iterable[str]) -> int:
    """Return how many processes grade files; 1 if this one does, because they are small or not of JSON lines."""
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
        server.start()  # it loads while the first rows are looked at
        chunks, first = iter(_split_files(files)), list[Chunk]()
        check_lists(_read_first(chunks, first), comparison.keys, comparison.lists)
        with tempfile.TemporaryDirectory(prefix="qed-grade-", ignore_cleanup_errors=True) as folder:
            numbered = enumerate(chain(first, chunks))
            placed = (chunk._replace(out=os.path.join(folder, str(number))) for number, chunk in numbered)
            yield from map_ahead(threads, partial(_grade_chunk, server, idle, comparison), placed, 2 * workers)
    finally:  # an interrupt does not wait for the chunks that are being graded
        threads.shutdown(wait=False, cancel_futures=True)
        server.close()


def _split_files(files: Iterable[str]) -> Iterator[Chunk]:
    for name in files:
        text, start, number = read_text(Path(name)), 0, 1
        # Then a character is a byte of the file, which is not compressed and has no byte order mark.
        plain = text.isascii() and len(text) == Path(name).stat().st_size
        while start < len(text):
            end = text.find("\n", start + CHUNK_CHARS) + 1 or len(text)
            yield Chunk(name, number, start, end, "" if plain else text[start:end])
            start, number = end, number + text.count("\n", start, end)


def _read_first(chunks: Iterator[Chunk], taken: list[Chunk]) -> Rows:
    """Yield the rows of chunks, which are kept in a list."""
    for chunk in chunks:
        taken.append(chunk)
        yield from _read_chunk(chunk)


def _read_chunk(chunk: Chunk) -> Rows:
    for number, row in parse_lines(Path(chunk.name), chunk.read(), chunk.first):
        yield Place(chunk.name, number), row


def _grade_chunk(server: ForkServer, idle: deque[Session], comparison: Comparison, chunk: Chunk) -> GradedChunk:
    """Grade a chunk in an idle worker, or in a further one."""
    try:
        session = idle.pop() if idle else server.open_session()
        answer = session.ask(chunk)
    except (TimedOutError, FailedError, NotLoadedError):
        answer = _grade_lines(comparison, chunk)
    else:
        idle.append(session)
    return GradedChunk(_take_lines(Path(chunk.out)) if comparison.written else "", *answer)


def _take_lines(out: Path) -> str:
    """Return what a file holds, and remove it."""
    lines = out.read_text(encoding="ascii")
    out.unlink()
    return lines


def _grade_lines(comparison: Comparison, chunk: Chunk) -> tuple[dict[str, Any], str]:
    """Grade the lines of a chunk, write the rows that are wanted, and return the other fields of a `GradedChunk`."""
    summary, lines, error = Summary(), list[str](), ""
    rows = expand_checked(_read_chunk(chunk), comparison.keys, comparison.lists)
    policy = find_policy(comparison.policy)
    try:
        for graded in grade_rows(rows, comparison.keys, comparison.mode, (None, ()), 1, policy):
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
    gc.freeze()  # what is loaded is no garbage, and answers leave little behind that refers to itself
    gc.set_threshold(GARBAGE)
    comparison = Comparison(**{**fields, "keys": tuple(fields["keys"])})
    return None, lambda chunk: _grade_lines(comparison, Chunk(*chunk))
