"""Check the environment of a run: threads, versions, servers, disk and the hub's cache, without using the network."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from qed import host
from qed.config.values import TRUE
from qed.doctor.card import Finding

GIB = 2**30
NEEDED = ("torch", "transformers", "peft", "tokenizers", "safetensors", "datasets", "math-verify")
OPTIONAL = ("bitsandbytes", "trl", "reasoning-gym", "flash-attn")
LONG_SPIN = 10_000  # spins of a waiting thread; libgomp's default, 300,000, occupies a core for about a millisecond
BUSY_SHARE = 0.5  # load per core above which a warning is given
LITTLE_DISK = 5 * GIB
OPENMP = (*host.WAITING, "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def check_threads() -> Finding:
    """Check the usable cores, the number of threads, and settings that slow threads down."""
    cores, physical, quota = len(host.list_cores()), host.count_physical_cores(), host.read_cpu_quota()
    load = os.getloadavg()[0]
    variables = {name: os.environ[name] for name in OPENMP if name in os.environ}
    lines = (
        f"{physical} physical of {cores} logical cores by affinity (the machine has {os.cpu_count()}), "
        f"{'no quota' if quota is None else f'a quota of {quota:g} cores'}: run.threads 0 takes "
        f"{host.choose_threads()}",
        ("OpenMP variables: " + ", ".join(f"{name}={value}" for name, value in variables.items())) if variables else "",
        f"load average {load:.1f} on {host.count_usable_cores()} usable cores",
    )
    facts = {
        "logical": cores,
        "physical": physical,
        "quota": quota,
        "usable": host.count_usable_cores(),
        "taken": host.choose_threads(),
        "load": load,
        "openmp": variables,
    }
    return Finding(
        tuple(filter(None, lines)),
        facts,
        (*find_harmful_settings(variables, host.count_usable_cores()), *_find_crowding(load)),
    )


def find_harmful_settings(variables: Mapping[str, str], usable: int) -> tuple[str, ...]:
    """Return advice on OpenMP's variables for `usable` cores."""
    advice = []
    if "OMP_NUM_THREADS" in variables and host.choose_threads() > usable:
        advice.append(
            f"OMP_NUM_THREADS={variables['OMP_NUM_THREADS']} asks for more threads than the {usable} cores that this "
            f"process may use: they wait for each other, many times slower. Unset it, or set at most {usable}."
        )
    spins = variables.get("GOMP_SPINCOUNT", "0").lower()
    if variables.get("OMP_WAIT_POLICY", "").lower() == "active" or not spins.isdecimal() or int(spins) > LONG_SPIN:
        advice.append(
            "OMP_WAIT_POLICY or GOMP_SPINCOUNT makes waiting threads spin, which occupies cores that others need. "
            "Unset both: qed then lets them sleep."
        )
    pinned = [name for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES") if name in variables]
    if variables.get("OMP_PROC_BIND", "false").lower() != "false":
        pinned.append("OMP_PROC_BIND")
    if pinned:
        advice.append(
            f"{' and '.join(pinned)} bind threads to cores: two such runs share the first cores while others are "
            "idle. Unset them unless this is the only run on the machine."
        )
    return tuple(advice)


def _find_crowding(load: float) -> tuple[str, ...]:
    if load < BUSY_SHARE * host.count_usable_cores():
        return ()
    return (
        f"Other processes use about {load:.1f} of the {host.count_usable_cores()} cores: times measured now are "
        "unreliable, and fewer threads (--run.threads) may be faster.",
    )


def check_versions() -> Finding:
    """Check the versions of Python and of the relevant packages, and report missing ones."""
    versions = {name: _read_version(name) for name in ("qed", *NEEDED, *OPTIONAL)}
    installed = [f"{name} {number}" for name, number in versions.items() if number]
    absent = [name for name, number in versions.items() if number is None]
    lines = [f"python {platform.python_version()}, {', '.join(installed)}"]
    lines += [f"not installed: {', '.join(absent)}"] if absent else []
    missing = [name for name in NEEDED if versions[name] is None]
    advice = [f"{' and '.join(missing)} cannot be found: reinstall qed with its dependencies."] if missing else []
    advice += _find_missing_bytecode()
    return Finding(tuple(lines), {"python": platform.python_version(), **versions}, tuple(advice))


def _find_missing_bytecode() -> tuple[str, ...]:
    """Return advice if every start compiles torch and the other packages because Python cannot keep their bytecode."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or Path(importlib.util.cache_from_source(torch.origin)).exists():
        return ()
    folder = Path(torch.origin).parent
    if not sys.dont_write_bytecode and os.access(folder, os.W_OK):
        return ()
    cause = (
        "it may not write bytecode (PYTHONDONTWRITEBYTECODE)" if sys.dont_write_bytecode else f"{folder} is read-only"
    )
    return (
        f"Python compiles all packages at each start, which takes two to three times as long, because {cause} and they "
        "were installed without it. Compile them once where they are installed: uv sync --compile-bytecode, or "
        f"python -m compileall {folder.parent}.",
    )


def _read_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_vllm() -> Finding:
    """Check whether the package vLLM is installed, or a server's address is set; the server is not contacted."""
    package, address = importlib.util.find_spec("vllm") is not None, os.environ.get("VLLM_URL", "")
    # An address may contain a password, which is not shown.
    parts = urlsplit(address)
    shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}" if parts.hostname else None
    line = (
        f"the package is {'installed' if package else 'not installed'}; "
        + (f"VLLM_URL is {shown} (not contacted)" if shown else "VLLM_URL is not set")
        + "; qed needs neither for sampling"
    )
    invalid = address and not shown
    advice = ("VLLM_URL is not an address, such as http://127.0.0.1:8000.",) if invalid else ()
    return Finding((line,), {"package": package, "url": shown}, advice)


def check_disk(folder: Path = Path("runs")) -> Finding:
    """Check the free space where runs are written."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    line = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free for {folder}/ ({place})"
    warning = f"Little space is left in {place}: set run.keep_last, or use --out with a folder on another disk."
    facts = {"folder": str(place), "free_gib": usage.free / GIB, "whole_gib": usage.total / GIB}
    return Finding((line,), facts, (warning,) if usage.free < LITTLE_DISK else ())


def check_hub() -> Finding:
    """Check the cache of the hub's models and data sets, and whether the network may be used."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    # As in the hub's library, the path is not expanded if there is no home folder.
    cache = Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or home / "hub"))
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in TRUE
    cached = sorted(path.name for path in cache.glob("*s--*")) if cache.is_dir() else []
    line = f"{cache}: {f'{len(cached)} models and data sets' if cached else 'nothing yet'}; HF_HUB_OFFLINE is " + (
        "set: only these are available" if offline else "not set: others are downloaded"
    )
    return Finding((line,), {"cache": str(cache), "held": len(cached), "offline": offline})
