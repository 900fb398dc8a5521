"""What a process may use of its machine, how its threads wait, and how those that grade stand behind the step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from qed import host
from qed.grading.fork_server import ForkServer
from qed.models import threads


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="ascii")
    return root


def test_the_narrowest_group_around_the_process_grants_its_cores(tmp_path: Path) -> None:
    told = {"proc/self/cgroup": "0::/pod/box", "sys/fs/cgroup/pod/cpu.max": "150000 100000"}
    root = write(tmp_path, {**told, "sys/fs/cgroup/pod/box/cpu.max": "max 100000"})
    assert host.read_cpu_quota(root) == 1.5
    assert host.count_usable_cores(root) == 1
    write(root, {"sys/fs/cgroup/pod/box/cpu.max": "50000 100000"})
    assert host.read_cpu_quota(root) == 0.5
    assert host.count_usable_cores(root) == 1


def test_the_older_kind_of_group_is_read_too(tmp_path: Path) -> None:
    told = {"proc/self/cgroup": "4:cpu,cpuacct:/box\n3:memory:/box\n2:pids:/"}
    for group, share in {"box/": 300000, "": -1}.items():
        told[f"sys/fs/cgroup/cpu,cpuacct/{group}cpu.cfs_quota_us"] = str(share)
        told[f"sys/fs/cgroup/cpu,cpuacct/{group}cpu.cfs_period_us"] = "100000"
    told["sys/fs/cgroup/memory/box/memory.limit_in_bytes"] = str(3 << 30)
    told["sys/fs/cgroup/memory/memory.limit_in_bytes"] = str((1 << 63) - 4096)
    told["proc/meminfo"] = "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB"
    root = write(tmp_path, told)
    assert host.read_cpu_quota(root) == 3
    assert host.read_memory(root) == (3 << 30, 1 << 30)


def test_without_groups_nothing_is_limited(tmp_path: Path) -> None:
    assert host.read_cpu_quota(tmp_path) is None
    assert host.read_memory_limit(tmp_path) is None
    assert host.count_usable_cores(tmp_path) == len(host.list_cores())


def test_the_whole_memory_is_known_without_proc(tmp_path: Path) -> None:
    """The sampler asks for it on every system."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host.total_memory(tmp_path / "without") == pages
    group = {"proc/self/cgroup": "0::/box", "sys/fs/cgroup/box/memory.max": "4096"}
    assert host.total_memory(write(tmp_path, group)) == 4096


def test_two_logical_cores_of_one_physical_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "list_cores", lambda: frozenset({0, 1, 2}))
    shared = {0: "0,4", 1: "1", 2: "2-3", 3: "2-3"}
    place = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = write(tmp_path, {place.format(core): told for core, told in shared.items()})
    assert host.count_physical_cores(root) == 3
    monkeypatch.setattr(host, "list_cores", lambda: frozenset({0, 2, 3}))
    assert host.count_physical_cores(root) == 2
    monkeypatch.setattr(host, "list_cores", lambda: frozenset({2, 7}))
    assert host.count_physical_cores(root) == 2, "what the system does not tell is not guessed"


@pytest.mark.parametrize(("told", "meant"), [("7", 7), ("5,2", 5), ("", None), ("0", None), ("many", None)])
def test_omp_num_threads_is_honoured(monkeypatch: pytest.MonkeyPatch, told: str, meant: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr(host, "count_physical_cores", lambda root: 3)
    monkeypatch.setattr(host, "read_cpu_quota", lambda root: None)
    assert host.choose_threads() == (meant or 3)
    monkeypatch.setattr(host, "read_cpu_quota", lambda root: 2.9)
    assert host.choose_threads() == (meant or 2)


def test_ranks_share_the_cores_whatever_torchrun_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sets OMP_NUM_THREADS to 1 for each of several processes; without it a 1 is the user's."""
    monkeypatch.setattr(host, "count_physical_cores", lambda root: 9)
    monkeypatch.setattr(host, "read_cpu_quota", lambda root: None)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert host.choose_threads(ranks=4) == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert [host.choose_threads(ranks=ranks) for ranks in (1, 4, 20)] == [1, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert host.choose_threads(ranks=4) == 3


def test_kernels_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "choose_threads", lambda: 2)
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()

    @threads.restore_threads()
    def fails() -> None:
        threads.set_threads(0, "medium")
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (2, "medium")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("PASSIVE", host.SHORT_SPIN)),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None)),
        ({"GOMP_SPINCOUNT": "9"}, (None, "9")),
    ],
)
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(
    given: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    """It must be said before torch is loaded, because its OpenMP reads the variable then."""
    code = (
        "import os, sys\nfrom qed.cli.main import main\ntry:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"
    )
    kept = {name: value for name, value in os.environ.items() if name not in host.WAITING}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept | given)
    assert done.stdout.splitlines()[-1] == f"False {expected[0]} {expected[1]}"


@pytest.mark.parametrize("given", [None, "COMPATIBLE"])
def test_the_command_line_makes_products_reproducible_unless_the_user_says_otherwise(given: str | None) -> None:
    """Before torch is loaded, so before MKL's first product, when it reads the variable."""
    code = (
        "import os, sys\nfrom qed.cli.main import main\ntry:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, os.environ['MKL_CBWR'])"
    )
    kept = {name: value for name, value in os.environ.items() if name != host.MKL_MODE}
    told = {host.MKL_MODE: given} if given else {}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept | told)
    assert done.stdout.splitlines()[-1] == f"False {given or host.REPRODUCIBLE}"


@pytest.mark.parametrize("sealed", [False, True])
def test_what_grades_has_one_thread_and_stands_behind_the_step(monkeypatch: pytest.MonkeyPatch, sealed: bool) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    zygote = ForkServer("judged:standing", sealed=sealed)
    try:
        session = zygote.open_session()
        assert [session.ask(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")] == ["1", "1"]
        assert session.ask("") > os.nice(0)
        session.close()
    finally:
        zygote.close()
    assert os.environ["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize("name", [None, *host.ALLOCATION])
def test_freed_memory_is_kept_unless_the_environment_says_otherwise(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda option, value: not options.append((option, value)))  # type: ignore[func-returns-value]
    monkeypatch.setattr("ctypes.CDLL", lambda _: library)
    for each in host.ALLOCATION:
        monkeypatch.delenv(each, raising=False)
    if name:
        monkeypatch.setenv(name, "1")
    host.keep_freed_memory()
    assert options == ([] if name else [(option, values[0]) for option, values in host.KEPT_MEMORY.items()])


def test_a_library_that_refuses_a_value_gets_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[int, int] = {}

    def set_option(option: int, value: int) -> bool:
        accepted = value <= 1 << 25 or option == -1
        return accepted and taken.setdefault(option, value) == value

    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=set_option))
    for each in host.ALLOCATION:
        monkeypatch.delenv(each, raising=False)
    host.keep_freed_memory()
    assert taken == {-3: 1 << 25, -1: (1 << 31) - 1}


def test_another_c_library_keeps_its_own_way_of_freeing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace())
    for each in host.ALLOCATION:
        monkeypatch.delenv(each, raising=False)
    host.keep_freed_memory()
