"""What this process may use of the machine: cores and memory, by its affinity and by the limits of its control group.

Nothing here imports torch, because how threads wait must be said before torch is loaded, and how MKL computes before
its first product.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
# Any of them says how long a thread of OpenMP turns on the spot before it sleeps.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# MKL's conditional numerical reproducibility: which of its code paths it may take.
MKL_MODE, REPRODUCIBLE = "MKL_CBWR", "AUTO,STRICT"


def list_cores() -> frozenset[int]:
    """The logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def count_physical_cores(root: Path = ROOT) -> int:
    """How many physical cores those are; the logical ones where the system does not tell which share one."""
    siblings = set()
    for core in list_cores():
        try:
            told = (root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text("ascii")
        except OSError:
            return len(list_cores())
        siblings.add(told.strip())
    return len(siblings)


def read_cpu_quota(root: Path = ROOT) -> float | None:
    """The processor time that the control group grants, in cores; None where it sets no limit."""
    granted = []
    for folder in _list_control_groups("cpu", root):
        with suppress(OSError, ValueError):
            told = (folder / "cpu.max").read_text("ascii").split()
            granted.append(int(told[0]) / int(told[1]))
        with suppress(OSError, ValueError):
            share, period = ((folder / f"cpu.cfs_{name}_us").read_text("ascii") for name in ("quota", "period"))
            if int(share) > 0:
                granted.append(int(share) / int(period))
    return min(granted, default=None)


def read_memory_limit(root: Path = ROOT) -> int | None:
    """The bytes that the control group grants; None where it sets no limit."""
    granted = []
    for folder in _list_control_groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                granted.append(int((folder / name).read_text("ascii")))
    # Without a limit the older kind of group tells a number near 2^63.
    return min((limit for limit in granted if limit < 1 << 60), default=None)


def total_memory(root: Path = ROOT) -> int:
    """The bytes of memory that there are for this process, on systems without /proc too."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, read_memory_limit(root) or whole)


def read_memory(root: Path = ROOT) -> tuple[int, int]:
    """The bytes of memory that there are for this process, and those of them that are free.

    Raises:
        OSError: the system does not tell.
    """
    told = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text("ascii").splitlines() if ":" in line)
    whole, free = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = read_memory_limit(root)
    return (whole, free) if limit is None else (min(whole, limit), min(free, limit))


def _list_control_groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group and of those around it, of both kinds of hierarchy."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mounted / controllers if controllers else mounted
        inner = Path(path.lstrip("/"))
        for around in (inner, *inner.parents):
            yield top / around


def count_usable_cores(root: Path = ROOT) -> int:
    """How many cores this process can keep busy."""
    return _limit_to_quota(len(list_cores()), root)


def choose_threads(root: Path = ROOT) -> int:
    """The threads that numeric kernels should take: what OMP_NUM_THREADS says, else the physical cores of this
    process."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else _limit_to_quota(count_physical_cores(root), root)


def _limit_to_quota(count: int, root: Path) -> int:
    granted = read_cpu_quota(root)
    return count if granted is None else max(1, min(count, int(granted)))


def set_passive_waiting() -> None:
    """Let OpenMP's threads sleep while they wait; must be called before torch is imported.

    One that turns on the spot holds a core which the thread that it waits for may need, and on a busy machine that
    makes a step many times slower; docs/doctor.md has the figures. Who has said otherwise is left alone.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def make_products_reproducible() -> None:
    """Tell MKL to compute the same product of the same numbers in the same way; must be called before its first one.

    Otherwise MKL may choose its code by the memory alignment of the operands, as it does on AMD's processors: the last
    bits of a product then depend on where the allocator puts its operands, and a resumed run differs from an
    uninterrupted one. The command line and every training or evaluation call it; a Python program that computes with
    torch before that calls it first. A value of MKL_CBWR that the user has set stays.
    """
    os.environ.setdefault(MKL_MODE, REPRODUCIBLE)
