"""Writes docs/laboratory.md and its figure from the summaries; no result on the page is written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from laboratory_parts.analysis import LEVEL, Arm, Difference, TaskStudy, compare, compute_seed_interval, read_studies
from laboratory_parts.figure import draw_figure
from laboratory_parts.methods import MAX_TOKENS, RATES, SHARED
from laboratory_parts.runs import SAMPLES
from laboratory_parts.tasks import NOISE, SHOWN, TRAIN
from laboratory_parts.text import INTRODUCTION, LIMITS, PAPER, TASK_TEXTS

FIGURE = "figure.svg"
CONTROL = "SFT → GRPO"
TESTED = ("guidance", "distillation")
MIXED = ("LUFFY", "RL + SFT loss", "HPT", "SRFT", "CHORD", "ReLIFT", "UFT", "Prefix-RFT")


def write_page(folder: Path, page: Path) -> None:
    """Write the page, and the figure into the folder of the summaries."""
    text, figure = render_page(folder)
    (folder / FIGURE).write_text(figure, encoding="utf-8")
    page.write_text(text, encoding="utf-8")


def render_page(folder: Path) -> tuple[str, str]:
    """Return the page and the figure that the summaries of a folder give."""
    studies = read_studies(folder)
    seeds = max(len(arm.runs) for study in studies for arm in study.arms)
    longest = max(run["cpu_seconds"] for study in studies for arm in study.arms for run in arm.runs)
    setting = {
        "seeds": seeds,
        "budget": f"{studies[0].budget / 1e9:.0f}",
        "rates": ", ".join(f"{rate:g}" for rate in RATES),
        "problems": SHARED["sampling.problems_per_step"],
        "answers": SHARED["sampling.group_size"],
        "tokens": MAX_TOKENS,
        "samples": SAMPLES,
        "test": studies[0].start.sampled.shape[1],
        "longest": f"{longest:.0f}",
        "figure": f"{folder.name}/{FIGURE}",
    }
    parts = [INTRODUCTION.format(**setting), *map(_describe_task, studies), _describe_findings(studies)]
    return "\n\n".join(part.strip() for part in (*parts, _describe_paper(studies), LIMITS)) + "\n", draw_figure(studies)


def _describe_task(study: TaskStudy) -> str:
    text = TASK_TEXTS[study.task].format(train=TRAIN, shown=SHOWN, noise=f"{NOISE:.0%}".replace("%", " %"))
    tests = study.test(study.best_control, study.list_kind(*TESTED))
    rows = [_format_model(study.start), _format_model(study.teacher)]
    rows += [_format_arm(arm, study, tests) for arm in study.arms]
    table = [
        "| method | lr | held-out, right [95 % over seeds] | against the best control [95 %], p (Holm) | greedy | "
        "the other task | tokens | entropy | compute | steps |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    notes = [f"Best control: {study.best_control.name}."]
    notes += (
        [f"Not run, because the installed qed does not have it: {', '.join(study.skipped)}."] if study.skipped else []
    )
    lost = {arm.name: arm.lost for arm in study.arms if arm.lost}
    notes += [f"Runs of {name} that diverged and count as 0 % right: {count}." for name, count in lost.items()]
    return "\n\n".join((text.strip(), "\n".join(table), " ".join(notes)))


def _format_model(arm: Arm) -> str:
    figures = [_format_share(arm.sampled.mean()), "", _format_share(arm.greedy.mean()), _format_share(arm.other.mean())]
    rest = [f"{arm.average('length'):.1f}", f"{arm.average('entropy'):.3f}", "", ""]
    return f"| {' | '.join([f'*{arm.name}*', '', *figures, *rest])} |"


def _format_arm(arm: Arm, study: TaskStudy, tests: dict[str, Difference]) -> str:
    low, high = compute_seed_interval(arm.sampled)
    compute = [sum(run["compute"].values()) / study.budget for run in arm.runs if "compute" in run]
    cells = [
        arm.name if arm.kind != "control" else f"{arm.name} (control)",
        f"{arm.rate:g}",
        f"{_format_share(arm.sampled.mean())} [{100 * low:.1f}, {100 * high:.1f}]",
        _format_difference(tests[arm.name]) if arm.name in tests else "",
        _format_share(arm.greedy.mean()),
        _format_share(arm.other.mean()),
        f"{arm.average('length'):.1f}",
        f"{arm.average('entropy'):.3f}",
        _format_range(compute),
        " + ".join(map(str, arm.runs[0]["steps"].values())),
    ]
    return f"| {' | '.join(cells)} |"


def _describe_findings(studies: Sequence[TaskStudy]) -> str:
    lines = [
        "## What is established",
        "",
        "Over the seeds of this study, at 5 % after Holm's adjustment within a task:",
        "",
    ]
    for study in studies:
        tests = study.test(study.best_control, study.list_kind(*TESTED))
        lines += [f"- `{study.task}`: {text}" for text in _list_findings(study, tests)]
    lines += [
        "",
        "Does a method raise held-out accuracy over its start? Seeds above the start, and the difference [95 %]:",
        "",
    ]
    return "\n".join([*lines, *_tabulate_gains(studies)])


def _list_findings(study: TaskStudy, tests: dict[str, Difference]) -> Iterator[str]:
    best = study.best_control.name
    for word, sign in (("better", 1), ("worse", -1)):
        found = [name for name, test in tests.items() if _is_established(test) and test.mean * sign > 0]
        yield f"{word} than the best control, {best}: {', '.join(found) or 'none'}."
    open_ = [name for name, test in tests.items() if not _is_established(test)]
    yield f"not established, in either direction: {', '.join(open_) or 'none'}."


def _tabulate_gains(studies: Sequence[TaskStudy]) -> list[str]:
    names = list(dict.fromkeys(arm.name for study in studies for arm in study.arms))
    head = [f"| method | {' | '.join(f'`{study.task}`' for study in studies)} |", "|---|" + "--:|" * len(studies)]
    rows = []
    for name in names:
        cells = []
        for study in studies:
            arm = next((each for each in study.arms if each.name == name), None)
            cells.append(_format_gain(study.start, arm) if arm else "–")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return [*head, *rows]


def _format_gain(start: Arm, arm: Arm) -> str:
    above = int((arm.sampled.mean(1) > start.sampled.mean()).sum())
    found = compare(start, arm)
    verdict = "raised" if found.low > 0 else "lowered" if found.high < 0 else "not established"
    return f"{above} of {len(arm.runs)}, {_format_points(found)}: {verdict}"


def _describe_paper(studies: Sequence[TaskStudy]) -> str:
    lines = [PAPER.strip(), ""]
    totals = {"higher": 0, "lower": 0, "open": 0}
    for study in studies:
        control = next((arm for arm in study.arms if arm.name == CONTROL), None)
        mixed = [arm for arm in study.arms if arm.name in MIXED]
        if control is None or not mixed:
            continue
        tests = study.test(control, mixed)
        groups = {
            "higher": [name for name, test in tests.items() if _is_established(test) and test.mean < 0],
            "lower": [name for name, test in tests.items() if _is_established(test) and test.mean > 0],
            "open": [name for name, test in tests.items() if not _is_established(test)],
        }
        totals = {key: totals[key] + len(names) for key, names in groups.items()}
        strongest = max(mixed, key=lambda arm: float(arm.sampled.mean()))
        lines.append(
            f"- `{study.task}`: {CONTROL} {_format_share(control.sampled.mean())}. Established better than: "
            f"{', '.join(groups['higher']) or 'none'}; worse than: {', '.join(groups['lower']) or 'none'}; open: "
            f"{', '.join(groups['open']) or 'none'}. Highest of the mixed methods: {strongest.name}, "
            f"{_format_share(strongest.sampled.mean())} ({_format_difference(tests[strongest.name])})."
        )
    return "\n".join([*lines, "", _conclude(totals)])


def _conclude(totals: dict[str, int]) -> str:
    count = sum(totals.values())
    verdict = (
        "The claim that SFT → GRPO beats all of them does not hold here"
        if totals["lower"]
        else "The claim that SFT → GRPO beats all of them holds here"
        if totals["higher"] == count
        else "Nothing here contradicts the claim, and not every comparison is decided"
    )
    return (
        f"Of {count} comparisons, SFT → GRPO is established as better in {totals['higher']}, as worse in "
        f"{totals['lower']}, and {totals['open']} are open. {verdict}: at equal compute, with one rate for both of its "
        "phases and a quarter of the compute for SFT."
    )


def _is_established(test: Difference) -> bool:
    return test.p_value is not None and test.p_value < LEVEL


def _format_share(share: float) -> str:
    return f"{100 * float(share):.1f} %"


def _format_points(found: Difference) -> str:
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _format_difference(found: Difference) -> str:
    p_value = (
        "–" if found.p_value is None else "< .001" if found.p_value < 0.001 else f"{found.p_value:.3f}".lstrip("0")
    )
    return f"{_format_points(found)}, p {p_value}"


def _format_range(shares: Sequence[float]) -> str:
    if not shares:
        return "–"
    return f"{fmean(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})".replace("%", " %")
