"""Output of the benchmarks for programs: the last line, and optionally a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for the file."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the last line, which is JSON, to this file"
    )


def print_result(result: dict[str, Any], file: Path | None) -> None:
    """Print the figures as one line of JSON, and also write them to the file, if any.

    Args:
        result: the figures; paths become text.
        file: the file; its folder is created if missing.
    """
    line = json.dumps(result, default=str)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line + "\n", encoding="utf-8")
    print(line)
