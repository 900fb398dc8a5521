"""Correctness first: the tests that need a device; each outcome is written immediately."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from gpu_parts.report import Report
from qed.host import count_usable_cores

ROOT = Path(__file__).parents[2]
# What is compared on the device: CUDA graphs with plain steps; layers and output layers with kernels with those of
# torch; packed rows with padded ones; 4-bit weights; offloaded and 8-bit moments; sampler and learner in bfloat16; a
# run.
FILES = tuple(
    f"tests/parity/test_{name}.py"
    for name in (
        "devices",
        "graphs",
        "cuda_decoding",
        "layer_kernels",
        "output_tile_kernels",
        "packed_attention",
        "offload",
        "optimizers",
    )
)
PROCESSES = 8  # maximum; tests compile, each on one core
OUTCOME = re.compile(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) (tests/\S+::.+)")
REASONS = re.compile(r"^SKIPPED \[\d+\] (.+)")
MOST = 12_000  # maximum characters of output to keep


def run_checks(device: str, name: str, report: Report) -> None:
    """Run the tests of a device; on a CPU, those of them that a CPU can run."""
    chosen = ["-m", "gpu", *FILES] if device == "cuda" else ["-k", "cpu", FILES[0]]
    command = [sys.executable, "-m", "pytest", "-v", "-rfEs", "--tb=short", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["-n", str(min(PROCESSES, count_usable_cores())), "--dist", "load", "-p", "gpu_parts.failures"]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    process = subprocess.Popen(
        [*command, *chosen],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    tests: dict[str, str] = {}
    reasons: list[str] = []
    output = ""
    for line in process.stdout:
        output = (output + line)[-MOST:]
        if found := OUTCOME.match(line):
            tests[found[2].strip()] = {"ERROR": "failed"}.get(found[1], found[1].lower())
            # The reason of a failure was printed before; pytest's report comes only at the end, which may be cut off.
            failed = {"output": output} if tests[found[2].strip()] == "failed" else {}
            report.add_part(name, tests=tests, **failed)
        elif found := REASONS.match(line):
            reasons.append(found[1])
    process.wait()
    report.add_part(name, tests=tests, skip_reasons=reasons, exit_code=process.returncode)
    if process.returncode or "failed" in tests.values() or not tests:
        report.add_part(name, output=output)
