"""What the checks have found, as a card for people and as an object for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

MARGIN = 13
WIDTH = 120


@dataclass(frozen=True)
class Finding:
    """What one check has found: for people, for programs, and what had better be changed."""

    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    advice: tuple[str, ...] = field(default=())


# The checks in the order of the card, each with the module that holds it.
CHECKS = {
    "device": "hardware",
    "dtypes": "hardware",
    "attention": "hardware",
    "products": "hardware",
    "threads": "surroundings",
    "versions": "surroundings",
    "vllm": "surroundings",
    "disk": "surroundings",
    "hub": "surroundings",
}


@dataclass(frozen=True)
class Card:
    """What all checks have found, by their names."""

    findings: Mapping[str, Finding]

    def text(self) -> str:
        """For people: a line or more for each check, and behind a `!` what had better be changed."""
        lines = []
        for name, finding in self.findings.items():
            lines += _format_block(name, finding.lines)
            for advice in finding.advice:
                lines += _format_block("!".rjust(MARGIN - 2), (advice,))
        return "\n".join(lines)

    def as_object(self) -> dict[str, Any]:
        """For programs: the facts by the names of their checks, and all advice."""
        facts: dict[str, Any] = {name: dict(finding.facts) for name, finding in self.findings.items()}
        return {**facts, "advice": [advice for finding in self.findings.values() for advice in finding.advice]}


def run_checks() -> Card:
    """The findings of all checks; one that fails says so and keeps none of the others from looking."""
    return Card({name: _run_check(name, module) for name, module in CHECKS.items()})


def _run_check(name: str, module: str) -> Finding:
    try:
        # Imported here, because what is broken on this machine may be torch itself.
        found: Finding = getattr(import_module(f"qed.doctor.{module}"), f"check_{name}")()
    except Exception as error:  # noqa: BLE001 -- whatever it is, the other checks go on
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Finding((f"this check failed: {told}",), {"failed": told})
    return found


def _format_block(name: str, lines: tuple[str, ...]) -> list[str]:
    wrapped = [part for line in lines for part in textwrap.wrap(line, WIDTH - MARGIN) or [""]]
    return [f"{name if not number else '':<{MARGIN}}{line}" for number, line in enumerate(wrapped)]
