"""Print the figures of evaluations as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qed.console.live import Console

Figures = Mapping[str, Any]
NO_VALUE = "–"
MAX_KINDS = 12  # breakdowns with more rows are not printed, only written to summary.json
TIES = {"split": "ties split", "first": "ties to the first answer", "lowest": "ties to the lowest answer"}
ALL, ALL_SOURCES = "mean of tasks", "mean of sources"


def show_summary(console: Console, summaries: Mapping[str, Figures], overall: Figures) -> None:
    """Print the figures of each task and their mean: accuracy, pass@k and maj@k, classes, lengths, breakdowns."""
    console.say()
    rows = [_format_accuracy(name, figures) for name, figures in summaries.items()]
    if len(summaries) > 1:
        rows.append((ALL, "", "", format_interval(overall), "", "", ""))
    console.table("Right, %", ("task", "n", "k", "avg@k [95 %]", "strict", "flexible", "string"), rows)
    several = [row for name, figures in summaries.items() if figures["k"] > 1 for row in _list_several(name, figures)]
    if several:
        rules = dict.fromkeys(TIES[figures["maj_ties"]] for figures in summaries.values() if "maj_ties" in figures)
        title = f"One of k right, the vote of k right ({'; '.join(rules)}), %" if rules else "One of k right, %"
        console.table(title, ("task", "k", "pass@k [95 %]", "maj@k [95 %]"), several)
    columns = ("task", "right", "wrong", "broken, right", "broken, wrong", "reward")
    console.table("Format × answer, %", columns, [_list_classes(name, figures) for name, figures in summaries.items()])
    columns = ("task", "right", "wrong", "cut off", "no answer", "reasoning")
    title = "Tokens of right and wrong answers; shares of answers, %"
    console.table(title, columns, [_list_lengths(name, figures) for name, figures in summaries.items()])
    for name, figures in summaries.items():
        _show_kinds(console, name, figures)


def show_grades(console: Console, figures: Figures, rewarded: bool) -> None:
    """Print the counts of `qed grade`, and the mean reward if a reward graded the answers."""
    n = figures["n"]
    rows = [
        (label, f"{figures[name]:,}", f"{figures[name] / n:.1%}")
        for label, name in (
            ("right", "correct"),
            ("in format", "format_ok"),
            ("without an answer", "no_answer"),
            ("out of time", "timeouts"),
            ("failed", "errors"),
        )
    ]
    console.table(f"{n:,} answers, {figures['cases_per_second']:,.0f} a second", ("", "n", "share"), rows)
    classes = figures["classes"]
    console.table(
        "format × answer",
        ("", "right", "wrong"),
        [
            (label, *(f"{classes[f'fmt{format_ok}_ans{correct}']:,}" for correct in (1, 0)))
            for label, format_ok in (("format kept", 1), ("format broken", 0))
        ],
    )
    if missing := figures["without_gold"]:
        console.say(f"rows without a gold: {missing:,}; they count as wrong. Drop them, or name another --gold-key.")
    if "first_error" in figures:
        console.say(f"The grader failed, first with: {figures['first_error']}")
    if rewarded:
        mean = figures["mean_reward"]
        without = figures["without_reward"]
        line = "a reward is not finite" if mean is None else f"mean reward {mean:.4f}"
        line = "no answer has a reward" if without == n else line
        console.say(f"{line}; {without:,} answers have none" if 0 < without < n else line)
    if "labelled" in figures:
        console.say(
            f"against the column `expected`: {figures['false_positives']} of {figures['labelled']} wrongly accepted, "
            f"{figures['false_negatives']} wrongly refused"
        )


def _show_kinds(console: Console, name: str, figures: Figures) -> None:
    """Print grading failures, and the accuracy by level, subject and source if these have few values."""
    if figures["timeouts"] or figures["errors"]:
        failures = f"{figures['timeouts']} answers timed out in the grader, {figures['errors']} made it fail"
        console.say(f"{name}: {failures}; they count as wrong, or have no reward if another grader decides.")
    if right := figures.get("truncated_right"):
        cut = round(figures["truncated_frac"] * figures["answers"])
        console.say(
            f"{name}: {right:,} of {cut:,} answers that were cut off are right: their answer comes before the limit."
        )
    if figures.get("without_reward"):
        console.say(f"{name}: {figures['without_reward']} answers have no reward; the mean reward excludes them.")
    for key, kinds in figures["by"].items():
        if 1 < len(kinds) <= MAX_KINDS:
            rows = [(kind, f"{each['n']:,}", format_interval(each)) for kind, each in kinds.items()]
            if key == "source" and "mean_of_sources" in figures:
                rows.append((ALL_SOURCES, "", format_interval(figures["mean_of_sources"])))
            console.table(f"{name}, by {key}", (key, "n", "avg@k [95 %]"), rows)


def _format_accuracy(name: str, figures: Figures) -> Sequence[str]:
    ways = [format_share(figures["accuracy_by"].get(way, {}).get("value")) for way in ("strict", "flexible", "string")]
    k = f"{figures['k']} ({figures['k_min']}–{figures['k_max']})" if "k_min" in figures else str(figures["k"])
    return name, f"{figures['n']:,}", k, format_interval(figures), *ways


def _list_several(name: str, figures: Figures) -> Iterator[Sequence[str]]:
    for k, passed in figures["pass"].items():
        voted = figures["maj"].get(k)
        yield name, k, format_interval(passed, "value"), format_interval(voted, "value") if voted else NO_VALUE


def _list_classes(name: str, figures: Figures) -> Sequence[str]:
    shares = [format_share(share) for share in figures["classes"].values()] or [NO_VALUE] * 4
    reward = figures["reward"]
    return name, *shares, NO_VALUE if reward is None else f"{reward:.3f}"


def _list_lengths(name: str, figures: Figures) -> Sequence[str]:
    tokens = [_format_number(figures[key]) for key in ("right_tokens", "wrong_tokens")]
    return (
        name,
        *tokens,
        *(format_share(figures[key]) for key in ("truncated_frac", "no_answer_frac", "reasoning_frac")),
    )


def format_interval(figures: Figures, key: str = "accuracy") -> str:
    """Format a share with its interval, in percent; too few problems are named."""
    few = " too few" if figures.get("too_few") else ""
    bounds = f"[{format_share(figures['ci_lo'])}, {format_share(figures['ci_hi'])}]"
    return f"{format_share(figures[key])} {bounds}{few}"


def format_share(share: float | None) -> str:
    """Format a share in percent; a dash for None."""
    return NO_VALUE if share is None else f"{100 * share:.1f}"


def _format_number(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:,.1f}"
