"""How the benchmarks hand their figures to programs: as the last line, and in a file where one is named."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the file."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the last line, which is JSON, here too")


def print_result(result: dict[str, Any], file: Path | None) -> None:
    """Print the figures as one line of JSON, and write them to the file, if any.

    Args:
        result: the figures; paths in it become text.
        file: its folder is made if it is not there.
    """
    line = json.dumps(result, default=str)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line + "\n", encoding="utf-8")
    print(line)
