"""The table in Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from table_parts.rows import MIB, PART, RATE, SECONDS, SHARE, Figure, Row

Result = dict[str, Any]
HEAD = ("row", "what", "figure", "goal", "measured", "qed, rival (CPU s)", "notes")


def read_figure(figure: Figure, result: Result) -> float | None:
    """Return the value of a figure in a script's result; None if it is missing."""
    found: Any = result
    for name in figure.path.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) else None


def sum_up_row(row: Row, found: Result) -> Result:
    """Summarise a row for JSON.

    Args:
        row: row of the table.
        found: result of `Table.measure`.

    Returns:
        Name, what, status, and either the reason why there are no figures, or the figures with their goals, whether
        these are reached, and the load from other processes.
    """
    told = {"name": row.name, "what": row.what, "status": found["status"]}
    if found["status"] != "measured":
        return {**told, "reason": found["reason"]}
    result = found["result"]
    figures = []
    for figure in row.figures:
        value = read_figure(figure, result)
        reached = figure.is_reached(value)
        one = {"label": figure.label, "value": value, "goal": figure.goal, "reached": reached, "unit": figure.unit}
        figures.append(one)
    sides = [result.get(side) for side in ("ours", "rival")]
    cpu = [side["cpu"] if isinstance(side, dict) and "cpu" in side else None for side in sides]
    more = {"cpu_seconds": cpu, "load": result["load"], "seconds": found["seconds"], "command": found["command"]}
    return {**told, "figures": figures, **more}


def format_value(value: float | None, unit: str) -> str:
    """Format the value of a figure."""
    if value is None:
        return "–"
    if unit == SHARE:
        return f"{value:.0%}".replace("%", " %")
    if unit == RATE:
        return f"{value:,.0f}"
    if unit in (SECONDS, MIB):
        return f"{value:.2f} s" if unit == SECONDS else f"{value:,.0f} MiB"
    return f"{value:.3f}" if unit == PART else f"{value:.2f}"


def render_table(rows: Sequence[Result]) -> str:
    """Format the table in Markdown; figures from a busy machine are marked."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "|".join(("---", "---", "---", "--:", "--:", "--:", "---")) + "|"]
    for row in rows:
        cells = _list_cells(row)
        names = [row["name"], row["what"]]
        for number, (figure, goal, measured) in enumerate(cells):
            first = number == 0
            around = [*names, figure, goal, measured, _format_cpu(row), _note(row)]
            own = around if first else ["", "", figure, goal, measured, "", ""]
            lines.append("| " + " | ".join(own) + " |")
    return "\n".join(lines)


def _list_cells(row: Result) -> list[tuple[str, str, str]]:
    if row["status"] != "measured":
        return [("", "", "–")]
    cells = []
    for one in row["figures"]:
        mark = {True: " ✓", False: "", None: ""}[one["reached"]]
        busy = " (busy)" if row["load"]["busy"] else ""
        goal = "" if one["goal"] is None else format_value(one["goal"], one["unit"])
        cells.append((one["label"], goal, format_value(one["value"], one["unit"]) + mark + busy))
    return cells


def _format_cpu(row: Result) -> str:
    known = [f"{seconds:.3f}" for seconds in row.get("cpu_seconds", ()) if seconds is not None]
    return ", ".join(known)


def _note(row: Result) -> str:
    if row["status"] != "measured":
        return f"{row['status']}: {row['reason']}"
    load = row["load"]
    if load["busy"] is None:
        return "what other processes took is not known"
    return f"others took {load['others']:.2f} cores, load {load['load']:.1f}"


def render_head(machine: Result, mode: str, source: str) -> str:
    """Describe the machine and settings in a paragraph of Markdown."""
    kernels, versions = machine["kernels"], ", ".join(f"{name} {each}" for name, each in machine["versions"].items())
    variables = ", ".join(f"{name}={value}" for name, value in machine["variables"].items()) or "none set"
    return (
        f"{machine['date']}, `{mode}`, qed at {source}. {machine['machine']}, {machine['cores']} of them used, "
        f"{', '.join(machine['instructions'])}; {machine['system']}, Python {machine['python']}; {versions}. Kernels: "
        f"{kernels['capability']}, {', '.join(kernels['libraries'])}, MKL {'on' if kernels['mkl'] else 'off'}, oneDNN "
        f"{'on' if kernels['onednn'] else 'off'}, float32 products {kernels['float32_matmul_precision']}; variables: "
        f"{variables}. Rows say what other processes took of the machine while they were measured."
    )
