"""Compile the C++ files of this folder for this CPU, once, into the user's cache.

This takes a few seconds to more than a minute. Without a compiler qed computes the same with torch's operators.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from qed import host
from qed.guards.signals import check_signals
from qed.kernels.commands import POINT, CommandError, Patience, run_commands

SOURCES = Path(__file__).parent
# Sums keep the order of the source, and NaN stays NaN: no option here lets the compiler assume otherwise.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-Wno-psabi", "-fopenmp", "-fPIC")
FORMAT = 2  # of the compiled files; a file is never replaced by one of another format, because processes use it
PATIENCE = 180  # seconds for compiling all files: on a busy core it takes more than a minute
DAY = 24 * 3600  # seconds before a compiler that timed out, or whose result is useless, is tried again
LOOK = 0.1  # seconds between two checks of a lock
ROOM = 4 << 20  # bytes of free disk space, more than compiling needs
GAVE_UP, LOCK = ".gave-up", ".lock"  # file name extensions; the first file says why
OTHER_COMPILER = "Set the environment variable CXX to a working C++ compiler, or leave it unset."
OTHER_CACHE = f"Set the environment variable {host.CACHE} to a folder that you can write to and run programs from."


class Build(NamedTuple):
    """The compiled functions, or the reason why there are none and what to do about it."""

    library: ctypes.CDLL | None
    reason: str
    advice: str = ""


class _Missing(Exception):
    """Raised when there are no C++ functions, with the reason and the advice."""


class _Plan(NamedTuple):
    """The compiler, the file of the compiled functions, and whether the file already exists."""

    compiler: list[str]
    target: Path
    ready: bool


def will_compile() -> bool:
    """Return whether `load_library` will run the compiler, which takes a few seconds to more than a minute."""
    try:
        return not _make_plan().ready
    except _Missing:
        return False


@cache
def load_library() -> Build:
    """Load the functions, and compile them first if the cache has none for this CPU."""
    try:
        plan = _make_plan()
        if not plan.ready:
            _compile(plan)
        return Build(ctypes.CDLL(str(plan.target)), "")
    except _Missing as error:
        return Build(None, *error.args)
    except OSError as error:
        return Build(None, str(error), OTHER_CACHE)


def _make_plan() -> _Plan:
    """Find the compiler, and the file in the cache.

    Raises:
        _Missing: there is no compiler or no place for the file, or a recent attempt failed.
    """
    if platform.system() != "Linux":
        raise _Missing("the C++ functions require Linux")
    compiler = _find_compiler()
    if not compiler:
        raise _Missing("there is no C++ compiler (g++)")
    if not (program := shutil.which(compiler[0])):
        raise _Missing(f"CXX names {compiler[0]!r}, which is not found", OTHER_COMPILER)
    try:
        target = host.find_cache() / "kernels" / f"{_hash_inputs(compiler)}.so"
        ready = _is_complete(target)
        if not ready:
            _open_folder(target.parent)
            _check_last_attempt(target, program)
            _test_folder(target.parent)
    except OSError as error:
        raise _Missing(f"{error.filename} cannot be used: {error.strerror}", OTHER_CACHE) from error
    return _Plan(compiler, target, ready)


def _find_compiler() -> list[str]:
    try:
        return shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "")
    except ValueError as error:
        text = f"CXX is not a command: {error} in {os.environ.get('CXX', '')!r}"
        raise _Missing(text, OTHER_COMPILER) from error


def _hash_inputs(compiler: Sequence[str]) -> str:
    """Return a name made from everything the result depends on, because machines may share a home folder."""
    processor = sorted({value for name, value in host.read_cpuinfo() if name in ("model name", "flags", "Features")})
    inputs = hashlib.sha256(repr((FORMAT, compiler, FLAGS, SHARED, platform.machine(), processor)).encode())
    for path in (*sorted(SOURCES.glob("*.cpp")), *sorted(SOURCES.glob("*.h"))):
        inputs.update(path.read_bytes())
    return inputs.hexdigest()[:16]


def _is_complete(file: Path) -> bool:
    """Return whether a file ends with the hash of its content: loading a truncated library would kill the process.

    The system's loader ignores what follows a library.
    """
    with suppress(OSError):
        content = file.read_bytes()
        size = hashlib.sha256().digest_size
        return len(content) > size and hashlib.sha256(content[:-size]).digest() == content[-size:]
    return False


def _open_folder(folder: Path) -> None:
    """Create a folder that other users can read, and check that this user can write to it.

    Raises:
        OSError: it cannot be created or written to.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(folder.stat().st_mode | 0o055)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "you cannot write there", str(folder))


