"""A complete check and benchmark of qed on one CUDA card, without network access.

    python benchmarks/gpu.py --minutes 15 --json gpu.json
    python benchmarks/gpu.py --device cpu --tiny

Correctness comes first: the tests that need a device. Then come the card's ceilings, and steps of models with random
weights in the shapes of Qwen2.5 0.5 B and 1.5 B, of 1.5 B with QLoRA, and of 7 B with LoRA: seconds by stage, sampled
tokens against the bandwidth floor, the learner's operations against the measured peak of matrix products, and peak
memory against the estimate; then `model.generate` and TRL on the work of the smallest shape, whole runs of `qed grpo`
at 1.5 B, and TRL with vLLM in its process at 1.5 B. Every part is a separate process with a share of the time. The
output file is complete after every figure, so an interrupted benchmark leaves the figures that it has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from gpu_parts.report import Report, format_state, format_table, has_failed

# The parts in order: their share of the remaining time, relative to those after them, and the minimum seconds
# that make them worth starting.
PARTS = {
    "checks": (40, 60),
    "ceilings": (5, 30),
    "0.5b": (19, 60),
    "1.5b": (18, 60),
    "1.5b-qlora": (12, 45),
    "7b-lora": (21, 60),
    "generate": (6, 30),
    "trl": (9, 45),
    "runs": (20, 60),
    "trl-vllm": (12, 90),
}
NEEDS_CEILINGS = ("0.5b", "1.5b", "1.5b-qlora", "7b-lora")
TINY_LEAST = 5  # seconds, instead of the minimum ones
MOST = 6000  # maximum characters of a part's output to keep
LIBRARIES = ("torch", "transformers", "peft", "trl", "bitsandbytes", "datasets", "triton")
HERE = Path(__file__).parent
CHILD = (sys.executable, "-m", "gpu_parts.part")


def main() -> int:
    """Run all parts."""
    args = _parse_arguments()
    end = time.time() + 60 * args.minutes
    if args.device == "cuda" and not torch.cuda.is_available():
        print("There is no CUDA device here; use --device cpu --tiny to test this script.", file=sys.stderr)
        return 2
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.unlink(missing_ok=True)
    report = Report(args.json)
    report.add(machine=_describe_machine(args.device), minutes=args.minutes, tiny=args.tiny, began=time.time())
    names = list(PARTS) if args.only is None else [name for name in PARTS if name in args.only]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for place, name in enumerate(names):
        _run_part(name, names[place:], args, report, end)
        print(format_state(name, report.read()["parts"].get(name, {})), flush=True)
    report.add(ended=time.time())
    found = report.read()
    print(f"\n{format_table(found)}\n\n{args.json}")
    failed = [name for name, part in found["parts"].items() if has_failed(part)]
    print(json.dumps({"failed": failed, "json": str(args.json)}))
    return 1 if failed else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="total time for all parts")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), metavar="FILE", help="the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to test this script")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    args = parser.parse_args()
    if args.device == "cpu" and not args.tiny:
        parser.error("--device cpu needs --tiny, because the other shapes are those of real models.")
    return args


def _run_part(name: str, remaining: list[str], args: argparse.Namespace, report: Report, end: float) -> None:
    """Run a part in a process, with its share of the remaining time."""
    share, least = PARTS[name]
    left = end - time.time()
    seconds = left * share / sum(PARTS[other][0] for other in remaining)
    least = TINY_LEAST if args.tiny else least
    if left < least:
        report.add_part(name, skipped=f"{max(0, left):.0f} s are left, and it needs {least}")
        return
    if name in NEEDS_CEILINGS and "flop_per_s" not in report.read()["parts"].get("ceilings", {}):
        report.add_part(name, skipped="the ceilings were not measured")
        return
    seconds = max(seconds, least)
    told = {"name": name, "report": str(args.json), "device": args.device, "tiny": args.tiny, "seconds": seconds - 5}
    paths = os.pathsep.join([str(HERE.parent), str(HERE), *filter(None, sys.path)])
    began = time.time()
    # A separate session, so that a part ends with all of its processes.
    child = subprocess.Popen(
        [*CHILD, json.dumps(told)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        output, _ = child.communicate(timeout=seconds)
        if child.returncode:
            report.add_part(name, failed=_find_last_line(output), output=output[-MOST:])
    except subprocess.TimeoutExpired as error:
        report.add_part(name, cut_off=f"after {seconds:.0f} s, its share of the time")
        if error.stdout:  # bytes, despite `text`
            report.add_part(name, output=error.stdout.decode(errors="replace")[-MOST:])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        report.add_part(name, wall_s=round(time.time() - began, 1))


def _find_last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1][:500] if lines else "it ended without output"


def _describe_machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "device": device, "versions": {}}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found["versions"][name] = version(name)
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        found |= {"card": torch.cuda.get_device_name(), "capability": torch.cuda.get_device_capability()}
        found |= {"memory_gib": total / 2**30, "free_gib": free / 2**30, "cuda": torch.version.cuda}
    return found


if __name__ == "__main__":
    sys.exit(main())
