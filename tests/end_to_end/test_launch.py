"""The launcher ends a run as its first failing rank ends, passes signals on, and leaves no process behind.

Its ranks are small programs instead of runs, each in a process of its own, as the launcher itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from qed.cluster.watch import Patience, Watch

BOOT = """
import sys
from qed.cluster.launch import Patience, run_ranks
sys.exit(run_ranks([sys.executable, sys.argv[1]], int(sys.argv[2]), patience=Patience(20.0, float(sys.argv[3]), 1.0)))
"""
# What every rank does first: it writes its environment to a file.
HEAD = """
import json, os, signal, sys, time
from pathlib import Path
from qed.guards.parents import die_with_launcher
rank = int(os.environ["RANK"])
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
seen = {name: os.environ[name] for name in names}
caught = []
def leave(number, frame):
    caught.append(number)
    if len(caught) == 2 or not WAITS:
        sys.exit(128 + number)
WAITS = False
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, leave)
signal.signal(signal.SIGUSR1, lambda *_: caught.append(signal.SIGUSR1))
die_with_launcher()
def tell():
    part = Path(f"{rank}.part")
    part.write_text(json.dumps({"process": os.getpid(), "caught": caught, **seen}))
    part.rename(f"{rank}.json")
def wait():
    tell()
    told = list(caught)
    while True:
        time.sleep(0.02)
        if caught != told:
            tell()
            told = list(caught)
"""
Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a launcher whose ranks run a program; rank K has left K.json once it is under way."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, ranks: int = 2, patience: float = 1.0, **options: object) -> subprocess.Popen[str]:
        (tmp_path / "rank.py").write_text(HEAD + program)
        command = [sys.executable, "-c", BOOT, "rank.py", str(ranks), str(patience)]
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        going = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )
        started.append(going)
        return going

    yield start
    for going in started:
        going.kill()
        going.communicate()


def look(folder: Path, ranks: int = 2) -> list[dict[str, object]]:
    """Wait until every rank is under way, and return what each has written."""
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    wait_for(lambda: all(file.exists() for file in files))
    return [json.loads(file.read_text()) for file in files]


def wait_for(found: Callable[[], bool]) -> None:
    for _ in range(1200):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError("it has not happened within a minute")


def has_ended(process: object) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def finish(going: subprocess.Popen[str], folder: Path, ranks: int = 2) -> tuple[int, str, str]:
    """Wait for the launcher, and make sure that none of its ranks is left."""
    out, err = going.communicate(timeout=60)
    for rank in range(ranks):
        if (folder / f"{rank}.json").exists():
            assert has_ended(json.loads((folder / f"{rank}.json").read_text())["process"])
    return going.returncode, out, err


def test_ranks_know_their_places_and_only_the_first_one_is_heard(launch: Launch, tmp_path: Path) -> None:
    going = launch("tell()\nprint('out', rank)\nprint('err', rank, file=sys.stderr)", 3)
    assert finish(going, tmp_path, 3) == (0, "out 0\n", "err 0\n")
    seen = look(tmp_path, 3)
    assert [one["LOCAL_RANK"] for one in seen] == ["0", "1", "2"]
    assert len({one["MASTER_PORT"] for one in seen}) == 1
    for one in seen:
        assert (one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"], one["GROUP_RANK"]) == ("3", "3", "0")
        assert one["MASTER_ADDR"] == "127.0.0.1"
        assert int(str(one["OMP_NUM_THREADS"])) >= 1


def test_the_port_is_free_for_the_store_of_rank_0_alone(launch: Launch, tmp_path: Path) -> None:
    """It is kept from all others from the beginning, so that no start fails because somebody else was faster."""
    program = """
import socket
port = int(seen["MASTER_PORT"])
with socket.socket() as other:
    try:
        other.bind(("127.0.0.1", port))
        sys.exit(3)
    except OSError:
        pass
if rank == 0:
    listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
    listener.accept()
else:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
"""
    assert finish(launch(program), tmp_path) == (0, "", "")


@pytest.mark.parametrize("failing", [0, 1])
def test_the_code_is_that_of_the_rank_that_fails_first(launch: Launch, tmp_path: Path, failing: int) -> None:
    """The other one is ended although it waits; of rank 1 the error is shown, which nobody would see otherwise."""
    program = f"if rank == {failing}:\n    print('error: no such file', file=sys.stderr)\n    sys.exit(3)\nwait()"
    code, _, err = finish(launch(program, patience=0.3), tmp_path)
    assert code == 3
    assert err == ("error: no such file\n" if failing == 0 else "[rank 1] error: no such file\n")


@dataclass
class Counted:
    """A rank of no process, which ends well once it has been looked at so many times."""

    number: int
    looks: int
    place: str = "process 77"
    ended_by_us: bool = False

    @property
    def code(self) -> int | None:
        self.looks -= 1
        return 0 if self.looks < 0 else None

    def send(self, number: int, group: bool = False) -> None:
        raise AssertionError("it may be writing a model")

    def read_errors(self, otherwise: int = 0) -> list[str]:
        return []


def test_a_rank_that_runs_on_after_another_has_succeeded_is_named_and_not_ended(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qed.cluster.watch.TICK", 0.001)
    assert Watch([Counted(0, 40), Counted(1, 0)], [], Patience(0.01, 0.01, 0.01)).wait() == 0
    assert capfd.readouterr().err == (
        "rank 0 (process 77) is still running 0 s after another rank ended without an error. Waiting for it; end it if "
        "it hangs.\n"
    )


def test_a_rank_that_lost_another_one_does_not_hide_why(launch: Launch, tmp_path: Path) -> None:
    code, _, err = finish(launch("time.sleep(0.5 * (rank == 1))\nsys.exit(4 if rank else 75)"), tmp_path)
    assert (code, err) == (4, "")


def test_a_common_error_is_shown_whoever_tells_it(launch: Launch, tmp_path: Path) -> None:
    program = "if rank == 1:\n    print('error: it diverged', file=sys.stderr)\n    time.sleep(0.3)\nsys.exit(4)"
    assert finish(launch(program), tmp_path) == (4, "", "[rank 1] error: it diverged\n")


def test_a_killed_rank_is_named(launch: Launch, tmp_path: Path) -> None:
    code, _, err = finish(
        launch("tell()\nif rank == 1:\n    os.kill(os.getpid(), 9)\nsys.exit(wait())", 3, 0.3), tmp_path
    )
    assert code == 75
    process = look(tmp_path)[1]["process"]
    assert f"error: rank 1 (process {process}) was killed by SIGKILL. If memory ran out" in err
    assert "--resume" in err


def test_a_rank_that_ignores_sigterm_is_killed(launch: Launch, tmp_path: Path) -> None:
    program = "if rank == 1:\n    sys.exit(3)\nWAITS = True\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwait()"
    assert finish(launch(program, patience=0.1), tmp_path)[0] == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_reaches_every_rank_once(launch: Launch, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Also if a terminal sends it to the whole foreground group, as it does for Ctrl-C."""
    going = launch("WAITS = True\nwait()", start_new_session=True)
    look(tmp_path)
    os.killpg(going.pid, number)
    wait_for(lambda: all(one["caught"] for one in look(tmp_path)))
    time.sleep(0.2)
    assert [one["caught"] for one in look(tmp_path)] == [[number]] * 2
    os.killpg(going.pid, number)  # a second one ends the run
    assert finish(going, tmp_path)[0] == code


