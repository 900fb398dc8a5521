"""Read the text of a data file, plain or compressed, in UTF-8, UTF-16 or Latin-1."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import zstandard

from qed.console.live import Console
from qed.errors import DataError

NAMES = {"utf-8-sig": "UTF-8", "windows-1252": "windows-1252 (latin-1)"}  # names of encodings in messages
BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x19\x1c-\x1f]")  # control characters that do not occur in text
SAMPLE = 4096  # bytes examined to detect UTF-16 without a byte order mark

_told: set[str] = set()  # files whose encoding was reported


def _decompress_zst(raw: bytes) -> bytes:
    """Decompress all frames of a file; zstandard's own functions stop after the first, or accept a partial frame."""
    parts: list[bytes] = []
    while raw or not parts:
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts.append(frame.decompress(raw))
        if not frame.eof:
            raise ValueError("the last frame is incomplete")
        raw = frame.unused_data
    return b"".join(parts)


DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": _decompress_zst,
}


def read_bytes(file: Path) -> bytes:
    """Return the bytes of a file, decompressed if its suffix says so.

    Raises:
        DataError: the file cannot be read or decompressed.
    """
    try:
        raw = file.read_bytes()
        return DECOMPRESS.get(file.suffix.lower(), bytes)(raw)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def read_text(file: Path) -> str:
    """Return the text of a file; an encoding other than UTF-8 is reported on stderr.

    Raises:
        DataError: the file cannot be read, or is neither UTF-8, UTF-16 nor Latin-1.
    """
    raw = read_bytes(file)
    encoding = guess_encoding(raw)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        name = NAMES.get(encoding, encoding)
        raise DataError(f"{file}, line {line}: not {name} text ({error.reason}). Save the file as UTF-8.") from error
    if encoding != "utf-8-sig" and str(file) not in _told:
        _told.add(str(file))
        name = NAMES.get(encoding, encoding)
        Console(json=True).say(f"{file} is not UTF-8: read as {name}. Save it as UTF-8 if its letters look wrong.")
    return text


def guess_encoding(raw: bytes) -> str:
    """Return the encoding of a text: UTF-8, UTF-16 with or without a byte order mark, Windows-1252 or Latin-1.

    A file with both valid and invalid non-ASCII UTF-8 is damaged UTF-8, and one with control characters is not text;
    for these return UTF-8 too, so that decoding fails with the position.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding, zeros in (("utf-16-le", raw[1:SAMPLE:2]), ("utf-16-be", raw[0:SAMPLE:2])):
        if zeros and zeros.count(0) > 0.8 * len(zeros):
            return encoding
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Invalid bytes become lone surrogates; all other non-ASCII characters are valid UTF-8.
        valid = re.search("[\x80-\ud7ff\ue000-\U0010ffff]", raw.decode("utf-8", "surrogateescape"))
        if not valid and not BINARY.search(raw):
            return "latin-1" if set(raw) & {0x81, 0x8D, 0x8F, 0x90, 0x9D} else "windows-1252"
    return "utf-8-sig"
