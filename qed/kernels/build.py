"""Compiles the C++ files of this folder with the instructions of this processor, once, into the user's cache.

That takes some seconds to more than a minute. Without a compiler qed computes the same by torch's operators.
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
# Sums are in the order that the files write, and NaN stays NaN: no option here lets the compiler assume otherwise.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-Wno-psabi", "-fopenmp", "-fPIC")
FORMAT = 2  # of the compiled files; a file is never replaced by one of another format, because processes use it
PATIENCE = 180  # seconds for the compiler, all files together: on a busy core it takes more than a minute
DAY = 24 * 3600  # seconds for which a compiler that did not end, or whose result is useless, is not tried again
LOOK = 0.1  # seconds between two looks at a lock
ROOM = 4 << 20  # bytes on the disk: more than compiling takes
GAVE_UP, LOCK = ".gave-up", ".lock"  # end the names of files: the first says why
OTHER_COMPILER = "Set the environment variable CXX to a C++ compiler that works, or leave it unset."
OTHER_CACHE = f"Set the environment variable {host.CACHE} to a folder where you can write and run programs."


class Build(NamedTuple):
    """The compiled functions, or why there are none, and what to do if something is wrong."""

    library: ctypes.CDLL | None
    reason: str
    advice: str = ""


class _Missing(Exception):
    """There are no functions in C++: the reason and the advice."""


class _Plan(NamedTuple):
    """How the functions are compiled, their file, and whether it is there already."""

    compiler: list[str]
    target: Path
    ready: bool


def will_compile() -> bool:
    """Return whether `load_library` will call the compiler, which takes some seconds to more than a minute."""
    try:
        return not _make_plan().ready
    except _Missing:
        return False


@cache
def load_library() -> Build:
    """Load the functions; compile them first if this processor has not done so."""
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
        _Missing: there is no compiler or no place for the file, or the last try was in vain.
    """
    if platform.system() != "Linux":
        raise _Missing("the functions in C++ are for Linux")
    compiler = _find_compiler()
    if not compiler:
        raise _Missing("there is no C++ compiler (g++)")
    if not (program := shutil.which(compiler[0])):
        raise _Missing(f"CXX names {compiler[0]!r}, which is no program here", OTHER_COMPILER)
    try:
        target = host.find_cache() / "kernels" / f"{_hash_inputs(compiler)}.so"
        ready = _is_whole(target)
        if not ready:
            _open_folder(target.parent)
            _recall(target, program)
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
    """Return a name for what the result depends on: a home folder may be shared by machines."""
    processor = sorted({value for name, value in host.read_cpuinfo() if name in ("model name", "flags", "Features")})
    inputs = hashlib.sha256(repr((FORMAT, compiler, FLAGS, SHARED, platform.machine(), processor)).encode())
    for path in (*sorted(SOURCES.glob("*.cpp")), *sorted(SOURCES.glob("*.h"))):
        inputs.update(path.read_bytes())
    return inputs.hexdigest()[:16]


def _is_whole(file: Path) -> bool:
    """Return whether a file ends with the hash of what is before: one that is cut off would kill the process.

    The system's loader does not look at what follows a library.
    """
    with suppress(OSError):
        content = file.read_bytes()
        size = hashlib.sha256().digest_size
        return len(content) > size and hashlib.sha256(content[:-size]).digest() == content[-size:]
    return False


def _open_folder(folder: Path) -> None:
    """Make a folder that other users can read, and check that this one can write there.

    Raises:
        OSError: it cannot be made or written.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(folder.stat().st_mode | 0o055)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "you cannot write there", str(folder))


def _test_folder(folder: Path) -> None:
    """Check that the disk has room, and that programs in a folder run: else a compiler would work in vain.

    Raises:
        OSError: the disk is full, or does not let programs run.
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


def _give_up(target: Path, reason: str, advice: str) -> _Missing:
    """Write down why there will be no other try for a day."""
    marker = target.with_suffix(GAVE_UP)
    failure = _Missing(reason, f"It is tried again after a day, or when {marker} is removed. {advice}")
    _write_down(marker, failure)
    return failure