def test_a_rank_that_still_saves_after_a_signal_is_waited_for(launch: Launch, tmp_path: Path) -> None:
    """The first one to stop does not shorten the time of the others: they write a checkpoint."""
    program = (
        "def leave(*_):\n    time.sleep(1.0 * (rank == 0))\n    Path(f'saved-{rank}').touch()\n    sys.exit(143)\n"
    )
    going = launch(program + "signal.signal(signal.SIGTERM, leave)\nwait()", patience=0.1)
    look(tmp_path)
    going.send_signal(signal.SIGTERM)
    assert finish(going, tmp_path)[0] == 143
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]


def test_a_signal_before_the_ranks_have_handlers_ends_them(launch: Launch, tmp_path: Path) -> None:
    going = launch("signal.signal(signal.SIGTERM, signal.SIG_DFL)\nwait()")
    look(tmp_path)
    going.send_signal(signal.SIGTERM)
    code, _, err = finish(going, tmp_path)
    assert (code, err) == (143, "")


def test_a_request_for_a_checkpoint_goes_to_one_rank(launch: Launch, tmp_path: Path) -> None:
    going = launch("WAITS = True\nwait()")
    look(tmp_path)
    going.send_signal(signal.SIGUSR1)
    wait_for(lambda: look(tmp_path)[0]["caught"] == [signal.SIGUSR1])
    assert look(tmp_path)[1]["caught"] == []
    for _ in range(2):
        going.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert finish(going, tmp_path)[0] == 143


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux alone")
def test_a_killed_launcher_leaves_no_orphan(launch: Launch, tmp_path: Path) -> None:
    going = launch("WAITS = True\nwait()")
    ranks = look(tmp_path)
    going.kill()
    wait_for(lambda: all(has_ended(rank["process"]) for rank in ranks))
    assert going.wait() == -signal.SIGKILL


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux alone")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_launcher_may_end_at_any_moment(launch: Launch, tmp_path: Path, number: signal.Signals) -> None:
    """Also while it starts its ranks, or while they start; each has the folder as its current one."""
    for moment in range(20):
        going = launch("wait()", 3)
        time.sleep(0.03 * moment)
        assert list_processes_in(tmp_path)
        going.send_signal(number)
        assert going.wait() in (-number, 128 + number)
        wait_for(lambda: not list_processes_in(tmp_path))


def list_processes_in(folder: Path) -> list[int]:
    """List the processes whose current folder this is; one that waits to be reaped has none."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "cwd").readlink() == folder:
                found.append(int(place.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is read from /proc")
def test_a_suspended_launcher_suspends_its_ranks(launch: Launch, tmp_path: Path) -> None:
    going = launch("WAITS = True\nwait()")
    ranks = look(tmp_path)
    everybody = [going.pid, *(rank["process"] for rank in ranks)]

    def are_stopped() -> list[bool]:
        return [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0] == "T" for one in everybody]

    going.send_signal(signal.SIGTSTP)
    wait_for(lambda: all(are_stopped()))
    going.send_signal(signal.SIGCONT)
    wait_for(lambda: not any(are_stopped()))
    going.send_signal(signal.SIGTERM)
    going.send_signal(signal.SIGTERM)


def test_an_error_is_shown_from_its_beginning(launch: Launch, tmp_path: Path) -> None:
    """With its traceback, and without the warnings before it."""
    program = """
if rank == 1:
    print("a warning\\nTraceback (most recent call last):\\n  one\\nerror: a\\nmore", file=sys.stderr)
    sys.exit(3)
wait()"""
    _, _, err = finish(launch(program, patience=0.1), tmp_path)
    assert err.splitlines() == [
        f"[rank 1] {line}" for line in ("Traceback (most recent call last):", "  one", "error: a", "more")
    ]


def test_output_of_many_lines_is_cut_to_its_end(launch: Launch, tmp_path: Path) -> None:
    program = "if rank == 1:\n    print(*range(1000), sep='\\n', file=sys.stderr)\n    sys.exit(3)\nwait()"
    _, _, err = finish(launch(program, patience=0.1), tmp_path)
    assert err.splitlines()[-1] == "[rank 1] 999"
    assert len(err.splitlines()) == 40
