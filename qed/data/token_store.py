"""Tokenised rows on disk: token ids, offsets and prompt lengths in flat files that NumPy memory-maps.

A store is a folder in the cache, named by a hash of its inputs (`qed.data.demonstrations`). It is written under a
temporary name and renamed, so it is complete or absent. If several processes need the same store, one writes it and the
others wait.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qed.guards.signals import check_signals
from qed.types import Column

SIZES = "sizes.json"
KEPT_DAYS = 30  # a store unused for this long is removed when another one is written
WAIT = 0.2  # seconds between attempts to take another process's lock

TYPES: Mapping[str, Any] = {
    "tokens": np.int32,  # [T]: the prompt and the reply of each row
    "offsets": np.int64,  # [N + 1]: start of each row
    "prompt_lengths": np.int32,  # [N]
    "numbers": np.int64,  # [N]: index of each row's problem
    "verbatim": np.int8,  # [N]: 1 if the reply is the data's own text
}


class TokenRow(NamedTuple):
    """A row before it is stored: the index of its problem, token ids, and whether the reply is the data's own text."""

    number: int
    prompt: list[int]
    reply: list[int]
    verbatim: bool


@dataclass(frozen=True, eq=False)
class TokenStore:
    """N rows with T token ids in total; see `TYPES` for the arrays. Arrays on disk are memory-mapped, read-only."""

    tokens: np.ndarray
    offsets: np.ndarray
    prompt_lengths: np.ndarray
    numbers: np.ndarray
    verbatim: np.ndarray

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.numbers)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each row, prompt and reply, [N] int64."""
        lengths: np.ndarray = np.diff(self.offsets)
        return lengths

    def read(self, row: int) -> tuple[Column[int], Column[int]]:
        """Return copies of the token ids of a row's prompt and reply."""
        begin, end = int(self.offsets[row]), int(self.offsets[row + 1])
        middle = begin + int(self.prompt_lengths[row])
        return pack_ids(self.tokens[begin:middle]), pack_ids(self.tokens[middle:end])


def pack_ids(ids: np.ndarray) -> Column[int]:
    """Return a copy of int32 token ids as a column of a rollout."""
    return Column(array("i", ids.tobytes()))


def build_store(rows: Iterable[TokenRow]) -> TokenStore:
    """Build a store in memory."""
    tokens, arrays = array("i"), _Arrays()
    for row in rows:
        tokens.frombytes(arrays.add(row).tobytes())
    return TokenStore(np.frombuffer(tokens, np.int32), **arrays.finish())


def open_store(folder: Path, make: Callable[[], Iterable[TokenRow]], say: Callable[[str], None]) -> TokenStore:
    """Open a store, writing it first if it is missing or damaged.

    Args:
        folder: folder of the store.
        make: yields the rows; called only if the store must be written.
        say: prints a line.

    Raises:
        OSError: the store can be neither read nor written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if (store := read_store(folder)) is None:
        with _lock(folder, say) as held:
            store = read_store(folder)  # another process may have written it in the meantime
            if store is None:
                if held:
                    _remove_leftovers(folder)
                store = _write_store(folder, make())
    with suppress(OSError):
        os.utime(folder)  # marks the last use
    return store


def read_store(folder: Path) -> TokenStore | None:
    """Memory-map a store; return None if there is none, or if its files do not have the sizes that were written."""
    try:
        sizes = json.loads((folder / SIZES).read_bytes())
        files = {name: folder / f"{name}.bin" for name in TYPES}
        if any(files[name].stat().st_size != sizes[name] * np.dtype(TYPES[name]).itemsize for name in TYPES):
            return None
        # As plain arrays, because slices of np.memmap are slow; an empty file cannot be mapped.
        tokens = np.asarray(np.memmap(files["tokens"], np.int32, "r")) if sizes["tokens"] else np.zeros(0, np.int32)
        small = {name: np.fromfile(files[name], TYPES[name]) for name in TYPES if name != "tokens"}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    store = TokenStore(tokens, **small)
    return store if _is_consistent(store) else None


def _is_consistent(store: TokenStore) -> bool:
    """Return whether offsets and lengths match the number of tokens."""
    if not len(store.offsets) - 1 == len(store.prompt_lengths) == len(store.numbers) == len(store.verbatim):
        return False
    ends = int(store.offsets[0]) == 0 and int(store.offsets[-1]) == len(store.tokens)
    return ends and bool((store.lengths > store.prompt_lengths).all() and (store.prompt_lengths >= 0).all())


class _Arrays:
    """The small arrays of a store that is being built."""

    def __init__(self) -> None:
        self.offsets, self.prompt_lengths = array("q", [0]), array("i")
        self.numbers, self.verbatim = array("q"), array("b")

    def add(self, row: TokenRow) -> array[int]:
        """Add a row, and return its token ids."""
        self.numbers.append(row.number)
        self.verbatim.append(row.verbatim)
        self.prompt_lengths.append(len(row.prompt))
        self.offsets.append(self.offsets[-1] + len(row.prompt) + len(row.reply))
        return array("i", row.prompt) + array("i", row.reply)

    def finish(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {name: np.frombuffer(values, TYPES[name]) for name, values in vars(self).items()}


def _write_store(folder: Path, rows: Iterable[TokenRow]) -> TokenStore:
    """Write a store under a temporary name, rename it, and read it."""
    temporary = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        arrays = _Arrays()
        with (temporary / "tokens.bin").open("wb") as file:
            for row in rows:
                file.write(arrays.add(row))
            _flush(file)
        for name, values in arrays.finish().items():
            with (temporary / f"{name}.bin").open("wb") as file:
                file.write(values.data)
                _flush(file)
        sizes = {"tokens": arrays.offsets[-1], **{name: len(values) for name, values in vars(arrays).items()}}
        (temporary / SIZES).write_text(json.dumps(sizes) + "\n", encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.exists():  # without file locks, another process may have been first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if (store := read_store(folder)) is None:
        raise OSError("it is not readable after it was written")
    return store


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _remove_leftovers(folder: Path) -> None:
    """Remove a damaged store, leftovers of its killed writers, and stores that have not been used for long."""
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for other in list(folder.parent.iterdir()):
        own = other == folder or other.name.startswith(f".{folder.name}-")
        with suppress(OSError):
            if other.is_dir() and (own or other.stat().st_mtime < oldest):
                shutil.rmtree(other, ignore_errors=True)


@contextmanager
def _lock(folder: Path, say: Callable[[str], None]) -> Iterator[bool]:
    """Wait for the lock of a store, and yield whether it is held. The kernel releases it when its process ends."""
    with folder.with_name(f"{folder.name}.lock").open("ab") as file:
        held = waited = False
        while not held:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                if not waited:
                    say(f"Another process is tokenising the same data; waiting for {folder}.")
                waited = True
                check_signals("load")
                time.sleep(WAIT)
            except OSError:  # the file system has no locks: the first to rename its store wins
                break
        yield held
