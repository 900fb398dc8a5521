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
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from qed import host

SOURCES = Path(__file__).parent
# Sums are in the order that the files write, and NaN stays NaN: no option here lets the compiler assume otherwise.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-Wno-psabi", "-fopenmp", "-shared", "-fPIC")
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
    """Compile to a file of its own, which then takes the place of the target: other processes may do so too.

    Raises:
        OSError: the compiler or the cache cannot be used.
        subprocess.CalledProcessError: the compiler refused.
        subprocess.TimeoutExpired: it did not end.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        files = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
        command = [*compiler, *FLAGS, *SHARED, *files, "-o", made]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
        os.replace(made, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(made)
