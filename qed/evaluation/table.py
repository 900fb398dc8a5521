"""The figures of evaluations as tables on the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qed.console.live import Console
from qed.evaluation.summary import overall

Figures = Mapping[str, Any]
MOST_KINDS = 12  # of a breakdown; larger ones stand in summary.json
ALL = "mean of tasks"


def show(console: Console, summaries: Mapping[str, Figures]) -> None:
    """What was measured of each task: accuracy, what several answers give, format × answer, lengths, breakdowns."""
    console.say()
    rows = [_accuracy(name, figures) for name, figures in summaries.items()]
    if len(summaries) > 1:
        rows.append((ALL, "", "", _interval(overall(list(summaries.values()))), "", "", ""))
    console.table("Right, %", ("task", "n", "k", "avg@k [95 %]", "strict", "flexible", "string"), rows)
    several = [row for name, figures in summaries.items() if figures["k"] > 1 for row in _of_several(name, figures)]
    if several:
        console.table("One of k right, the vote of k right, %", ("task", "k", "pass@k [95 %]", "maj@k [95 %]"), several)
    columns = ("task", "right", "wrong", "broken, right", "broken, wrong", "reward")
    console.table("Format × answer, %", columns, [_classes(name, figures) for name, figures in summaries.items()])
    columns = ("task", "right", "wrong", "cut off", "no answer", "reasoning")
    title = "Tokens of right and wrong answers; shares of answers, %"
    console.table(title, columns, [_lengths(name, figures) for name, figures in summaries.items()])
    for name, figures in summaries.items():
        _show_kinds(console, name, figures)


def _show_kinds(console: Console, name: str, figures: Figures) -> None:
    """What could not be graded, and accuracy by level, subject and source where there are a few of them."""
    if figures["timeouts"] or figures["errors"]:
        told = f"{figures['timeouts']} answers ran out of the grader's time, {figures['errors']} made it fail"
        console.say(f"{name}: {told}; they count as wrong.")
    if figures.get("without_reward"):
        console.say(f"{name}: {figures['without_reward']} answers have no reward; they are not in its mean.")
    for key, kinds in figures["by"].items():
        if 1 < len(kinds) <= MOST_KINDS:
            rows = [(kind, f"{each['n']:,}", _interval(each)) for kind, each in kinds.items()]
            console.table(f"{name}, by {key}", (key, "n", "avg@k [95 %]"), rows)


def _accuracy(name: str, figures: Figures) -> Sequence[str]:
    ways = [_percent(figures["accuracy_by"].get(way, {}).get("value")) for way in ("strict", "flexible", "string")]
    return name, f"{figures['n']:,}", str(figures["k"]), _interval(figures), *ways


def _of_several(name: str, figures: Figures) -> Iterator[Sequence[str]]:
    for k, passed in figures["pass"].items():
        voted = figures["maj"].get(k)
        yield name, k, _interval(passed, "value"), _interval(voted, "value") if voted else "–"


def _classes(name: str, figures: Figures) -> Sequence[str]:
    shares = [_percent(share) for share in figures["classes"].values()] or ["–"] * 4
    reward = figures["reward"]
    return name, *shares, "–" if reward is None else f"{reward:.3f}"


def _lengths(name: str, figures: Figures) -> Sequence[str]:
    tokens = [_number(figures[key]) for key in ("right_tokens", "wrong_tokens")]
    return name, *tokens, *(_percent(figures[key]) for key in ("truncated_frac", "no_answer_frac", "reasoning_frac"))


def _interval(figures: Figures, key: str = "accuracy") -> str:
    return f"{_percent(figures[key])} [{_percent(figures['ci_lo'])}, {_percent(figures['ci_hi'])}]"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
