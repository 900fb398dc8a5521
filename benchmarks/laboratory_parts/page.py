"""Writes docs/laboratory.md and its figure from the summaries; every result on the page is generated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from laboratory_parts.analysis import (
    GREEDY,
    LEVEL,
    SAMPLED,
    Arm,
    Difference,
    TaskStudy,
    compare,
    compute_seed_interval,
    read_studies,
)
from laboratory_parts.figure import draw_figure
from laboratory_parts.methods import MAX_TOKENS, RATES, SHARED
from laboratory_parts.runs import SAMPLES
from laboratory_parts.tasks import NOISE, SHOWN, TRAIN
from laboratory_parts.text import INTRODUCTION, LIMITS, PAPER, TASK_TEXTS

FIGURE = "figure.svg"
CONTROL = "SFT → GRPO"
TESTED = ("guidance", "distillation")
MIXED = ("LUFFY", "RL + SFT loss", "HPT", "SRFT", "CHORD", "CHORD-μ", "ReLIFT", "UFT", "Prefix-RFT")


def write_page(folder: Path, page: Path) -> None:
    """Write the page, and write the figure into the folder of the summaries."""
    text, figure = render_page(folder)
    (folder / FIGURE).write_text(figure, encoding="utf-8")
    page.write_text(text, encoding="utf-8")


def render_page(folder: Path) -> tuple[str, str]:
    """Return the page and the figure for the summaries in a folder."""
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
    tests = study.test(study.find_best_control(), study.list_kind(*TESTED))
    rows = [_format_model(study.start), _format_model(study.teacher)]
    rows += [_format_arm(arm, study, tests) for arm in study.arms]
    table = [
        "| method | lr | held-out, right [95 % over seeds] | against the best control [95 %], p (Holm) | greedy | "
        "the other task | tokens | entropy | compute | steps |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    notes = [f"Best control: {study.find_best_control().name}."]
    notes += [f"No runs yet: {', '.join(study.skipped)}."] if study.skipped else []
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
        _format_steps([tuple(run["steps"].values()) for run in arm.runs]),
    ]
    return f"| {' | '.join(cells)} |"


def _describe_findings(studies: Sequence[TaskStudy]) -> str:
    lines = [
        "## What is established",
        "",
        "Over the seeds of this study, at 5 % after Holm's adjustment within a task:",
        "",
    ]
    lines += [f"- `{study.task}`: {_find(study, measure)}" for study in studies for measure in (SAMPLED, GREEDY)]
    lines += [
        "",
        "Does a method raise held-out accuracy over its start? Seeds above the start, and the difference of sampled "
        "answers [95 %]:",
        "",
    ]
    return "\n".join([*lines, *_tabulate_gains(studies)])


def _find(study: TaskStudy, measure: str) -> str:
    control = study.find_best_control(measure)
    tests = study.test(control, study.list_kind(*TESTED), measure)
    better, worse, undecided = _sort_tests(tests)
    return (
        f"{measure} answers, against {control.name} ({_format_share(control.read(measure).mean())}). "
        f"Better: {_join(better)}. Worse: {_join(worse)}. Not established: {_join(undecided)}."
    )


def _sort_tests(tests: dict[str, Difference]) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the arms established as better, as worse, and as neither."""
    decided = {name: test.mean > 0 for name, test in tests.items() if test.p_value is not None and test.p_value < LEVEL}
    better, worse = ([name for name, above in decided.items() if above is sign] for sign in (True, False))
    return better, worse, [name for name in tests if name not in decided]


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


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
    lines, totals = [PAPER.strip(), ""], [0, 0, 0]
    for study in studies:
        control = next((arm for arm in study.arms if arm.name == CONTROL), None)
        mixed = [arm for arm in study.arms if arm.name in MIXED]
        if control is None or not mixed:
            continue
        tests = study.test(control, mixed)
        above, below, undecided = _sort_tests(tests)
        totals = [total + len(names) for total, names in zip(totals, (below, above, undecided), strict=True)]
        strongest = max(mixed, key=lambda arm: float(arm.sampled.mean()))
        lines.append(
            f"- `{study.task}`: {CONTROL} {_format_share(control.sampled.mean())}, established as better than "
            f"{_join(below)}; as worse than {_join(above)}; undecided: {_join(undecided)}. The highest of "
            f"the mixed methods is {strongest.name} with {_format_share(strongest.sampled.mean())} "
            f"({_format_difference(tests[strongest.name])})."
        )
    return "\n".join([*lines, "", _conclude(*totals)])


def _conclude(better: int, worse: int, undecided: int) -> str:
    if worse:
        verdict = "So the claim does not hold for every method and task here"
    elif undecided:
        verdict = "So nothing here contradicts the claim, but not every comparison is decided"
    else:
        verdict = "So the claim holds here"
    return (
        f"Of {better + worse + undecided} comparisons, {CONTROL} is established as better in {better}, as worse in "
        f"{worse}, and {undecided} are undecided. {verdict}: with equal compute for both sides, one learning rate for "
        "both phases, and a quarter of the compute for SFT. The paper compares at the budgets of the published runs."
    )


def _format_share(share: float) -> str:
    return f"{100 * float(share):.1f} %"


def _format_points(found: Difference) -> str:
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _format_difference(found: Difference) -> str:
    p_value = (
        "–" if found.p_value is None else "< .001" if found.p_value < 0.001 else f"{found.p_value:.3f}".lstrip("0")
    )
    return f"{_format_points(found)}, p {p_value}"


def _format_steps(steps: Sequence[tuple[int, ...]]) -> str:
    phases = [(min(counts), max(counts)) for counts in zip(*steps, strict=True)]
    return " + ".join(f"{low}" if low == high else f"{low} to {high}" for low, high in phases)


def _format_range(shares: Sequence[float]) -> str:
    if not shares:
        return "–"
    return f"{fmean(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})".replace("%", " %")
