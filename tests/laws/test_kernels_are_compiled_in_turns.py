"""One process at a time compiles the functions in C++; failures are remembered, signals obeyed, no compiler is left."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from qed import host
from qed.errors import Interrupted
from qed.guards.signals import watch_signals
from qed.kernels import build, commands

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the functions in C++ are for Linux")
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
LOAD = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell's background job ignores it
    "from qed.kernels import build; build.PATIENCE = {}; print(build.load_library())"
)
LOADED = "Build(library=<CDLL"
# It says who calls it, and writes an empty library in place of qed's.
QUICK = """
echo $PPID >> "$0.calls"
for file in "$@"; do :; done
{0}
case "$file" in
*.so) echo | g++ -shared -fPIC -x c++ - -o "$file" ;;
*) : > "$file" ;;
esac
"""
HANGING = 'echo $PPID >> "$0.calls"\nwhile sleep 0.1; do echo >> "$0.ticks"; done & wait'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has loaded nothing."""
    monkeypatch.setenv(host.CACHE, str(tmp_path / "cache"))
    build.load_library.cache_clear()
    yield tmp_path
    build.load_library.cache_clear()


@pytest.fixture
def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that a test writes with `write`."""
    monkeypatch.setenv("CXX", str(folder / "compiler"))
    return folder / "compiler"


def write(compiler: Path, text: str) -> None:
    compiler.write_text(f"#!/bin/sh\n{text}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)


def list_callers(compiler: Path) -> set[str]:
    calls = compiler.with_suffix(".calls")
    return set(calls.read_text().split()) if calls.exists() else set()


def has_lock_open(process: subprocess.Popen[str]) -> bool:
    folder = f"/proc/{process.pid}/fd"
    with suppress(OSError):
        return any(os.readlink(f"{folder}/{each}").endswith(build.LOCK) for each in os.listdir(folder))
    return False


def start(patience: float = 60) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOAD.format(patience)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def assert_ended(compiler: Path) -> None:
    """What the compiler has started writes no more."""
    time.sleep(0.3)
    ticks = compiler.with_suffix(".ticks").read_text()
    time.sleep(0.5)
    assert compiler.with_suffix(".ticks").read_text() == ticks


def seal(target: Path) -> bytes:
    """What looks like a whole library of another process."""
    content = b"whole"
    target.write_bytes(content + hashlib.sha256(content).digest())
    return target.read_bytes()


def test_a_result_that_cannot_be_loaded_is_not_made_again(compiler: Path) -> None:
    write(compiler, 'echo $PPID >> "$0.calls"\nfor file in "$@"; do :; done\necho text > "$file"')
    assert build.will_compile()
    first = build.load_library()
    assert "cannot be loaded" in first.reason
    assert "after a day" in first.advice
    calls = compiler.with_suffix(".calls").read_text()
    build.load_library.cache_clear()
    assert not build.will_compile()
    assert build.load_library() == first
    assert compiler.with_suffix(".calls").read_text() == calls
    (marker,) = (compiler.parent / "cache" / "kernels").glob(f"*{build.GAVE_UP}")
    marker.write_text("")  # as on a disk that was full
    assert not build.will_compile()
    os.utime(marker, (time.time() - build.DAY,) * 2)
    assert build.will_compile()
    marker.touch()
    time.sleep(0.05)
    compiler.chmod(0o700)  # as if another version of it were installed
    assert build.will_compile()
    marker.unlink()
    assert build.will_compile()


@pytest.mark.parametrize("cause", ["full", "noexec"])
def test_a_disk_that_is_full_or_runs_no_programs_is_seen_before(
    cause: str, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, QUICK.format(""))

    def refuse(*_: object, **__: object) -> Any:
        raise OSError(number := {"full": errno.ENOSPC, "noexec": errno.EPERM}[cause], os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(*((tempfile, "TemporaryFile") if cause == "full" else (mmap, "mmap")), refuse)
        assert not build.will_compile()
        built = build.load_library()
    said = {"full": "No space left on device", "noexec": "programs do not run there (Operation not permitted)"}[cause]
    assert built.reason == f"{compiler.parent / 'cache' / 'kernels'} cannot be used: {said}"
    assert "QED_CACHE" in built.advice
    assert not list_callers(compiler)
    assert build.will_compile()  # once that has been mended


@needs_compiler
@pytest.mark.parametrize("fails", [False, True])
def test_one_process_compiles_for_all(fails: bool, compiler: Path) -> None:
    wait = 'while ! [ -e "$0.go" ]; do sleep 0.05; done'
    write(compiler, QUICK.format(f"{wait}; echo 'error: slow' >&2; exit 1" if fails else wait))
    started = [start() for _ in range(3)]
    wait_until(lambda: all(map(has_lock_open, started)))
    compiler.with_suffix(".go").touch()
    said = [each.communicate(timeout=120)[0] for each in started]
    assert all(("error: slow" if fails else LOADED) in text for text in said), said
    assert len(list_callers(compiler)) == 1
    if fails:  # a later start tries again
        write(compiler, QUICK.format(""))
    assert build.load_library().library is not None
    assert [path.suffix for path in (compiler.parent / "cache" / "kernels").iterdir()] == [".so"]


@needs_compiler
def test_who_waits_goes_on_if_the_other_process_is_killed(compiler: Path) -> None:
    write(compiler, HANGING)
    first = start()
    wait_until(compiler.with_suffix(".ticks").exists)
    second = start()
    wait_until(lambda: has_lock_open(second))
    write(compiler, QUICK.format(""))
    first.kill()
    first.communicate()
    assert LOADED in second.communicate(timeout=60)[0]


@needs_compiler
@pytest.mark.parametrize("refused", ["lock", "file"])
def test_without_locks_each_process_compiles(refused: str, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(compiler, QUICK.format(""))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if refused == "lock":
        monkeypatch.setattr(fcntl, "flock", refuse)
    else:
        lock = build._make_plan().target.with_suffix(build.LOCK)
        lock.mkdir()
    assert build.load_library().library is not None


def test_who_waits_has_patience_and_looks_again(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(compiler, QUICK.format(""))
    monkeypatch.setattr(build, "PATIENCE", 0.3)
    plan = build._make_plan()
    with plan.target.with_suffix(build.LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        built = build.load_library()
        assert "another process" in built.reason
        assert built.advice
        whole = seal(plan.target)
        build._compile(plan)
    assert plan.target.read_bytes() == whole
    assert not list_callers(compiler)
    assert not plan.target.with_suffix(build.GAVE_UP).exists()


@pytest.mark.parametrize("outcome", ["late", "failed", "made"])
def test_what_another_process_has_put_there_stays(
    outcome: str, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing a library that processes of other machines use would kill them."""
    write(compiler, QUICK.format(""))
    plan = build._make_plan()

    def run(_: object, messages: Path, __: object) -> None:
        seal(plan.target)
        (messages.parent / plan.target.name).write_bytes(b"other")
        if outcome != "made":
            raise {"late": TimeoutError, "failed": commands.CommandError}[outcome]

    monkeypatch.setattr(build, "run_commands", run)
    monkeypatch.setattr("ctypes.CDLL", lambda _: None)
    build._compile(plan)
    assert plan.target.read_bytes().startswith(b"whole")


