"""The printed figures: the worst and the mean of each design."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

Cell = dict[str, Any]
COVERED, ALARMS = 0.93, 0.06  # the lowest acceptable coverage and the highest rate of false alarms


def summarize(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the worst cells of each kind and design, for JSON."""
    figures: dict[str, Any] = {}
    for kind in dict.fromkeys(cell["kind"] for cell in cells):
        own = [cell for cell in cells if cell["kind"] == kind]
        figures[kind] = {name: _reduce(group) for name, group in _group(own, "design").items()}
    return figures


def _reduce(cells: Sequence[Cell]) -> dict[str, Any]:
    worst = min(cells, key=_get_coverage)
    null = [cell for cell in cells if cell.get("change") in ("none", "other problems")]
    power = [cell for cell in cells if cell.get("change") == "found" and cell["measure"] == "accuracy"]
    wide = [cell["width"] / cell["oracle_width"] for cell in cells if _is_ordinary(cell)]
    return {
        "cells": len(cells),
        "least_coverage": worst["coverage"],
        "mean_coverage": fmean(cell["coverage"] for cell in cells),
        "at": {
            name: worst[name] for name in ("even", "accuracy", "spread", "measure", "change", "seeds") if name in worst
        },
        "below": sum(cell["coverage"] < COVERED for cell in cells),
        **({"most_alarms": max(cell["found"] for cell in null)} if null else {}),
        **({"contradictions": sum(cell["contradictions"] for cell in null)} if null else {}),
        **({"power": fmean(cell["found"] for cell in power)} if power else {}),
        **({"oracle_power": fmean(cell["oracle_found"] for cell in power)} if power else {}),
        **({"width": fmean(wide)} if wide else {}),
    }


def _is_ordinary(cell: Cell) -> bool:
    """Return whether the accuracy is from 5 to 95 %, where an oracle's interval is valid and widths are compared."""
    return cell.get("measure") == "accuracy" and 0.05 <= cell["accuracy"] <= 0.95 and cell.get("oracle_width", 0) > 0


def show(figures: dict[str, Any]) -> None:
    """Print a table for each kind of interval."""
    for kind, designs in figures.items():
        print(f"\n{kind}: coverage of 95 % intervals, %")
        heads = ("least", "mean", "< 93", "alarms", "power", "oracle", "width", "p ≠ CI")
        print(f"  {'':<26}" + "".join(f"{text:>9}" for text in heads))
        for name, each in designs.items():
            cells = (
                f"{100 * each['least_coverage']:.1f}",
                f"{100 * each['mean_coverage']:.1f}",
                f"{each['below']}/{each['cells']}",
                _percent(each.get("most_alarms")),
                _percent(each.get("power")),
                _percent(each.get("oracle_power")),
                f"{each['width']:.2f}" if "width" in each else "",
                str(each.get("contradictions", "")),
            )
            print(f"  {name:<26}" + "".join(f"{text:>9}" for text in cells))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _group(cells: Iterable[Cell], key: str) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell[key], []).append(cell)
    return groups


_get_coverage: Callable[[Cell], float] = lambda cell: float(cell["coverage"])  # noqa: E731
