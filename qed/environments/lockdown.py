"""Give up system calls: keep only those for computing, memory, time, and the process's open descriptors.

Linux rejects all others with EPERM (seccomp-bpf, which needs no privileges): the process cannot open a file, make a
socket, start a process or thread, or send a signal. This cannot be undone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable

from qed.errors import QedError

REFUSED = "the kernel does not let a process give up system calls (seccomp); allow it in the container's settings"
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K

# The numbers of the system calls that stay allowed, by machine: (AUDIT_ARCH, name -> number).
MACHINES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            **{"read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10},
            **{"munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "select": 23},
            **{"sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35, "getitimer": 36, "setitimer": 38},
            **{"getpid": 39, "sendto": 44, "recvfrom": 45, "exit": 60, "gettimeofday": 96, "getrusage": 98},
            **{"times": 100, "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202, "clock_gettime": 228},
            **{"clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "getrandom": 318, "ppoll": 271},
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            **{"close": 57, "lseek": 62, "read": 63, "write": 64, "ppoll": 73, "fstat": 80, "exit": 93},
            **{"exit_group": 94, "futex": 98, "nanosleep": 101, "getitimer": 102, "setitimer": 103},
            **{"clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_yield": 124},
            **{"sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153},
            **{"getrusage": 165, "gettimeofday": 169, "getpid": 172, "gettid": 178, "sendto": 206, "recvfrom": 207},
            **{"brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233},
            **{"getrandom": 278},
        },
    ),
}


def build_filter(machine: str) -> bytes:
    """Return the BPF program that allows the system calls listed for a machine, as consecutive `struct sock_filter`."""
    architecture, calls = MACHINES[machine]
    count = len(calls)
    # A jump gives the number of instructions to skip, here up to `ALLOW` at the end.
    steps = [
        (LOAD, 0, 0, 4),  # seccomp_data.arch
        (EQUAL, 0, count + 1, architecture),
        (LOAD, 0, 0, 0),  # seccomp_data.nr
        *((EQUAL, count - number, 0, call) for number, call in enumerate(sorted(calls.values()))),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def is_available() -> bool:
    """Return whether this platform supports giving up system calls."""
    return sys.platform == "linux" and platform.machine() in MACHINES


def try_out() -> None:
    """Test in a temporary process whether it can give up system calls.

    Raises:
        QedError: the kernel does not allow it, as in some containers.
    """
    if (pid := os.fork()) == 0:
        code = 1
        try:
            prepare()()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        raise QedError(REFUSED)


def prepare() -> Callable[[], None]:
    """Return a function that permanently gives up, for its thread, all system calls but those of `MACHINES`.

    Everything is prepared here, because a sealed process may not use ctypes. The function raises OSError if the kernel
    does not allow it.
    """
    program = build_filter(platform.machine())
    code = ctypes.create_string_buffer(program, len(program))
    head = _Program(len(program) // 8, ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    # The kernel requires this first: without new privileges no program can regain what is given up.
    steps = [
        (ctypes.c_int(option), *map(ctypes.c_ulong, rest))
        for option, *rest in (
            (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(head), 0, 0),
        )
    ]
    kept = code, head  # keep them alive: the kernel reads them by address

    def refuse() -> None:
        if not kept or any(prctl(*step) != 0 for step in steps):
            raise OSError(REFUSED)

    return refuse


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))
