"""The cores and the memory that this process may use, given its CPU affinity and cgroup limits.

Nothing here imports torch: OpenMP's wait policy must be set before torch is imported, and MKL's mode before its first
matrix product.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path("/")
# Environment variables, each of which sets how long an OpenMP thread spins before it sleeps.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SHORT_SPIN = "1000"  # of libgomp: about 10 microseconds, less than it takes to wake a thread on an idle core
# MKL's conditional numerical reproducibility: which code paths MKL may choose.
MKL_MODE, REPRODUCIBLE = "MKL_CBWR", "AUTO,STRICT"
# Options of glibc's mallopt with the values in bytes to try, M_MMAP_THRESHOLD (more than 32 MiB is refused by glibc
# before 2.35) and M_TRIM_THRESHOLD; and the environment variables that set the same.
KEPT_MEMORY = {-3: (1 << 30, 1 << 25), -1: ((1 << 31) - 1,)}
ALLOCATION = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")
CACHE = "QED_CACHE"  # the environment variable with the folder of qed's cache
# Garbage collector thresholds during start-up. Importing torch and transformers creates a million objects that stay
# alive, and Python's default of 700 makes the collector scan them again and again.
START_THRESHOLDS = (200_000, 10, 10)


def list_cores() -> frozenset[int]:
    """Return the logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def count_physical_cores(root: Path = ROOT) -> int:
    """Count the physical cores of this process, or the logical ones where the system lists no thread siblings."""
    siblings = set()
    for core in list_cores():
        try:
            text = (root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text("ascii")
        except OSError:
            return len(list_cores())
        siblings.add(text.strip())
    return len(siblings)


def read_cpuinfo(root: Path = ROOT) -> list[tuple[str, str]]:
    """Read /proc/cpuinfo as pairs of name and value; empty on systems other than Linux."""
    with suppress(OSError):
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return []


def is_amd(root: Path = ROOT) -> bool:
    """Return whether Linux reports an AMD CPU."""
    return ("vendor_id", "AuthenticAMD") in read_cpuinfo(root)


def read_cpu_quota(root: Path = ROOT) -> float | None:
    """Read the CPU quota of the cgroup, in cores; None if there is no limit."""
    limits = []
    for folder in _list_control_groups("cpu", root):
        with suppress(OSError, ValueError):
            quota_and_period = (folder / "cpu.max").read_text("ascii").split()
            limits.append(int(quota_and_period[0]) / int(quota_and_period[1]))
        with suppress(OSError, ValueError):
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text("ascii") for name in ("quota", "period"))
            if int(quota) > 0:
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def read_memory_limit(root: Path = ROOT) -> int | None:
    """Read the memory limit of the cgroup, in bytes; None if there is no limit."""
    limits = []
    for folder in _list_control_groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text("ascii")))
    # Without a limit, cgroup v1 reports a number near 2^63.
    return min((limit for limit in limits if limit < 1 << 60), default=None)


@functools.cache
def total_memory(root: Path = ROOT) -> int:
    """Return the total memory for this process in bytes, as of the first call; does not need /proc."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, read_memory_limit(root) or total)


def read_memory(root: Path = ROOT) -> tuple[int, int]:
    """Read the total and the available bytes of memory for this process.

    Raises:
        OSError: the system has no /proc/meminfo.
    """
    fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text("ascii").splitlines() if ":" in line)
    total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = read_memory_limit(root)
    return (total, free) if limit is None else (min(total, limit), min(free, limit))


def find_cache() -> Path:
    """Return the folder of qed's cache: `QED_CACHE`, or `qed` in the user's cache folder.

    For a user without a home directory, such as a numeric user in a container, it is below the temporary folder.

    Raises:
        OSError: the folder below the temporary one cannot be created, or others may write to it.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return Path(os.environ.get(CACHE) or caches / "qed").expanduser()
    except RuntimeError:
        import tempfile  # noqa: PLC0415 -- few need it, and everything imports this module

        folder = Path(tempfile.gettempdir(), f"qed-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()  # another user may have created it first
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
            refusal = f"others own it or can write to it; set the environment variable {CACHE} to another folder"
            raise PermissionError(errno.EACCES, refusal, str(folder)) from None
        return folder


@contextmanager
def set_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for the duration of a block, and restore it afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)  # another thread may have removed it already
        else:
            os.environ[name] = before


