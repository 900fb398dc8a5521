"""One part of the kit as a separate process, so that a crash or lack of memory ends no other part."""
# ruff: noqa: PLC0415 -- a part imports what it needs, so that a package missing for one part stops no other

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from gpu_parts.report import Report


def main() -> None:
    """Run the part described by the first argument: its name, the report, the device and its time limit in seconds."""
    told = json.loads(sys.argv[1])
    name, report, device = told["name"], Report(Path(told["report"])), told["device"]
    end = time.time() + told["seconds"]
    if name == "checks":
        from gpu_parts.checks import run_checks

        run_checks(device, name, report)
    elif name == "ceilings":
        import torch

        from gpu_parts.ceilings import measure_ceilings

        report.add_part(name, **measure_ceilings(torch.device(device)))
    else:
        _measure(name, report, device, end, told["tiny"])


def _measure(name: str, report: Report, kind: str, end: float, tiny: bool) -> None:
    """Run a part that computes a model."""
    import torch

    from gpu_parts import rivals, runs, step
    from gpu_parts.shapes import SHAPES, shrink

    device = torch.device(kind)
    shapes = {key: shrink(shape) if tiny else shape for key, shape in SHAPES.items()}
    if name == "generate":
        rivals.measure_generate(shapes["0.5b"], device, name, report, end)
    elif name == "trl":
        rivals.measure_trl(shapes["0.5b"], device, name, report, end)
    elif name == "trl-vllm":
        rivals.measure_trl(shapes["1.5b"], device, name, report, end, vllm=True)
    elif name == "runs":
        runs.measure_runs(shapes["1.5b"], device, name, report, end)
    elif shapes[name].quantized and find_spec("bitsandbytes") is None:
        report.add_part(name, skipped="bitsandbytes is not installed")
    else:
        step.measure_step(shapes[name], device, report.read()["parts"]["ceilings"], name, report, end)


if __name__ == "__main__":
    main()