def test_each_format_has_files_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = build._hash_inputs(["g++"])
    monkeypatch.setattr(build, "FORMAT", build.FORMAT + 1)
    assert own != build._hash_inputs(["g++"])


@pytest.mark.parametrize("waits", [False, True])
def test_a_signal_ends_compiling_and_waiting(waits: bool, compiler: Path) -> None:
    write(compiler, HANGING)
    plan = build._make_plan()
    with plan.target.with_suffix(build.LOCK).open("ab") as file, watch_signals():
        if waits:
            fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Interrupted) as stopped:
            build.load_library()
    assert stopped.value.exit_code == 143
    assert time.monotonic() - began < 20
    if not waits:
        assert_ended(compiler)
    assert {path.suffix for path in plan.target.parent.iterdir()} == {build.LOCK}
    assert build.will_compile()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_compilers_end_with_their_process(number: signal.Signals, compiler: Path) -> None:
    write(compiler, HANGING)
    process = start()
    wait_until(compiler.with_suffix(".ticks").exists)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert_ended(compiler)
    assert not list((compiler.parent / "cache" / "kernels").glob(f"*{build.GAVE_UP}"))


@needs_compiler
def test_time_in_which_the_process_is_stopped_does_not_count(compiler: Path) -> None:
    write(compiler, QUICK.format(""))
    process = start(patience=4)
    wait_until(compiler.with_suffix(".calls").exists)
    process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    process.send_signal(signal.SIGCONT)
    assert LOADED in process.communicate(timeout=60)[0]


def test_what_has_ended_is_looked_at_first(tmp_path: Path) -> None:
    patience = commands.Patience(0)
    time.sleep(0.01)
    assert patience.is_over()
    messages = tmp_path / "messages"
    commands.run_commands([["true"]], messages, commands.Patience(10))
    with pytest.raises(TimeoutError):
        commands.run_commands([["sleep", "10"]], messages, patience)