def _test_folder(folder: Path) -> None:
    """Check that there is disk space and that programs in a folder can run, before the compiler spends its time.

    Raises:
        OSError: the disk is full, or does not allow programs to run.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
            file.flush()
            try:
                mmap.mmap(file.fileno(), 1, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
            except OSError as error:
                raise OSError(error.errno, f"programs do not run there ({error.strerror})") from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _record_failure(target: Path, reason: str, advice: str) -> _Missing:
    """Record why there will be no other attempt for a day, and return the exception to raise."""
    marker = target.with_suffix(GAVE_UP)
    failure = _Missing(reason, f"The next attempt is after a day, or once you remove {marker}. {advice}")
    _write_note(marker, failure)
    return failure


def _check_last_attempt(target: Path, program: str) -> None:
    """Check that no recent attempt failed.

    Raises:
        _Missing: an attempt with this compiler, unchanged since then, failed within the last day.
    """
    marker = target.with_suffix(GAVE_UP)
    with suppress(OSError):
        since = marker.stat().st_mtime
        if Path(program).stat().st_ctime <= since and 0 <= time.time() - since < DAY:
            unknown = "the last attempt failed", f"The next attempt is after a day, or once you remove {marker}."
            raise _Missing(*_read_note(marker) or unknown)  # the file is empty if the disk was full


def _write_note(file: Path, failure: _Missing) -> None:
    with suppress(OSError):
        file.write_text("\n".join(failure.args), encoding="utf-8", errors="replace")


def _read_note(file: Path) -> list[str]:
    """Read the reason and the advice that `_write_note` wrote; empty if there are none."""
    text = file.read_text(encoding="utf-8", errors="replace")
    return text.split("\n", 1) if text else []


def _compile(plan: _Plan) -> None:
    """Compile, unless another process does, and move the result to its place.

    Raises:
        OSError: the cache cannot be written to.
        Interrupted: a stop signal arrived.
        _Missing: the compiler could not be started, failed, timed out, or wrote a file that cannot be loaded.
    """
    _remove_leftovers(plan.target.parent)
    try:
        with _take_turn(plan.target):
            if not _is_complete(plan.target):
                _call_compiler(plan.compiler, plan.target)
    except (OSError, _Missing):
        if not _is_complete(plan.target):  # otherwise another process has put it there in the meantime
            raise


@contextmanager
def _take_turn(target: Path) -> Iterator[None]:
    """Let one process at a time compile a file, if the file system has locks.

    Raises:
        _Missing: this process waited for another one, which failed or took too long.
    """
    lock = target.with_suffix(LOCK)
    try:
        file = lock.open("ab")
    except OSError:
        yield
        return
    with file:
        if _wait_for_lock(file) and not _is_complete(target) and (note := _read_note(lock)):
            raise _Missing(*note)
        with suppress(OSError):
            file.truncate(0)
        try:
            yield
        except _Missing as failure:
            _write_note(lock, failure)
            raise
        with suppress(OSError):
            lock.unlink()  # processes that wait for it find the library


def _wait_for_lock(file: IO[bytes]) -> bool:
    """Wait for a lock, and return whether another process had it. The kernel releases the lock of a process that ends.

    Raises:
        _Missing: the other process holds it for too long.
    """
    patience, waited = Patience(PATIENCE), False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            waited = True
        except OSError:  # the file system has no locks: each process compiles for itself
            return False
        check_signals(POINT, progress=False)
        if patience.is_over():
            reason = f"another process has been compiling them for more than {PATIENCE} seconds"
            raise _Missing(reason, "The next command looks for them again.")
        time.sleep(LOOK)


def _call_compiler(compiler: Sequence[str], target: Path) -> None:
    """Compile in a temporary folder, one file on each core. A complete library is not replaced."""
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda path: -path.stat().st_size)  # those that take longest first
    # A killed compiler may have left processes that still write, so removing the folder may fail.
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as folder:
        objects = [os.path.join(folder, f"{path.stem}.o") for path in sources]
        made, messages, patience = Path(folder, target.name), Path(folder, "messages"), Patience(PATIENCE)
        commands = [
            [*compiler, *FLAGS, *SHARED, "-c", str(source), "-o", out]
            for source, out in zip(sources, objects, strict=True)
        ]
        try:
            run_commands(commands, messages, patience)
            run_commands([[*compiler, *SHARED, "-shared", *objects, "-o", str(made)]], messages, patience)
        except CommandError as error:
            raise _Missing(str(error), OTHER_COMPILER) from error
        except TimeoutError as error:
            reason = f"{compiler[0]} did not finish within {PATIENCE} seconds"
            raise _record_failure(target, reason, OTHER_COMPILER) from error
        try:
            _seal(made)
            ctypes.CDLL(str(made))
        except OSError as error:
            advice = f"{OTHER_COMPILER} If {target.parent} is full or does not allow programs to run: {OTHER_CACHE}"
            raise _record_failure(target, f"the output of {compiler[0]} cannot be loaded: {error}", advice) from error
        if not _is_complete(target):
            os.replace(made, target)


def _seal(library: Path) -> None:
    """Append the hash that `_is_complete` checks, and flush the file to disk. All users can read it."""
    with library.open("r+b") as file:
        digest = hashlib.sha256(file.read()).digest()
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())
    library.chmod(0o755)


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of killed processes, and old records of failed attempts."""
    for path in (*folder.glob("tmp*"), *folder.glob(f"*{GAVE_UP}")):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAY:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
