"""The judge and its processes under attack: what a reward does to its socket, its group and its clean process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_judge import SHORT, answers, tiers

from qed.grading import fork_server, symbolic
from qed.grading.fork_server import ForkServer
from qed.grading.judge import Judge
from qed.grading.session import FailedError, Limits, NotLoadedError

LINK = "f'/proc/self/fd/{fd}'"
# A library may have opened other files, such as a libffi that reads itself.
SOCKETS = f"[fd for fd in range(3, 20) if os.path.exists({LINK}) and os.readlink({LINK}).startswith('socket')]"


@pytest.fixture(scope="module")
def code() -> Iterator[ForkServer]:
    """Children that run what they are told, as a reward of somebody's own may."""
    loose = ForkServer("judged:sealed", limits=Limits(cpu=1.0, wall=3.0, memory=512 << 20))
    yield loose
    loose.close()


def process_of(owner: ForkServer) -> int:
    assert owner._finalizer is not None
    return int(owner._finalizer.peek()[2][1].pid)  # type: ignore[index]


def eventually(true: Callable[[], bool]) -> bool:
    for _ in range(200):
        if true():
            return True
        time.sleep(0.02)
    return False


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("os.closerange(0, 4096)", "the process ended"),
        (f"[os.write(fd, b'junk\\n') for fd in {SOCKETS}]", "cannot be read"),
        (f"[os.write(fd, b'[' * 9999 + b'\\n') for fd in {SOCKETS}]", "read"),
        (f"[os.write(fd, b'{{}}\\n') for fd in {SOCKETS}]", "cannot be read"),
        ("'x' * (80 << 20)", "more than 64 MiB"),
        ("(_ for _ in ()).throw(KeyboardInterrupt)", "the process ended"),
        ("os._exit(0)", "code 0"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
def test_whatever_a_child_does_to_its_socket_is_a_failure_of_that_question(
    code: ForkServer, told: str, reason: str
) -> None:
    session = code.open_session()
    assert session.ask("1 + 1") == "2"
    with pytest.raises(FailedError, match=reason):
        session.ask(told)
    assert not session.alive
    session = code.open_session()
    assert session.ask("'alive'") == "alive"
    session.close()


@pytest.mark.parametrize("question", ["\ud800", "nan" + " " * 1_000_000, [float("nan"), float("inf")]])
def test_odd_questions_arrive(code: ForkServer, question: Any) -> None:
    session = code.open_session()
    with pytest.raises(FailedError):
        session.ask(question)
    assert session.ask("repr('\\ud800')") == "'\\ud800'"
    session.close()


def test_what_is_no_json_is_a_failure_and_not_an_exception(code: ForkServer) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    session = code.open_session()
    for question in ({1, 2}, deep):
        with pytest.raises(FailedError, match="cannot be sent"):
            session.ask(question)
    assert session.ask("1 + 1") == "2"
    session.close()


def test_a_problem_that_carries_too_much_is_graded_all_the_same() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    judge = Judge("judged:prepare", workers=1, limits=SHORT)
    [rollout] = answers("12")
    rollout.problem.meta["deep"] = deep  # type: ignore[index]
    assert tiers(judge.grade([[rollout]])[0]) == ["1"]
    judge.close()


def test_what_a_child_started_ends_with_it(code: ForkServer) -> None:
    session = code.open_session()
    pid = int(session.ask("subprocess.Popen(['sleep', '600']).pid"))
    assert runs(pid)
    session.close()
    assert eventually(lambda: not runs(pid))


def test_children_end_with_a_clean_process_that_is_killed() -> None:
    """And the next session does not wait for numbers that another clean process never knew."""
    owner = ForkServer("judged:sealed", limits=SHORT)
    session = owner.open_session()
    os.kill(process_of(owner), signal.SIGKILL)
    assert eventually(lambda: not runs(session.pid))
    after = owner.open_session()
    assert session.close() == 0
    assert after.ask("1 + 1") == "2"
    after.close()
    owner.close()


def test_a_worker_that_died_while_it_waited_costs_no_answer_its_grade() -> None:
    judge = Judge("judged:prepare", workers=1, limits=SHORT)
    [[grade]] = judge.grade([answers("pid")])
    os.kill(int(grade.extracted or 0), signal.SIGKILL)
    assert eventually(lambda: not runs(int(grade.extracted or 0)))
    assert tiers(judge.grade([answers("12")])[0]) == ["1"]
    judge.close()


def test_threads_make_no_more_workers_than_there_are_places() -> None:
    judge = Judge("judged:prepare", workers=2, limits=SHORT)
    threads = [threading.Thread(target=judge.grade, args=([answers("12", "pid", "12")],)) for _ in range(8)]
    judge.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(judge._idle) <= 2
    judge.close()


def test_no_descriptor_and_no_zombie_is_left(code: ForkServer) -> None:
    code.open_session().close()
    parent = process_of(code)
    before = len(os.listdir("/proc/self/fd"))
    for told in ("1", "os._exit(0)", "[][1]") * 4:
        session = code.open_session()
        with pytest.raises(FailedError) if told != "1" else contextlib.nullcontext():
            session.ask(told)
        session.close()
    assert len(os.listdir("/proc/self/fd")) == before
    children = Path(f"/proc/{parent}/task/{parent}/children")
    assert not children.exists() or children.read_text().split() == []


def test_a_system_that_gives_no_process_is_an_error_for_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    fresh = ForkServer("qed.grading.symbolic:prepare", sealed=True)
    monkeypatch.setattr(fork_server.subprocess, "Popen", refuse)
    monkeypatch.setattr(symbolic, "CHILD", fresh)
    with pytest.raises(NotLoadedError, match="Resource temporarily unavailable"):
        fresh.open_session()
    correct, tier, reason = symbolic.are_equal("5", "\\sum_{k=1}^{2} k")
    assert (correct, tier) == (False, "error"), "which is no wrong answer"
    assert "Resource temporarily unavailable" in reason
    monkeypatch.undo()
    assert symbolic.are_equal("5", "\\sum_{k=1}^{2} k")[:2] == (False, "symbolic"), "by now there is a process"


def test_files_of_the_current_folder_stand_in_for_no_module_of_python(tmp_path: Path) -> None:
    for name in ("types", "json", "re", "enum", "functools", "collections", "operator", "select", "socket"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of the user')\n")
    code = "from qed.grading.symbolic import are_equal; print(are_equal('3', r'\\sum_{k=1}^{2} k')[:2])"
    command = [sys.executable, "-P", "-c", code]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "(True, 'symbolic')"


def test_a_judge_whose_process_cannot_come_back_says_so_in_the_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge("judged:prepare", workers=1, limits=SHORT)
    judge.grade([answers("12", "die")])

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(fork_server.socket, "socketpair", refuse)
    [[grade]] = judge.grade([answers("12")])
    assert (grade.tier, "Too many open files" in grade.reason) == ("error", True)
    monkeypatch.undo()
    judge.close()


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    symbolic._cache.clear()


def test_a_question_that_many_threads_ask_at_once_is_asked_once_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def slowly(gold: str, answer: str, waited: float) -> symbolic.Result:
        asked.append(answer)
        time.sleep(0.1)
        return True, "symbolic", ""

    monkeypatch.setattr(symbolic, "_ask_child", slowly)
    monkeypatch.setattr(symbolic.CHILD, "slots", threading.BoundedSemaphore(2))
    threads = [threading.Thread(target=symbolic.are_equal, args=("5", "x")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(asked) <= 2


def test_the_symbolic_tier_waits_for_a_core_but_never_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "LIMITS", Limits(cpu=1.0, wall=0.05))
    monkeypatch.setattr(symbolic.CHILD, "slots", threading.BoundedSemaphore(1))
    symbolic.CHILD.slots.acquire()
    correct, tier, _ = symbolic.are_equal("5", "\\sum_{k=1}^{2} k")
    assert (correct, tier) == (False, "timeout")
