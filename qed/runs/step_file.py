"""Stream JSON lines files, compressed or not, in bounded memory.

A step's answers, `rollouts/step_000010.jsonl.zst`, have a separate zstd frame for each group, so that one group can be
read without the others.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from qed.errors import DataError
from qed.runs.manifest import parse_step

Row = dict[str, Any]
SUFFIX = ".zst"
ANSWERS = ".jsonl.zst"  # the ending of a step's answers
LEVEL = 3
READ_BYTES = 1 << 20
# A block of zeros takes 4 bytes and expands to 128 KiB, so a piece of this size expands to 32 MiB at most.
PIECE_BYTES = 1 << 10
MAX_LINE = 1 << 28  # bytes; the row of an answer of a million tokens takes about 3 % of them
MAX_VALUES = 1 << 24  # of a row; each takes up to 60 bytes of memory


def name_step_file(step: int) -> str:
    """Return the path of a step's answers within the run's folder."""
    return f"rollouts/step_{step:06d}{ANSWERS}"


def parse_step_file(name: str) -> int | None:
    """Return the step in the name of a step's answers; None for any other name."""
    step, dot, ending = name.partition(".")
    return parse_step(step) if dot + ending == ANSWERS else None


def compress_frame(content: bytes) -> bytes:
    """Compress bytes to a zstd frame."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(content)


def iterate_lines(data: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, without their line ends; skip an incomplete last line.

    Only line feeds end a line: model text may contain other Unicode line separators.

    Raises:
        DataError: the file is damaged.
        OSError: the file cannot be opened.
    """
    with data.open("rb") as file:
        try:
            yield from split_lines(FrameReader(file, data.suffix == SUFFIX))
        except (ValueError, zstandard.ZstdError) as error:
            raise explain_damage(data, error) from error


def explain_damage(data: Path, error: Exception, line: int = 0) -> DataError:
    """Build the error for a file that cannot be read.

    Args:
        data: the file.
        error: the reason.
        line: the line number, counted from 1; 0 if unknown.
    """
    where = f", line {line}," if line else ""
    return DataError(f"{data}{where} cannot be read: {error}. Restore it from a copy, or delete it.")


def parse_row(line: bytes) -> Row:
    """Parse a line of a JSON lines file; a blank line is an empty row.

    Raises:
        ValueError: it is damaged, or not a row with columns.
    """
    if len(line) > MAX_VALUES and sum(map(line.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
    try:
        row = json.loads(line) if line.strip() else {}
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected a row with columns, found {type(row).__name__}")
    return row


def read_span(file: BinaryIO, offset: int, skip: int, size: int, compressed: bool) -> bytes:
    """Read a part of a file.

    Args:
        file: the file.
        offset: where the part, or its first frame, begins in the file.
        skip: bytes of the frame's content before the part.
        size: the size of the part in bytes.
        compressed: whether the file consists of zstd frames.

    Returns:
        The part; shorter if the file ends earlier.
    """
    if not compressed:
        file.seek(offset + skip)
        return file.read(size)
    file.seek(offset)
    pieces: list[bytes] = []
    with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False) as reader:
        while skip and (piece := reader.read(min(skip, READ_BYTES))):
            skip -= len(piece)
        while size and (piece := reader.read(min(size, READ_BYTES))):
            size -= len(piece)
            pieces.append(piece)
    return b"".join(pieces)


class FrameReader:
    """Iterates over the content of a file in pieces, and records where its frames begin.

    Args:
        file: the file, positioned at its beginning.
        compressed: whether it consists of zstd frames; otherwise it counts as one frame.
    """

    def __init__(self, file: BinaryIO, compressed: bool) -> None:
        self._file = file
        self.compressed = compressed
        self.size = 0  # bytes read from the file
        # Where each frame begins, in the file and in the content.
        self.offsets: list[int] = [0]
        self.begins: list[int] = [0]

    def __iter__(self) -> Iterator[bytes]:
        if not self.compressed:
            while piece := self._file.read(READ_BYTES):
                self.size += len(piece)
                yield piece
            return
        position, frame = 0, zstandard.ZstdDecompressor().decompressobj()
        while rest := self._file.read(PIECE_BYTES):
            self.size += len(rest)
            while rest:
                content = frame.decompress(rest)
                rest = frame.unused_data if frame.eof else b""
                position += len(content)
                if frame.eof:
                    self.offsets.append(self.size - len(rest))
                    self.begins.append(position)
                    frame = zstandard.ZstdDecompressor().decompressobj()
                if content:
                    yield content

    def find_frame(self, position: int) -> int:
        """Return the number of the frame that contains the byte at a position of the content read so far."""
        return bisect_right(self.begins, position) - 1

    def begins_frame(self, position: int) -> bool:
        """Return whether a frame begins at a position of the content read so far."""
        return self.begins[self.find_frame(position)] == position

    def find_end(self, frame: int) -> int:
        """Return where a frame ends in the file; for the last frame, the bytes read so far."""
        return self.offsets[frame + 1] if frame + 1 < len(self.offsets) else self.size


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Split pieces of a file into complete lines, without their line ends.

    Raises:
        ValueError: a line is longer than `MAX_LINE`.
    """
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *lines = piece.split(b"\n")
        held.append(first)
        size += len(first)
        if size > MAX_LINE:
            raise ValueError(f"a line is longer than {MAX_LINE >> 20} MiB")
        if lines:
            yield b"".join(held)
            yield from lines[:-1]
            held, size = [lines[-1]], len(lines[-1])


_encode_json = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps creates an encoder on every call


def encode_line(row: Row) -> str:
    """Encode a row as a line of a JSON lines file."""
    return _encode_json(row) + "\n"


def encode_lines(lines: str) -> bytes:
    """Encode JSON lines as UTF-8; lone surrogates, which UTF-8 cannot represent, become JSON escapes."""
    return lines.encode("utf-8", "backslashreplace")


def compress_rows(rows: Sequence[Row]) -> bytes:
    """Compress rows to one frame."""
    return compress_frame(encode_lines("".join(map(encode_line, rows))))
