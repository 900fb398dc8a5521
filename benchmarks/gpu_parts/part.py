"""One part of the kit as a process of its own, so that a fault or a lack of memory ends no other part."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from gpu_parts import checks, rivals, step
from gpu_parts.ceilings import measure_ceilings
from gpu_parts.report import Report
from gpu_parts.shapes import SHAPES, shrink


def main() -> None:
    """Do the part that the first argument describes: its name, the report, the device and the seconds it may take."""
    told = json.loads(sys.argv[1])
    name, report, device = told["name"], Report(Path(told["report"])), torch.device(told["device"])
    end = time.time() + told["seconds"]
    shapes = {key: shrink(shape) if told["tiny"] else shape for key, shape in SHAPES.items()}
    small = shapes["0.5b"]
    if name == "checks":
        checks.run_checks(device.type, name, report)
    elif name == "ceilings":
        report.add_part(name, **measure_ceilings(device))
    elif name == "generate":
        rivals.measure_generate(small, device, name, report, end)
    elif name == "trl":
        rivals.measure_trl(small, device, name, report, end)
    else:
        step.measure_step(shapes[name], device, report.read()["parts"]["ceilings"], name, report, end)


if __name__ == "__main__":
    main()
