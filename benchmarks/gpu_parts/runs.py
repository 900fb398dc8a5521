"""Whole runs on the card, as a user starts them: measured fit, preflight check, steps, and the saved model.

The other parts of the kit call the sampler and the learner directly; here `qed grpo` chooses the sizes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import torch

from gpu_parts.report import Figures, Report
from gpu_parts.shapes import LORA_RANK, Shape, save_model
from qed.errors import QedError
from qed.runs.run import read_lines
from qed.serving.install import VARIABLE, find_vllm

STEPS = 3
MOST = 4000  # maximum characters of a run's output to keep
# Random weights answer nothing right, so use a reward that differs between answers.
REWARD = """import zlib


def differ(completions, **_):
    return [zlib.crc32(str(text).encode()) % 100 / 100 for text in completions]
"""
LORA = ("--model.lora_rank", str(LORA_RANK), "--lr", "1e-5")
RUNS = {
    "qlora": (*LORA, "--model.quantization", "nf4"),
    "lora": LORA,
    "full": (),
    "vllm": ("--sampling.sampler", "vllm"),
}


def measure_runs(shape: Shape, device: torch.device, name: str, report: Report, end: float) -> None:
    """Run GRPO with 4-bit weights, with LoRA, with all weights trained, and with vLLM as sampler, within their time."""
    # Processes started by a run that was cut off may still write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        save_model(shape, device, Path(place) / "model")
        (Path(place) / "reward.py").write_text(REWARD, encoding="utf-8")
        for run in RUNS:
            if lack := _find_lack(run, device):
                report.add_part(name, **{run: {"skipped": lack}})
                continue
            left = end - time.time()
            if left < 1:
                return
            report.add_part(name, at=run)
            found = _run(shape, device, Path(place), run, left)
            report.add_part(name, **{run: found})
            if found.get("exit_code"):
                report.add_part(name, failed=f"{run} with exit code {found['exit_code']}")
    report.add_part(name, at="done")


def _find_lack(name: str, device: torch.device) -> str:
    """Return why a run is not possible, or "": two need CUDA and additional packages."""
    if name not in ("qlora", "vllm"):
        return ""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if name == "qlora":
        return "" if find_spec("bitsandbytes") is not None else "bitsandbytes is not installed"
    try:
        find_vllm()
    except QedError as error:
        return str(error)
    return ""


def _run(shape: Shape, device: torch.device, place: Path, name: str, seconds: float) -> Figures:
    out, began = place / name, time.time()
    command = [sys.executable, "-m", "qed", "grpo", "--model", str(place / "model"), "--out", str(out)]
    command += ["--reward", f"{place / 'reward.py'}:differ", "--steps", str(STEPS), "--evaluation.every", "0"]
    command += ["--sampling.problems-per-step", str(shape.problems), "--sampling.group-size", str(shape.group)]
    command += ["--sampling.max-tokens", str(shape.answer), *RUNS[name]]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if device.type == "cuda":
        if name == "vllm":
            env[VARIABLE] = str(find_vllm().python)
        env["XDG_CACHE_HOME"] = str(place / "cache")  # makes the run measure the fit
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=seconds, env=env
        )
    except subprocess.TimeoutExpired as error:
        return {"cut_off": f"after {seconds:.0f} s", "output": _decode(error.stdout), **_read_run(out)}
    return {
        "exit_code": done.returncode,
        "wall_s": round(time.time() - began, 1),
        "output": _decode(done.stdout),
        **_read_run(out),
    }


def _decode(output: bytes | None) -> str:
    """Return the end of a run's output, which is None if it was cut off without output."""
    return (output or b"").decode(errors="replace")[-MOST:]


def _read_run(out: Path) -> Figures:
    """Return the sizes that the run chose, and the metrics of its steps."""
    events = [one for one in read_lines(out / "events.jsonl") if one["event"] not in ("data", "preflight")]
    steps = [one for one in read_lines(out / "metrics.jsonl") if "mismatch/logp" in one]
    kept = ("time/", "perf/", "mem/", "mismatch/", "optim/grad_norm")
    return {
        "events": events,
        "steps": [{key: value for key, value in one.items() if key.startswith(kept)} for one in steps],
    }
