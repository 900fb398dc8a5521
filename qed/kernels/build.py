"""Compiles the C++ files of this folder with the instructions of this processor, once, into the user's cache.

That takes a few seconds. Without a compiler qed computes the same by torch's operators.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from qed import host

SOURCES = Path(__file__).parent
# Sums are in the order that the files write, and NaN stays NaN: no option here lets the compiler assume otherwise.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-Wno-psabi", "-fopenmp", "-fPIC")
PATIENCE = 180  # seconds for the compiler, all files together: on a busy core it takes more than a minute
DAY = 24 * 3600  # seconds for which a compiler that did not end is not tried again
TICK = 0.01  # seconds between two looks at the compiler
GAVE_UP = ".gave-up"  # ends the name of a file that says so
LONGEST = 300  # characters of a compiler's error that are told
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
    """Return whether `load_library` will call the compiler, which takes some seconds."""
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
        _Missing: there is no compiler or no place for the file, or the compiler did not end when it was called last.
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
    except OSError as error:
        raise _Missing(f"{error.filename} cannot be used: {error.strerror}", OTHER_CACHE) from error
    if not ready and _has_given_up(target, program):
        raise _Missing(*_explain_giving_up(compiler, target))
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
    inputs = hashlib.sha256(repr((compiler, FLAGS, SHARED, platform.machine(), processor)).encode())
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


def _has_given_up(target: Path, program: str) -> bool:
    """Return whether this compiler, unchanged since then, did not end a short time ago."""
    with suppress(OSError):
        since = target.with_suffix(GAVE_UP).stat().st_mtime
        return Path(program).stat().st_ctime <= since and 0 <= time.time() - since < DAY
    return False


def _explain_giving_up(compiler: Sequence[str], target: Path) -> tuple[str, str]:
    again = f"It is tried again after a day, or when {target.with_suffix(GAVE_UP)} is removed."
    return f"{compiler[0]} did not end within {PATIENCE} seconds", f"{again} {OTHER_COMPILER}"


def _compile(plan: _Plan) -> None:
    """Compile in a folder of its own, a file on each core, and put the result in its place: other processes may too.

    Raises:
        OSError: the cache cannot be written.
        _Missing: the compiler cannot be started, refused, did not end, or wrote what cannot be loaded.
    """
    compiler, target, _ = plan
    _remove_leftovers(target.parent)
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda path: -path.stat().st_size)  # what takes longest first
    # A compiler that was ended may have left processes that still write.
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as folder:
        objects = [os.path.join(folder, f"{path.stem}.o") for path in sources]
        made, deadline = Path(folder, target.name), time.monotonic() + PATIENCE
        commands = [
            [*compiler, *FLAGS, *SHARED, "-c", str(source), "-o", out]
            for source, out in zip(sources, objects, strict=True)
        ]
        try:
            _call(commands, Path(folder, "messages"), deadline)
            _call([[*compiler, *SHARED, "-shared", *objects, "-o", str(made)]], Path(folder, "messages"), deadline)
        except TimeoutError as error:
            with suppress(OSError):
                target.with_suffix(GAVE_UP).touch()
            raise _Missing(*_explain_giving_up(compiler, target)) from error
        try:
            _seal(made)
            ctypes.CDLL(str(made))
        except OSError as error:
            advice = f"{OTHER_COMPILER} If {target.parent} is full or runs no programs: {OTHER_CACHE}"
            raise _Missing(f"what {compiler[0]} made cannot be loaded: {error}", advice) from error
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


def _call(commands: Sequence[Sequence[str]], messages: Path, deadline: float) -> None:
    """Run commands, one on each core; where one fails or the time is over, none of them goes on.

    Raises:
        TimeoutError: they did not end in time.
        _Missing: one cannot be started, or failed.
    """
    waiting, running, cores = list(commands), list[subprocess.Popen[bytes]](), host.count_usable_cores()
    with messages.open("wb") as file:
        try:
            while waiting or running:
                while waiting and len(running) < cores:
                    running.append(_start(waiting.pop(0), file))
                if code := next(filter(None, [each.poll() for each in running]), 0):
                    raise _Missing(f"{commands[0][0]} failed: {_read_error(messages, code)}", OTHER_COMPILER)
                if time.monotonic() > deadline:
                    raise TimeoutError
                running = [each for each in running if each.returncode is None]
                time.sleep(TICK)
        finally:
            for each in running:
                if each.returncode is None:
                    with suppress(OSError):
                        os.killpg(each.pid, signal.SIGKILL)
                    each.wait()


def _start(command: Sequence[str], messages: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that it can be ended together with what it starts."""
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True
        )
    except OSError as error:
        raise _Missing(f"{command[0]} cannot be started: {error.strerror}", OTHER_COMPILER) from error


def _read_error(messages: Path, code: int) -> str:
    """Return the line of a compiler's messages that names the error."""
    lines = messages.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"exit status {code}"
    return next((line for line in lines if "error" in line.lower()), last).strip()[:LONGEST]
