"""Checks of what surrounds a run: threads, versions, servers, the disk, the hub's cache. None of them uses the
network."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from qed import host
from qed.doctor.card import Finding

GIB = 2**30
NEEDED = ("torch", "transformers", "peft", "tokenizers", "safetensors", "datasets", "math-verify")
OPTIONAL = ("bitsandbytes", "trl", "reasoning-gym", "flash-attn")
LONG_SPIN = 10_000  # turns of a waiting thread; libgomp's own default, 300,000, holds a core for about a millisecond
BUSY_SHARE = 0.5  # of the cores; from here on others are said to hold them
LITTLE_DISK = 5 * GIB
TRUE = ("1", "on", "yes", "true")
OPENMP = (*host.WAITING, "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def check_threads() -> Finding:
    """The cores that this process may use, the threads that it takes, and settings that make them slow."""
    cores, physical, quota = len(host.list_cores()), host.count_physical_cores(), host.read_cpu_quota()
    load = os.getloadavg()[0]
    told = {name: os.environ[name] for name in OPENMP if name in os.environ}
    lines = (
        f"{physical} physical of {cores} logical cores by affinity (the machine has {os.cpu_count()}), "
        f"{'no quota' if quota is None else f'a quota of {quota:g} cores'}: run.threads 0 takes "
        f"{host.choose_threads()}",
        ("OpenMP is told " + ", ".join(f"{name}={value}" for name, value in told.items())) if told else "",
        f"load average {load:.1f} on {host.count_usable_cores()} usable cores",
    )
    facts = {
        "logical": cores,
        "physical": physical,
        "quota": quota,
        "usable": host.count_usable_cores(),
        "taken": host.choose_threads(),
        "load": load,
        "openmp": told,
    }
    return Finding(
        tuple(filter(None, lines)),
        facts,
        (*find_harmful_settings(told, host.count_usable_cores()), *_find_crowding(load)),
    )


def find_harmful_settings(told: Mapping[str, str], usable: int) -> tuple[str, ...]:
    """What is wrong with OpenMP's variables where so many cores can be used."""
    advice = []
    if "OMP_NUM_THREADS" in told and host.choose_threads() > usable:
        advice.append(
            f"OMP_NUM_THREADS={told['OMP_NUM_THREADS']} asks for more threads than the {usable} cores that this "
            f"process may use: they wait for each other, many times slower. Unset it, or set at most {usable}."
        )
    spins = told.get("GOMP_SPINCOUNT", "0").lower()
    if told.get("OMP_WAIT_POLICY", "").lower() == "active" or not spins.isdecimal() or int(spins) > LONG_SPIN:
        advice.append(
            "OMP_WAIT_POLICY or GOMP_SPINCOUNT lets waiting threads turn on the spot, which holds cores that others "
            "need. Unset both: qed then lets them sleep."
        )
    pinned = [name for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES") if name in told]
    if told.get("OMP_PROC_BIND", "false").lower() != "false":
        pinned.append("OMP_PROC_BIND")
    if pinned:
        advice.append(
            f"{' and '.join(pinned)} bind threads to cores: two runs so bound share the first cores while others stand "
            "idle. Unset them unless this run has the machine to itself."
        )
    return tuple(advice)


def _find_crowding(load: float) -> tuple[str, ...]:
    if load < BUSY_SHARE * host.count_usable_cores():
        return ()
    return (
        f"Other processes hold about {load:.1f} of the {host.count_usable_cores()} cores: times measured now say "
        "little, and "
        "fewer threads (--run.threads) may be faster.",
    )


def check_versions() -> Finding:
    """Python and the packages that matter; one that is needed and absent is said."""
    found = {name: _read_version(name) for name in ("qed", *NEEDED, *OPTIONAL)}
    there = [f"{name} {number}" for name, number in found.items() if number]
    absent = [name for name, number in found.items() if number is None]
    lines = [f"python {platform.python_version()}, {', '.join(there)}"]
    lines += [f"not installed: {', '.join(absent)}"] if absent else []
    missing = [name for name in NEEDED if found[name] is None]
    advice = [f"{' and '.join(missing)} cannot be found: install qed again, with its dependencies."] if missing else []
    return Finding(tuple(lines), {"python": platform.python_version(), **found}, tuple(advice))


def _read_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_vllm() -> Finding:
    """Whether the package vLLM is here, or the address of a server; nobody is asked."""
    package, address = importlib.util.find_spec("vllm") is not None, os.environ.get("VLLM_URL", "")
    # A password in an address is nobody's business.
    parts = urlsplit(address)
    shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}" if parts.hostname else None
    line = (
        f"the package is {'here' if package else 'not installed'}; "
        + (f"VLLM_URL names {shown} (not asked)" if shown else "VLLM_URL is not set")
        + "; qed samples by itself without either"
    )
    wrong = address and not shown
    advice = ("VLLM_URL is no address, such as http://127.0.0.1:8000.",) if wrong else ()
    return Finding((line,), {"package": package, "url": shown}, advice)


def check_disk(folder: Path = Path("runs")) -> Finding:
    """The room where runs are written."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    line = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free where {folder}/ is written ({place})"
    little = f"Little room is left in {place}: set run.keep_last, or give --out a folder on another disk."
    facts = {"folder": str(place), "free_gib": usage.free / GIB, "whole_gib": usage.total / GIB}
    return Finding((line,), facts, (little,) if usage.free < LITTLE_DISK else ())


def check_hub() -> Finding:
    """Where models and data from the hub are kept, how many are there, and whether the network may be asked."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in TRUE
    held = sorted(path.name for path in cache.glob("*s--*")) if cache.is_dir() else []
    line = f"{cache}: {f'{len(held)} models and data sets' if held else 'nothing yet'}; HF_HUB_OFFLINE is " + (
        "set, so that only these are found" if offline else "not set, so that the hub is asked for others"
    )
    return Finding((line,), {"cache": str(cache), "held": len(held), "offline": offline})
