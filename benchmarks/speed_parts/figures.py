"""Summaries of the rounds: medians and their spread, ratios, and a printed table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from speed_parts import load
from speed_parts.machine import describe_machine

Figures = dict[str, Any]
# Sampled answers differ in length by chance; beyond this share, the sides did not do the same work.
TOLERANCE = 0.1


def summary(rounds: Sequence[Figures]) -> Figures:
    """Return the median of every figure, the minimum and maximum of the times, and CPU time per thousand tokens."""
    found: Figures = {
        name: statistics.median(one[name] for one in rounds)
        for name, value in rounds[0].items()
        if isinstance(value, int | float) and name != "prompts"
    }
    for name in ("cpu", "wall"):
        times = [one[name] for one in rounds]
        found |= {f"{name}_least": min(times), f"{name}_most": max(times)}
    found["tokens"] = statistics.fmean(one["tokens"] for one in rounds)
    found["cpu_per_1000_tokens"] = statistics.median(1000 * one["cpu"] / one["tokens"] for one in rounds)
    found["rss_gb"] = max(one["rss_gb"] for one in rounds)
    found["laps"] = [one["machine"] for one in rounds if "machine" in one]
    return found


def ratios(ours: Figures, rival: Figures | None) -> Figures:
    """Return the rival's costs divided by qed's: CPU time, wall time, CPU time per token, memory."""
    if rival is None:
        return dict.fromkeys(("ratio", "ratio_wall", "ratio_per_token", "ratio_rss"))
    return {
        "ratio": rival["cpu"] / ours["cpu"],
        "ratio_wall": rival["wall"] / ours["wall"],
        "ratio_per_token": rival["cpu_per_1000_tokens"] / ours["cpu_per_1000_tokens"],
        "ratio_rss": rival["rss_gb"] / ours["rss_gb"],
    }


def result(settings: Figures, ours: Figures, rival: Figures | None, **more: Any) -> Figures:
    """Return a benchmark's figures for JSON: ratios, both sides, further figures, settings and machine."""
    laps = [lap for side in (ours, rival) if side is not None for lap in side["laps"]]
    place = {**describe_machine(), "load": load.sum_up(laps)}
    return {**ratios(ours, rival), "ours": ours, "rival": rival, **more, "settings": settings, **place}


def show(what: str, result: Figures, sides: dict[str, Figures]) -> None:
    """Print a heading, every side's figures in a column, and the floor."""
    told, floor = result["settings"], result["floor"]
    print(f"\n{what}, {told['precision']}, {told['threads']} threads, {told['rounds']} rounds")
    print(f"{result['machine']}, {result['versions']}")
    lines = {
        "CPU seconds": lambda one: f"{one['cpu']:.3f} ({one['cpu_least']:.3f} to {one['cpu_most']:.3f})",
        "seconds": lambda one: f"{one['wall']:.3f} ({one['wall_least']:.3f} to {one['wall_most']:.3f})",
        "tokens": lambda one: f"{one['tokens']:,.0f}",
        "CPU seconds / 1,000 tokens": lambda one: f"{one['cpu_per_1000_tokens']:.3f}",
        "peak memory, GB": lambda one: f"{one['rss_gb']:.2f}",
    }
    print(f"\n{'':<28}" + "".join(f"{side:>30}" for side in sides))
    for label, cell in lines.items():
        print(f"{label:<28}" + "".join(f"{cell(one):>30}" for one in sides.values()))
    print(
        f"floor: {floor['by_gemm']:.3f} CPU s at {floor['gflop_per_cpu_s']:.0f} GFLOP / CPU s, "
        f"{floor['by_memory']:.3f} at {floor['gb_per_cpu_s']:.1f} GB / CPU s; qed reaches {floor['share']:.0%} of the "
        "ceiling"
    )
    if note := load.describe_load(result["load"]):
        print(note)


def describe_answers(told: Figures) -> str:
    """Describe what was sampled."""
    cut = f", temperature {told['temperature']}, top-p {told['top_p']}" if told.get("top_p", 1) < 1 else ""
    return (
        f"{told['model']}, {told['problems']} x {told['group']} answers of at most {told['tokens']} tokens "
        f"({told['lengths']} lengths{cut})"
    )


def tell_tokens(ours: Figures, rival: Figures | None) -> None:
    """Print a warning if the sides wrote answers of very different length."""
    if rival is not None and abs(rival["tokens"] / ours["tokens"] - 1) > TOLERANCE:
        print(
            f"Warning: the sides wrote {ours['tokens']:,.0f} and {rival['tokens']:,.0f} tokens per round, by chance: "
            "use the ratio per token, or increase --rounds."
        )
