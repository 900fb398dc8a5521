"""Compiles the C++ files of this folder with the instructions of this processor, once, into the user's cache.

That takes a few seconds. Without a compiler qed computes the same by torch's operators.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from qed import host

SOURCES = Path(__file__).parent
# Sums are in the order that the files write, and NaN stays NaN: no option here lets the compiler assume otherwise.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-Wno-psabi", "-fopenmp", "-fPIC")
PATIENCE = 120  # seconds for the compiler


class Build(NamedTuple):
    """The compiled functions, or why there are none."""

    library: ctypes.CDLL | None
    reason: str


def will_compile() -> bool:
    """Return whether `load_library` will call the compiler, which takes some seconds."""
    compiler = _find_compiler()
    return platform.system() == "Linux" and bool(compiler) and not _find_target(compiler).exists()


@cache
def load_library() -> Build:
    """Load the functions; compile them first if this processor has not done so."""
    compiler = _find_compiler()
    if platform.system() != "Linux":
        return Build(None, "the functions in C++ are for Linux")
    if not compiler:
        return Build(None, "there is no C++ compiler (g++)")
    target = _find_target(compiler)
    try:
        if not target.exists():
            _compile(compiler, target)
        return Build(ctypes.CDLL(str(target)), "")
    except subprocess.CalledProcessError as error:
        return Build(None, f"{compiler[0]} failed: {error.stderr.strip().splitlines()[-1] if error.stderr else error}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Build(None, str(error))


def _find_compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "")


def _find_target(compiler: Sequence[str]) -> Path:
    return host.find_cache() / "kernels" / f"{_hash_inputs(compiler)}.so"


def _hash_inputs(compiler: Sequence[str]) -> str:
    """Return a name for what the result depends on: a home folder may be shared by machines."""
    processor = sorted({value for name, value in host.read_cpuinfo() if name in ("model name", "flags", "Features")})
    inputs = hashlib.sha256(repr((compiler, FLAGS, SHARED, platform.machine(), processor)).encode())
    for path in (*sorted(SOURCES.glob("*.cpp")), *sorted(SOURCES.glob("*.h"))):
        inputs.update(path.read_bytes())
    return inputs.hexdigest()[:16]


def _compile(compiler: Sequence[str], target: Path) -> None:
    """Compile in a folder of its own, a file on each core, and put the result in its place: other processes may too.

    Raises:
        OSError: the compiler or the cache cannot be used.
        subprocess.CalledProcessError: the compiler refused.
        subprocess.TimeoutExpired: it did not end.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda path: -path.stat().st_size)  # what takes longest first
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [os.path.join(folder, f"{path.stem}.o") for path in sources]
        made = os.path.join(folder, target.name)
        with ThreadPoolExecutor(host.count_usable_cores()) as threads:
            commands = (
                [*compiler, *FLAGS, *SHARED, "-c", str(source), "-o", out]
                for source, out in zip(sources, objects, strict=True)
            )
            list(threads.map(_call, commands))
        _call([*compiler, *SHARED, "-shared", *objects, "-o", made])
        os.replace(made, target)


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
