"""The fork server process and its children; fork_server.py is the caller's side."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from qed.errors import QedError
from qed.grading.fork_server import END, MESSAGE
from qed.guards.parents import die_with_parent

# Python audit events that are forbidden in a sealed child; a name that ends in a dot is a prefix.
FORBIDDEN = {
    "programs": "os.system os.exec os.posix_spawn os.spawn os.fork os.forkpty os.startfile subprocess.Popen pty.spawn",
    "processes": "os.kill os.killpg signal.pthread_kill os.putenv",
    "files": "os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.chmod os.chown os.truncate shutil. tempfile.",
    "network": "socket.connect socket.bind socket.sendto socket.getaddrinfo ftplib. urllib. webbrowser.",
    "memory": "ctypes.",
}
FORBIDDEN_NAMES = " ".join(FORBIDDEN.values()).split()
FORBIDDEN_EVENTS = frozenset(name for name in FORBIDDEN_NAMES if not name.endswith("."))
FORBIDDEN_PREFIXES = tuple(name for name in FORBIDDEN_NAMES if name.endswith("."))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SEALED_FILES = 64  # the most open files of a sealed child
# Training steps have priority. Beside one, a process of this niceness still gets a third of a core, and the wall-clock
# limit is six times the CPU limit, so grading does not reach the wall-clock limit first.
NICENESS = 3

Handler = Callable[[Any], Any]


def main() -> None:
    """Load the target, then fork a child for every socket received; end when the caller closes its end."""
    (target, arguments, memory, sealed, beside), control = (
        json.loads(sys.argv[2]),
        socket.socket(fileno=int(sys.argv[3])),
    )
    die_with_parent(int(sys.argv[4]))()
    if sealed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(2, 1)  # stdout belongs to the caller, whose last line another program may parse
    with contextlib.suppress(OSError):
        os.nice(NICENESS if beside else 0)
    failure, about, handler = "", None, None
    try:
        module, _, name = target.partition(":")
        about, handler = getattr(importlib.import_module(module), name)(*arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- any failure is reported to the caller
        failure = str(error) if isinstance(error, QedError) else f"{type(error).__name__}: {error}"
    # From here on, a closed socket means that the caller has ended: kill the children and their subprocesses.
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
            elif handler is None:
                _send(channel, _encode({"failed": failure}))
            elif (pid := os.fork()) == 0:
                control.close()
                bind()
                _serve_child(channel, about, handler, memory, sealed)
            else:
                _lead_group(pid)
                children.add(pid)


def _lead_group(pid: int) -> None:
    """Make a child the leader of a process group, so that its subprocesses end with it.

    Parent and child both call this, because either may run first.
    """
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def _serve_child(channel: socket.socket, about: Any, handler: Handler, memory: int, sealed: bool) -> None:
    """Answer questions until the caller closes its end; never returns."""
    code = 1
    try:
        _lead_group(os.getpid())
        _set_limits(memory, sealed)
        if (enter := getattr(handler, "enter_child", None)) is not None:
            enter()
        if sealed:
            sys.addaudithook(_refuse_event)
        _send(channel, _encode({"pid": os.getpid(), "about": about}))
        with channel.makefile("rb") as questions:
            for line in questions:
                _send(channel, _answer_question(handler, *json.loads(line)))
        code = 0
    finally:
        os._exit(code)


def _answer_question(handler: Handler, cpu: float, question: Any) -> bytes:
    """Answer one question within its CPU time limit; the kernel kills a process that reaches it."""
    signal.setitimer(signal.ITIMER_PROF, cpu)
    try:
        return _encode({"answer": handler(question)})
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a user's reward may raise anything
        return _encode({"error": " ".join(f"{type(error).__name__}: {error}".split())[:1000]})
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _set_limits(memory: int, sealed: bool) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Some systems do not account for address space and cannot limit it.
    with contextlib.suppress(OSError, ValueError):
        limit = _read_address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if sealed:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (SEALED_FILES, SEALED_FILES))
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # does not restrict root


def _read_address_space() -> int:
    """Return the bytes of address space in use after loading."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _refuse_event(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and arguments[2] & WRITING
    if writes or event in FORBIDDEN_EVENTS or event.startswith(FORBIDDEN_PREFIXES):
        raise PermissionError(f"a sealed process may not {event}")


def _encode(message: Any) -> bytes:
    return json.dumps(message).encode()


def _send(channel: socket.socket, message: bytes) -> None:
    channel.sendall(message + b"\n")


def _end_child(pid: int, children: set[int], channel: socket.socket) -> None:
    """Kill a child and its subprocesses, and send its exit status; a child that is already dying keeps its status.

    Only this process reaps its children, so the pid cannot have been reused.
    """
    status = 0
    if pid in children:
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        children.discard(pid)
    with contextlib.suppress(OSError):
        channel.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _kill_group(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):  # a child may have left its process group
        os.killpg(pid, signal.SIGKILL)


def _end_children(children: set[int]) -> None:
    """Kill the children and wait for them, so that their CPU time counts as this process's."""
    for pid in children:
        _kill_group(pid)
    for pid in children:
        os.waitpid(pid, 0)
