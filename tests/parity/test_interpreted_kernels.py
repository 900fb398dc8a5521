"""Kernels in Triton's interpreter, where there is no device: the functions whose names begin with `interpreted`.

The interpreter must be chosen before Triton is imported, so they run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("cuda_decoding", "layer_kernels", "output_tile_kernels", "packed_attention")
FILES = [Path(__file__).with_name(f"test_{name}.py") for name in NAMES]
# Triton's interpreter up to 3.6 at least reads arrays of one element as numbers, which numpy 2.5 refuses.
REFUSED = "only 0-dimensional arrays can be converted to Python scalars"


def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    options = ["-o", "addopts=", "-o", "python_functions=interpreted_*", "-q", "-p", "no:cacheprovider", "-x"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *FILES],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    if REFUSED in done.stdout:
        pytest.skip("Triton's interpreter does not run with this version of numpy")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