def _recall(target: Path, program: str) -> None:
    """Do nothing if another try makes sense.

    Raises:
        _Missing: this compiler, unchanged since then, was given up a short time ago.
    """
    marker = target.with_suffix(GAVE_UP)
    with suppress(OSError):
        since = marker.stat().st_mtime
        if Path(program).stat().st_ctime <= since and 0 <= time.time() - since < DAY:
            unknown = "the last try was in vain", f"The next one is after a day, or when {marker} is removed."
            raise _Missing(*_read_note(marker) or unknown)  # a full disk leaves it empty


def _write_down(file: Path, failure: _Missing) -> None:
    with suppress(OSError):
        file.write_text("\n".join(failure.args), encoding="utf-8", errors="replace")


def _read_note(file: Path) -> list[str]:
    """Read the reason and the advice that `_write_down` has written; empty if there are none."""
    text = file.read_text(encoding="utf-8", errors="replace")
    return text.split("\n", 1) if text else []


def _compile(plan: _Plan) -> None:
    """Compile, unless another process does, and put the result in its place.

    Raises:
        OSError: the cache cannot be written.
        Interrupted: a stop signal has come.
        _Missing: the compiler cannot be started, refused, did not end, or wrote what cannot be loaded.
    """
    _remove_leftovers(plan.target.parent)
    try:
        with _take_turn(plan.target):
            if not _is_whole(plan.target):
                _call_compiler(plan.compiler, plan.target)
    except (OSError, _Missing):
        if not _is_whole(plan.target):  # else another process has put it there meanwhile
            raise


@contextmanager
def _take_turn(target: Path) -> Iterator[None]:
    """Let one process at a time compile a file, where the file system has locks.

    Raises:
        _Missing: this process waited for another one, which failed or did not end.
    """
    lock = target.with_suffix(LOCK)
    try:
        file = lock.open("ab")
    except OSError:
        yield
        return
    with file:
        if _wait_for_lock(file) and not _is_whole(target) and (told := _read_note(lock)):
            raise _Missing(*told)
        with suppress(OSError):
            file.truncate(0)
        try:
            yield
        except _Missing as failure:
            _write_down(lock, failure)
            raise
        with suppress(OSError):
            lock.unlink()  # who waits for it finds the library


def _wait_for_lock(file: IO[bytes]) -> bool:
    """Wait for a lock, and return whether another process had it. It is the kernel's, so it ends with its process.

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
            reason = f"another process has compiled them for more than {PATIENCE} seconds"
            raise _Missing(reason, "The next start looks for them again.")
        time.sleep(LOOK)


def _call_compiler(compiler: Sequence[str], target: Path) -> None:
    """Compile in a folder of its own, a file on each core. A library that is whole is not replaced."""
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda path: -path.stat().st_size)  # what takes longest first
    # A compiler that was ended may have left processes that still write.
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
            reason = f"{compiler[0]} did not end within {PATIENCE} seconds"
            raise _give_up(target, reason, OTHER_COMPILER) from error
        try:
            _seal(made)
            ctypes.CDLL(str(made))
        except OSError as error:
            advice = f"{OTHER_COMPILER} If {target.parent} is full or runs no programs: {OTHER_CACHE}"
            raise _give_up(target, f"what {compiler[0]} made cannot be loaded: {error}", advice) from error
        if not _is_whole(target):
            os.replace(made, target)


def _seal(library: Path) -> None:
    """Write what `_is_whole` reads, and wait until the disk has it. Other users can read it whatever the umask is."""
    with library.open("r+b") as file:
        digest = hashlib.sha256(file.read()).digest()
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())
    library.chmod(0o755)


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed while they compiled have left, and old files that say who gave up."""
    for path in (*folder.glob("tmp*"), *folder.glob(f"*{GAVE_UP}")):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAY:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
