"""What runs in a clean process and in its children; see fork_server.py for the side that asks."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from qed.grading.fork_server import END, MESSAGE
from qed.guards.parents import die_with_parent

# What a sealed child must never do, by the names of Python's audit events; a name that ends in a dot is a family.
FORBIDDEN = {
    "programs": "os.system os.exec os.posix_spawn os.spawn os.fork os.forkpty os.startfile subprocess.Popen pty.spawn",
    "processes": "os.kill os.killpg signal.pthread_kill os.putenv",
    "files": "os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.chmod os.chown os.truncate shutil. tempfile.",
    "network": "socket.connect socket.bind socket.sendto socket.getaddrinfo ftplib. urllib. webbrowser.",
    "memory": "ctypes.",
}
FORBIDDEN_NAMES = " ".join(FORBIDDEN.values()).split()
FORBIDDEN_EVENTS = frozenset(name for name in FORBIDDEN_NAMES if not name.endswith("."))
FORBIDDEN_FAMILIES = tuple(name for name in FORBIDDEN_NAMES if name.endswith("."))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SEALED_FILES = 64  # open at once
# Steps go first where both want a core. Beside a step a process of this niceness still gets a third of the core, and
# its limit by the clock is six times that of processor time, so it does not meet that one first.
NICENESS = 3

Answer = Callable[[Any], Any]


def main() -> None:
    """Load the target, then fork a child for every socket that comes; end when the caller's end closes."""
    (target, arguments, memory, sealed), control = json.loads(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
    die_with_parent(int(sys.argv[4]))()
    if sealed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(2, 1)  # stdout belongs to the caller: its last line may be read by a program
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    failed, about, answer = "", None, None
    try:
        module, _, name = target.partition(":")
        about, answer = getattr(importlib.import_module(module), name)(*arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever it is, the caller is told
        failed = f"{type(error).__name__}: {error}"
    # From here on the socket tells when the caller is gone, and then what the children have started is ended with them.
    die_with_parent(0)()
    bind = die_with_parent(os.getpid())
    children: set[int] = set()
    while True:
        message, channels, _, _ = socket.recv_fds(control, MESSAGE, 1)
        if not message:
            _end_children(children)
            return
        with socket.socket(fileno=channels[0]) as channel:
            if message[:1] == END:
                _end_child(int.from_bytes(message[1:], "big"), children, channel)
            elif answer is None:
                _send(channel, {"failed": failed})
            elif (number := os.fork()) == 0:
                control.close()
                bind()
                _serve_child(channel, about, answer, memory, sealed)
            else:
                _lead_group(number)
                children.add(number)


def _lead_group(number: int) -> None:
    """Make a child the leader of a group, so that what it starts ends with it; both sides do, whoever is first."""
    with contextlib.suppress(OSError):
        os.setpgid(number, number)


def _serve_child(channel: socket.socket, about: Any, answer: Answer, memory: int, sealed: bool) -> None:
    """Answer questions until the caller closes its end; never returns."""
    code = 1
    try:
        _lead_group(os.getpid())
        _set_limits(memory, sealed)
        _send(channel, {"number": os.getpid(), "about": about})
        with channel.makefile("rb") as questions:
            for line in questions:
                _send(channel, _answer_question(answer, *json.loads(line)))
        code = 0
    finally:
        os._exit(code)


def _answer_question(answer: Answer, cpu: float, question: Any) -> dict[str, Any]:
    """One answer, within its processor time: when that is spent the kernel ends the process, whatever it is doing."""
    signal.setitimer(signal.ITIMER_PROF, cpu)
    began = time.perf_counter()
    try:
        told = {"answer": answer(question)}
        json.dumps(told)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a reward of somebody's own may raise anything
        told = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:1000]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {**told, "seconds": time.perf_counter() - began}


def _set_limits(memory: int, sealed: bool) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Not every system counts address space, and one that does not has no limit to give.
    with contextlib.suppress(OSError, ValueError):
        most = _read_address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if sealed:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (SEALED_FILES, SEALED_FILES))
        sys.addaudithook(_refuse_event)


def _read_address_space() -> int:
    """The bytes of address space that loading took."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _refuse_event(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and arguments[2] & WRITING
    if writes or event in FORBIDDEN_EVENTS or event.startswith(FORBIDDEN_FAMILIES):
        raise PermissionError(f"a sealed process may not {event}")


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _end_child(number: int, children: set[int], channel: socket.socket) -> None:
    """End a child and what it started, and tell its exit status; one already dying keeps the status it dies with.

    Only this process reaps, so the number cannot have become that of another process.
    """
    status = 0
    if number in children:
        _kill_group(number)
        _, status = os.waitpid(number, 0)
        children.discard(number)
    with contextlib.suppress(OSError):
        channel.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _kill_group(number: int) -> None:
    os.kill(number, signal.SIGKILL)
    with contextlib.suppress(OSError):  # a child may have left its group
        os.killpg(number, signal.SIGKILL)


def _end_children(children: set[int]) -> None:
    for number in children:
        _kill_group(number)
