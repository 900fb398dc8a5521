"""Run the checks, and format their results as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

MARGIN = 13
WIDTH = 120


@dataclass(frozen=True)
class Finding:
    """The result of a check: text lines, facts for JSON, and advice."""

    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    advice: tuple[str, ...] = ()


# The checks in the order of the card, each with the module that defines `check_NAME`.
CHECKS = {
    "device": "hardware",
    "dtypes": "hardware",
    "attention": "hardware",
    "products": "hardware",
    "kernels": "hardware",
    "threads": "surroundings",
    "versions": "surroundings",
    "vllm": "surroundings",
    "disk": "surroundings",
    "hub": "surroundings",
}


@dataclass(frozen=True)
class Card:
    """The results of all checks by name."""

    findings: Mapping[str, Finding]

    def text(self) -> str:
        """Format one or more lines per check, then the advice, marked with `!`."""
        lines = []
        for name, finding in self.findings.items():
            lines += _format_block(name, finding.lines)
            for advice in finding.advice:
                lines += _format_block("!".rjust(MARGIN - 2), (advice,))
        return "\n".join(lines)

    def as_object(self) -> dict[str, Any]:
        """Return the facts by check, and all advice, for JSON."""
        facts: dict[str, Any] = {name: dict(finding.facts) for name, finding in self.findings.items()}
        return {**facts, "advice": [advice for finding in self.findings.values() for advice in finding.advice]}


def run_checks() -> Card:
    """Run all checks; a failed check is reported and does not stop the others."""
    return Card({name: _run_check(name, module) for name, module in CHECKS.items()})


def _run_check(name: str, module: str) -> Finding:
    try:
        # Imported here, because torch itself may be broken on this machine.
        finding: Finding = getattr(import_module(f"qed.doctor.{module}"), f"check_{name}")()
    except Exception as error:  # noqa: BLE001 -- an error must not stop the other checks
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Finding((f"this check failed: {message}",), {"failed": message})
    return finding


def _format_block(name: str, lines: tuple[str, ...]) -> list[str]:
    wrapped = [part for line in lines for part in textwrap.wrap(line, WIDTH - MARGIN) or [""]]
    return [f"{name if not number else '':<{MARGIN}}{line}" for number, line in enumerate(wrapped)]