@contextmanager
def set_context(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable for the duration of a block, and restore it afterwards."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def may_have_cuda(root: Path = ROOT) -> bool:
    """Return whether a CUDA or ROCm driver's device file exists; whether torch can use the device is another matter."""
    return any((root / "dev" / name).exists() for name in ("nvidiactl", "kfd", "dxg"))


def _list_control_groups(controller: str, root: Path) -> Iterator[Path]:
    """List the folders of this process's cgroup and of its parents, for cgroup v1 and v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controllers if controllers else mount
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            yield top / folder


def count_usable_cores(root: Path = ROOT) -> int:
    """Count the cores that this process can keep busy."""
    return _limit_to_quota(len(list_cores()), root)


def count_local_ranks() -> int:
    """Count the processes of this run on this machine, by the variable that torchrun sets."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(number)) if number.isdecimal() else 1


def choose_threads(root: Path = ROOT, ranks: int = 1) -> int:
    """Choose the number of threads for numeric kernels: OMP_NUM_THREADS, else the physical cores of this process.

    Args:
        root: of the file system.
        ranks: the number of processes of the run that share these cores. With several, OMP_NUM_THREADS=1 is ignored
            under torchrun, which sets it unless the user has; `run.threads` sets 1 thread.
    """
    requested = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    set_by_torchrun = requested == "1" and ranks > 1 and "TORCHELASTIC_RUN_ID" in os.environ
    if requested.isdecimal() and int(requested) and not set_by_torchrun:
        return int(requested)
    return max(1, _limit_to_quota(count_physical_cores(root), root) // ranks)


def _limit_to_quota(count: int, root: Path) -> int:
    """Return a number of cores, at most the CPU quota and at least 1."""
    quota = read_cpu_quota(root)
    return count if quota is None else max(1, min(count, int(quota)))


def set_passive_waiting() -> None:
    """Make waiting OpenMP threads sleep after a short spin; call it before torch is imported.

    A spinning thread occupies a core that the thread it waits for may need, which makes a step many times slower on a
    busy machine; no spin at all is slower on an idle one. docs/doctor.md has the figures. A wait policy set by the user
    is kept.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=SHORT_SPIN)


def make_products_reproducible() -> None:
    """Make MKL's matrix products bitwise reproducible; call it before the first product.

    Otherwise MKL may choose its code path by the memory alignment of the operands, as it does on AMD CPUs: the last
    bits of a product then depend on the addresses of its operands, and a resumed run differs from an uninterrupted one.
    The command line, every training and every evaluation call it; a Python program that uses torch earlier must call it
    first. A value of MKL_CBWR set by the user is kept.
    """
    os.environ.setdefault(MKL_MODE, REPRODUCIBLE)


def keep_freed_memory() -> None:
    """Make glibc's malloc keep freed memory for the next tensors of this process; does nothing with other allocators.

    By default malloc returns large blocks to the system at once, and the system clears every page that it hands out
    again, which costs a tenth to a fifth of an update. With this setting the process keeps slightly more memory than
    its peak use. Values that the user has set in the environment are kept.
    """
    if not any(name in os.environ for name in ALLOCATION):
        with suppress(AttributeError, OSError, TypeError):  # another system, or another C library
            set_option = ctypes.CDLL(None).mallopt
            for option, values in KEPT_MEMORY.items():
                next((value for value in values if set_option(option, value)), None)


def collect_garbage_rarely() -> None:
    """Make garbage collection rare while the process starts; call it before torch is imported.

    Its passes during imports take a fifth of the start-up time of a training command and free nothing.
    """
    global _thresholds
    if _thresholds is None and gc.isenabled():
        _thresholds = gc.get_threshold()
        gc.set_threshold(*START_THRESHOLDS)


def collect_garbage_as_usual() -> None:
    """Undo `collect_garbage_rarely`, because from here on a reference cycle may hold a large tensor.

    Imported objects are not scanned again. Does nothing in a process that did not call `collect_garbage_rarely`.
    """
    global _thresholds
    if _thresholds is not None:
        gc.freeze()
        gc.set_threshold(*_thresholds)
        _thresholds = None


_thresholds: tuple[int, int, int] | None = None
