"""The printed figures."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


def machine() -> str:
    """Describe the CPU and its number of cores."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor()}"


def _cpuinfo() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def show(figures: Figures) -> None:
    """Print every figure, qed's next to math-verify's if both were measured."""
    ours, rival = figures["ours"], figures["rival"]
    print(f"\n{figures['machine']}, Python {figures['python']}, math-verify {figures['math_verify']}\n")
    _row("", "qed", "math-verify")
    _scores("ordinary labelled cases", ours["ordinary"], rival["ordinary"])
    _scores("realistic responses", ours["realistic"], rival["realistic"])
    _rates(ours["realistic"], rival["realistic"], figures)
    _tiers("tiers, ordinary", ours["ordinary_tiers"])
    _tiers("tiers, realistic", ours["realistic"]["tiers"])
    _hostile(ours, rival)
    _alone(ours)
    _categories(ours["ordinary"]["categories"], rival["ordinary"]["categories"])


def _row(label: str, *cells: str) -> None:
    print(f"{label:<44}" + "".join(f"{cell:>22}" for cell in cells))


def _scores(label: str, *sides: Figures) -> None:
    _row(f"{label}, n", *(f"{side['n']:,}" for side in sides))
    _row("  right", *(f"{side['accuracy']:.2%}" for side in sides))
    for name, of in (("false_positives", "of_false"), ("false_negatives", "of_true")):
        cells = (f"{side[name]} of {side[of]} ({side[name] / max(1, side[of]):.2%})" for side in sides)
        _row(f"  {name.replace('_', ' ')}", *cells)


def _rates(ours: Figures, rival: Figures, figures: Figures) -> None:
    sides = (ours, rival)
    _row(f"  cases a second, median of {figures['rounds']}", *(f"{side['cases_per_second']:,.0f}" for side in sides))
    _row("  cases a CPU second", *(f"{side['cases_per_second_cpu']:,.0f}" for side in sides))
    _row("  ratio, by the clock and by CPU seconds", f"{figures['ratio']:.1f}, {figures['ratio_cpu']:.1f}")
    for name in ("p50_ms", "p99_ms", "max_ms"):
        _row(f"  {name.removesuffix('_ms')}, ms", *(f"{side[name]:.3f}" for side in sides))


def _tiers(label: str, shares: Figures) -> None:
    print(f"{label}: " + ", ".join(f"{tier} {share:.1%}" for tier, share in shares.items()))


def _hostile(ours: Figures, rival: Figures) -> None:
    for name, run in ours["hang"].items():
        print(f"hang cases, {name.replace('_', ' ')}: {_listed(run)}")
    if "hang" in rival:
        print(f"hang cases, math-verify killed after 5 s: {_listed(rival['hang'])}")
    for name, side in (("qed", ours), ("math-verify", rival)):
        print(f"payloads, {name}: {_listed(side['injection'])}")


def _alone(ours: Figures) -> None:
    for name in ("fuzz", "orders", "reflexive", "pairs"):
        print(f"{name}: {_listed({key: value for key, value in ours[name].items() if key != 'pairs'})}")
    for gold, other in ours["pairs"]["pairs"]:
        print(f"  called equal: {gold}  ##  {other}")


def _listed(figures: Figures) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in figures.items()
    )


def _categories(ours: Figures, rival: Figures) -> None:
    print()
    _row("category (n), wrongly paid / wrongly refused", "qed", "math-verify")
    for name, side in ours.items():
        cells = (
            f"{one['accuracy']:.1%} ({one['false_positives']}/{one['false_negatives']})" for one in (side, rival[name])
        )
        _row(f"  {name} ({side['n']})", *cells)
