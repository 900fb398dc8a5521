"""The results of the kit: one JSON file that is complete after every figure, and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


class Report:
    """A JSON file with the figures of each part under `parts`; parent and children write to it in turn.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Figures:
        """Return everything written so far."""
        found: Figures = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {"parts": {}}
        return found

    def add(self, **figures: Any) -> None:
        """Write figures about the whole kit."""
        self._write({**self.read(), **figures})

    def add_part(self, part: str, **figures: Any) -> None:
        """Write figures of one part; earlier figures with other names are kept."""
        found = self.read()
        found["parts"][part] = {**found["parts"].get(part, {}), **figures}
        self._write(found)

    def _write(self, figures: Figures) -> None:
        temporary = self.path.with_name(f".{self.path.name}.part")
        temporary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path)


COLUMNS = {  # heading, figure of a part, format
    "sample s": ("seconds.sample", "{:.2f}"),
    "score s": ("seconds.score", "{:.2f}"),
    "update s": ("seconds.update", "{:.2f}"),
    "sync s": ("seconds.sync", "{:.3f}"),
    "sampler tok/s": ("sampler.tokens_per_s", "{:,.0f}"),
    "of floor": ("sampler.share_of_floor", "{:.0%}"),
    "without graphs": ("sampler.eager_tokens_per_s", "{:,.0f}"),
    "learner tok/s": ("learner.tokens_per_s", "{:,.0f}"),
    "of peak": ("learner.share_of_peak", "{:.0%}"),
    "peak GiB": ("memory.peak_gib", "{:.1f}"),
    "estimated": ("memory.estimated_gib", "{:.1f}"),
    "tokens at once": ("settings.tokens_per_microbatch", "{:,}"),
    "mismatch": ("mismatch", "{:.4f}"),
}


def format_table(found: Figures) -> str:
    """Format the figures of all parts that measured a step, one column each."""
    parts = {name: part for name, part in found["parts"].items() if "seconds" in part}
    lines = [f"{'':<16}" + "".join(f"{name:>20}" for name in parts)] if parts else []
    for heading, (path, shape) in COLUMNS.items() if parts else ():
        lines.append(f"{heading:<16}" + "".join(f"{_cell(part, path, shape):>20}" for part in parts.values()))
    return "\n".join(lines)


def _cell(part: Figures, path: str, shape: str) -> str:
    value: Any = part
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return "-" if value is None else shape.format(value)


def has_failed(part: Figures) -> bool:
    """Return whether a part or one of its tests has failed, even if it was cut off."""
    return "failed" in part or bool(part.get("exit_code")) or "failed" in part.get("tests", {}).values()


def format_state(name: str, part: Figures) -> str:
    """Format in one line what became of a part."""
    tests = list(part.get("tests", {}).values())
    counts = ", ".join(f"{tests.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    for state in ("skipped", "cut_off", "failed"):
        if state in part:
            place = f" (at: {part['at']})" if "at" in part else ""
            return f"{name}: {state.replace('_', ' ')}: {part[state]}{place}{f'; {counts}' if tests else ''}"
    if "tests" in part:
        return f"{name}: {counts}"
    plain = {key: value for key, value in part.items() if isinstance(value, int | float | str) and key != "wall_s"}
    figures = ", ".join(
        f"{key} {value:,.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in plain.items()
    )
    return f"{name}: done in {part.get('wall_s', 0):.0f} s{': ' if figures else ''}{figures}"
