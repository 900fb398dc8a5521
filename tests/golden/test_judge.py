"""The judge: whatever a reward does, every answer has its grade, the others come to no harm, nothing is left over."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qed.grading.fork_server import ForkServer
from qed.grading.judge import Judge
from qed.grading.session import FailedError, Limits, NotLoadedError
from qed.types import Grade, Group, Problem, Rollout

SHORT = Limits(cpu=0.5, wall=2.0, memory=128 << 20)


def answers(*texts: str) -> Group:
    return [Rollout(Problem("p", "?", "12", meta={"k": (1, 2)}), (1,), (2, 3), (), text, "stop") for text in texts]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge("judged:prepare", workers=2, limits=SHORT)
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def sealed() -> Iterator[ForkServer]:
    server = ForkServer("judged:sealed", limits=SHORT, sealed=True)
    yield server
    server.close()


def tiers(grades: list[Grade]) -> list[str]:
    return [grade.tier or f"{grade.reward:g}" for grade in grades]


@pytest.mark.filterwarnings("ignore:A reward failed on 2 answers")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_grades_than_of_answers_is_an_error(count: int) -> None:
    judge = Judge("judged:miscounted", [count], workers=1, limits=SHORT)
    [grades] = judge.grade([answers("12", "13")])
    assert [grade.tier for grade in grades] == (["", ""] if count == 1 else ["error", "error"])
    judge.close()


def test_what_goes_wrong_in_one_answer_stays_there(judge: Judge) -> None:
    texts = ["12", "hang", "raise", "12", "exit", "die", "grow", "sleep", "alarm", "print", "13", "12"]
    [grades] = judge.grade([answers(*texts)])
    expected = ["1", "timeout", "error", "1", "error", "error", "error", "timeout", "0", "0", "0", "1"]
    assert tiers(grades) == expected
    said = {text: grade.reason for text, grade in zip(texts, grades, strict=True)}
    assert said["hang"] == "more than 0.5 s of CPU time"
    assert said["sleep"] == "more than 2 s of wall-clock time"
    assert said["raise"].startswith("IndexError")
    assert said["exit"] == "SystemExit: 3"
    assert said["die"] == "the process ended with SIGSEGV"
    assert said["grow"].startswith("MemoryError")


def test_what_rewards_print_goes_to_a_log(tmp_path: Path) -> None:
    judge = Judge("judged:prepare", workers=1, limits=SHORT, log=tmp_path / "rewards.log")
    judge.grade([answers("print", "12")])
    judge.close()
    assert (tmp_path / "rewards.log").read_text() == "noise on stdout"


def test_groups_keep_their_shape_and_order(judge: Judge) -> None:
    groups = [answers("12", "1"), [], answers("12"), answers("3", "12", "4")]
    assert [tiers(grades) for grades in judge.grade(groups)] == [["1", "0"], [], ["1"], ["0", "1", "0"]]


def test_answers_judged_together_are_judged_alone_when_one_of_them_fails() -> None:
    judge = Judge("judged:prepare", [True], workers=2, limits=SHORT)
    with pytest.warns(UserWarning, match="failed on a group of 3 answers, so each was graded alone"):
        whole, broken = judge.grade([answers("12", "1"), answers("12", "raise", "12")])
    assert [grade.parts["together"] for grade in whole] == [2, 2]
    assert tiers(broken) == ["1", "error", "1"]
    judge.close()


def test_a_worker_lives_on_after_an_answer_that_raises(judge: Judge) -> None:
    judge.grade([answers("raise")])
    one, two = ([grade.extracted for grade in grades] for grades in judge.grade([answers("pid"), answers("pid")]))
    assert one
    assert two
    assert os.getpid() not in {int(name or 0) for name in (*one, *two)}


def test_a_target_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(NotLoadedError, match="ValueError: no such model"):
        Judge("judged:broken").start()
    with pytest.raises(NotLoadedError, match="No module named 'nowhere'"):
        Judge("nowhere:at_all").start()


def test_from_threads_and_from_a_loop(judge: Judge) -> None:
    """Eight threads at once, and a loop that goes on beside them."""
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(tiers(judge.grade([answers("12", "hang", "1")])[0])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()

    async def loop() -> list[list[Grade]]:
        return await asyncio.to_thread(judge.grade, [answers("12", "1")])

    assert tiers(asyncio.run(loop())[0]) == ["1", "0"]
    for thread in threads:
        thread.join()
    assert found == [["1", "timeout", "0"]] * 8


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_made_by_the_caller_grades_by_itself(judge: Judge, method: str) -> None:
    judge.grade([answers("12")])
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_grade_in_child, args=(judge if method == "fork" else None, queue))
    process.start()
    assert queue.get(timeout=60) == ["1", "timeout", "0"]
    process.join()
    assert process.exitcode == 0
    assert tiers(judge.grade([answers("12")])[0]) == ["1"]  # and the caller's own workers are still there


def _grade_in_child(judge: Judge | None, queue: multiprocessing.Queue[list[str]]) -> None:
    judge = judge or Judge("judged:prepare", workers=2, limits=SHORT)
    queue.put(tiers(judge.grade([answers("12", "hang", "1")])[0]))
    judge.close()


def test_an_interrupt_does_not_wait_for_an_answer_that_hangs() -> None:
    judge = Judge("judged:prepare", workers=1, limits=Limits(cpu=600, wall=600))
    judge.start()
    # A shell starts what runs in its background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        judge.grade([answers("hang", "sleep")])
    signal.signal(signal.SIGINT, before)
    assert tiers(judge.grade([answers("12")])[0]) == ["1"]
    judge.close()


def test_signals_of_the_caller_are_untouched(judge: Judge) -> None:
    fired: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: fired.append(number))
    signal.setitimer(signal.ITIMER_REAL, 100)
    handler = signal.getsignal(signal.SIGALRM)
    judge.grade([answers("12", "hang", "alarm")])
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert not fired


def test_workers_die_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    """Even in the middle of an answer that never ends."""
    program = textwrap.dedent(
        f"""
        import os, threading, time
        from test_judge import answers
        from qed.grading.judge import Judge
        from qed.grading.session import Limits
        judge = Judge("judged:prepare", workers=2, limits=Limits(cpu=60, wall=60))
        pids = [grade.extracted for grade in judge.grade([answers("pid"), answers("pid")])[0]]
        threading.Thread(target=judge.grade, args=([answers("hang", "sleep")],)).start()
        time.sleep(0.5)
        open({str(tmp_path / "pids")!r}, "w").write(" ".join([*pids, str(judge._server._finalizer.peek()[2][1].pid)]))
        os.kill(os.getpid(), 9)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=60)
    for pid in (tmp_path / "pids").read_text().split():
        for _ in range(200):
            if not _runs(int(pid)):
                break
            time.sleep(0.05)
        assert not _runs(int(pid))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "code",
    [
        "os.system('true')",
        "subprocess.run(['true'])",
        "open('written', 'w')",
        "open('/tmp/written', 'ab')",
        "os.open('written', os.O_CREAT | os.O_WRONLY)",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.remove('file')",
        "os.kill(1, 0)",
        "__import__('socket').create_connection(('127.0.0.1', 9))",
        "__import__('ctypes').CDLL(None)",
    ],
)
def test_a_sealed_child_refuses(sealed: ForkServer, code: str) -> None:
    session = sealed.open_session()
    assert session.ask("1 + 1") == "2"
    with pytest.raises(FailedError, match="a sealed process may not"):
        session.ask(code)
    session.close()


def test_a_clean_process_that_was_killed_is_replaced(judge: Judge) -> None:
    server = ForkServer("judged:prepare", limits=SHORT)
    server.open_session().close()
    assert server._finalizer is not None
    process = server._finalizer.peek()[2][1]  # type: ignore[index]
    process.kill()
    process.wait()
    session = server.open_session()
    assert session.alive
    session.close()
    server.close()


def test_loading_is_waited_for_once_and_counts_for_no_answer() -> None:
    server = ForkServer("judged:slow_to_load", limits=SHORT)
    try:
        with ThreadPoolExecutor(4) as threads:
            waited = list(threads.map(lambda _: server.wait_until_loaded(), range(4)))
        assert min(waited) > 0.2, "all that ask while it loads wait"
        assert server.wait_until_loaded() == 0
        server.close()
        assert server.wait_until_loaded() > 0.2, "another process loads again"
    finally:
        server.close()


def test_what_cannot_be_loaded_is_said_by_the_first_session() -> None:
    server = ForkServer("judged:broken", limits=SHORT)
    server.wait_until_loaded()
    with pytest.raises(NotLoadedError):
        server.open_session()
    server.close()
