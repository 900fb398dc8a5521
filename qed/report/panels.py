"""Which curves a report shows: every panel that has something measured to show, and none that has not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from qed.report.curves import CONTROL_COLOUR, align_times, list_held_out_points, list_trained_points, read_figure
from qed.report.record import DECODINGS, VALIDATION, Phase, Record
from qed.report.scales import Span
from qed.report.svg import HEIGHT, Chart, Series

PART = re.compile(r"reward/(.+)/mean")
MOST_BANDS = 3
FIRST_ROW = 300


@dataclass(frozen=True)
class Panel:
    """A panel's curves: measures of the training steps, and figures of the held-out evaluations."""

    title: str
    unit: str
    trained: tuple[tuple[str, str], ...] = ()
    held_out: tuple[tuple[str, str, str], ...] = ()
    share: bool = False
    log: bool = False
    note: str = ""


LENGTH = Panel(
    "Answer length",
    "tokens",
    (("training, all", "length/mean"), ("right", "length/right_mean"), ("wrong", "length/wrong_mean")),
    (("held-out, greedy", "greedy", "mean_tokens"),),
)
CLASSES = Panel(
    "Format × answer",
    "share of answers",
    held_out=(
        ("kept, right", "greedy", "classes.fmt1_ans1"),
        ("kept, wrong", "greedy", "classes.fmt1_ans0"),
        ("broken, right", "greedy", "classes.fmt0_ans1"),
        ("broken, wrong", "greedy", "classes.fmt0_ans0"),
    ),
    share=True,
    note="Greedy answers to held-out problems; the answer of a broken format is looked for leniently.",
)
VALIDATED = "The best checkpoint is chosen by this part of the training problems, so it is no held-out result."
PANELS = (
    Panel(
        "Answers in format",
        "share of answers",
        (("training", "format"),),
        (("held-out, greedy", "greedy", "format"), ("held-out, sampled", "sampled", "format")),
        share=True,
    ),
    CLASSES,
    Panel(
        "Length of right and wrong answers",
        "tokens",
        held_out=(
            ("held-out, all", "greedy", "mean_tokens"),
            ("held-out, right", "greedy", "right_tokens"),
            ("held-out, wrong", "greedy", "wrong_tokens"),
        ),
        note="Greedy answers to held-out problems.",
    ),
    Panel(
        "Groups without signal",
        "share of groups",
        (
            ("equal rewards", "groups/zero_std"),
            ("all right", "groups/all_right"),
            ("all wrong", "groups/all_wrong"),
            ("equal, mixed", "groups/neither"),
        ),
        share=True,
        note="A group whose answers all earned the same reward has no gradient.",
    ),
    Panel(
        "Truncated answers",
        "share of answers",
        (("training", "length/truncated_frac"),),
        (("held-out, greedy", "greedy", "truncated_frac"), ("held-out, sampled", "sampled", "truncated_frac")),
        share=True,
    ),
    Panel("Entropy of the policy", "nats per token", (("entropy", "policy/entropy"),), log=True),
)
MACHINERY = (
    Panel(
        "Answers not graded",
        "in a step",
        (
            ("out of time", "grading/timeouts"),
            ("failed", "grading/errors"),
            ("without a reward", "grading/without_reward"),
        ),
    ),
    Panel("Divergence from the reference", "nats per token", (("KL", "kl/ref"),)),
    Panel("Divergence within a step", "nats per token", (("old from new policy", "kl/old"),)),
    Panel(
        "Sampler and learner apart",
        "nats per token",
        (("KL", "mismatch/kl"),),
        log=True,
        note="How far the probabilities of the sampler are from those that the learner computes of the same tokens.",
    ),
    Panel("Clipped tokens", "share of tokens", (("low", "clip/low"), ("high", "clip/high")), share=True),
    Panel("Gradient norm", "before clipping", (("gradient norm", "optim/grad_norm"),), log=True),
    Panel("Learning rate", "of the optimizer", (("learning rate", "optim/lr"),)),
    Panel(
        "Time of a step",
        "seconds",
        (
            ("whole step", "time/step"),
            ("sampling", "time/sample"),
            ("grading", "time/grade"),
            ("scoring", "time/score"),
            ("updating", "time/update"),
            ("loading weights", "time/sync"),
        ),
    ),
    Panel("Speed", "tokens per second", (("tokens per second", "perf/tokens_per_s"),)),
)


def build_charts(records: Sequence[Record]) -> list[Chart]:
    """All charts of one run, or of several overlaid."""
    tasks = list(dict.fromkeys(task for record in records for task in record.tasks))
    followed = _choose_followed_task(records, tasks[0] if tasks else VALIDATION)
    found: list[Chart | None] = []
    for task in tasks:
        found += [
            build_accuracy_chart(records, task, decoding, len(tasks) > 1)
            for decoding in (DECODINGS if records[1:] else ("greedy",))
        ]
    found += [_build_validation_chart(records, decoding) for decoding in (DECODINGS if records[1:] else ("greedy",))]
    found += [build_panel_chart(records, each, followed) for each in (LENGTH, _build_reward_panel(records), *PANELS)]
    found += [*build_loss_charts(records), *(build_panel_chart(records, each, followed) for each in MACHINERY)]
    drawn = [chart for chart in found if chart is not None]
    if len(drawn) > 1 and drawn[0].wide and not drawn[1].wide:
        drawn[1] = replace(drawn[1], height=drawn[0].height)  # they stand side by side
    return drawn


def _choose_followed_task(records: Sequence[Record], task: str) -> str:
    """The part whose figures show how it went: the one that was asked more often."""
    asked = {part: max(len(record.measured(part)) for record in records) for part in (task, VALIDATION)}
    return VALIDATION if asked[VALIDATION] > asked[task] else task


def _build_validation_chart(records: Sequence[Record], decoding: str) -> Chart | None:
    """Accuracy on the validation part, which is said to be no result."""
    chart = build_accuracy_chart(records, VALIDATION, decoding, named=False)
    if chart is None:
        return None
    told = f" It chose step {records[0].best:,}." if len(records) == 1 and records[0].best is not None else ""
    title = f"Validation accuracy{'' if len(records) == 1 else f', {decoding}'}"
    return replace(chart, title=title, note=f"{VALIDATED}{told}", wide=False, height=HEIGHT)


def build_accuracy_chart(records: Sequence[Record], task: str, decoding: str, named: bool) -> Chart | None:
    """Held-out accuracy over the steps: of one run both decodings and the control, of several runs one decoding."""
    alone = len(records) == 1
    asked = [
        (record, each, each if alone else label, index)
        for first, (record, label) in enumerate(zip(records, label_runs(records), strict=True))
        for index, each in enumerate(DECODINGS if alone else (decoding,), first)
    ]
    lines = [list_held_out_points(*each, task, len(records) <= MOST_BANDS) for each in asked]
    lines += [align_times(records[0], records[0].control, task)] if alone and records[0].control else []
    series = [line for line in lines if line is not None]
    if not series:
        return None
    spans = build_spans(records, series)
    notes = ["Bands are 95 % intervals."] if any(line.band for line in series) else []
    notes += ["Each phase has its own step scale."] if len(spans) > 1 else []
    if any(line.colour == CONTROL_COLOUR and alone for line in series):
        notes.append("The control stands by training time: above each step is what SFT alone reached in the same time.")
    counts = {figures.get("n") for record in records for _, some in record.measured(task) for figures in some.values()}
    return Chart(
        f"Held-out accuracy{'' if alone else f', {decoding}'}{f', {task}' if named else ''}",
        "share of problems right",
        series,
        spans,
        share=True,
        note=" ".join(notes),
        wide=decoding == "greedy",
        height=FIRST_ROW if decoding == "greedy" else HEIGHT,
        size=f"n = {counts.pop():,}" if len(counts) == 1 else "",
    )


def build_panel_chart(records: Sequence[Record], about: Panel, task: str) -> Chart | None:
    """A chart of a panel's measures; of several runs only the first measure, one line a run."""
    alone = len(records) == 1
    lines: list[Series | None] = []
    for index, (record, name) in enumerate(zip(records, label_runs(records), strict=True)):
        for place, (label, key) in enumerate(about.trained if alone else about.trained[:1]):
            lines.append(list_trained_points(record.phases, key, label if alone else name, index + place, alone))
        for place, (label, decoding, figure) in enumerate(_list_measures(about, alone), len(about.trained)):
            said = label.replace("held-out", _name_part(task)) if alone else name
            lines.append(read_figure(record.measured(task), decoding, figure, said, place if alone else index))
    series = [line for line in lines if line is not None]
    if not series:
        return None
    what = "" if alone or about.trained else f": {about.held_out[0][0].replace('held-out', _name_part(task))}"
    note = about.note.replace("held-out", _name_part(task))
    drawn = Chart(
        about.title + what, about.unit, series, build_spans(records, series), share=about.share, log=about.log
    )
    return replace(drawn, note=note)


def _list_measures(about: Panel, alone: bool) -> Sequence[tuple[str, str, str]]:
    """The figures of evaluations that a panel shows; of several runs the first, where it is the panel's own."""
    return about.held_out if alone else about.held_out[: 0 if about.trained else 1]


def _name_part(task: str) -> str:
    return "validation" if task == VALIDATION else "held-out"


def build_loss_charts(records: Sequence[Record]) -> Iterator[Chart | None]:
    """A chart for each phase: the losses of SFT and of RL mean different things."""
    alone = len(records) == 1
    for name in dict.fromkeys(phase.name for record in records for phase in record.phases):
        lines, online, title = [], False, name
        for index, (record, label) in enumerate(zip(records, label_runs(records), strict=True)):
            own = [phase for phase in record.phases if phase.name == name]
            online = online or any(phase.online for phase in own)
            title = own[0].label if own else title
            lines.append(list_trained_points(own, "train/loss", "loss" if alone else label, index, alone))
        series = [line for line in lines if line is not None]
        note = "What counts is its gradient, not its height: it is no measure of progress." if online else ""
        if series:
            yield Chart(
                f"Loss of {title}", "loss", series, build_spans(records, series), log=True, zero=False, note=note
            )


def label_runs(records: Sequence[Record]) -> list[str]:
    """The runs' names; where two are the same, their folders."""
    names = [record.name for record in records]
    return names if len(set(names)) == len(names) else [str(record.folder) for record in records]


def build_spans(records: Sequence[Record], series: Sequence[Series]) -> list[Span]:
    """The phases that a chart covers, or one nameless stretch where the runs do not share their phases."""
    steps = [step for line in series for step, _ in (*line.points, *line.dots)]
    first, last = min(steps), max(steps)
    phases: dict[str, list[Phase]] = {}
    for record in records:
        for phase in record.phases:
            phases.setdefault(phase.name, []).append(phase)
    begins = [{phase.begin for phase in same} for same in phases.values()]
    # Phases that begin at the same step under different names are arms beside each other, not one after another.
    shared = phases and all(len(of_name) == 1 for of_name in begins) and len(set.union(*begins)) == len(begins)
    found = [_build_span(same) for same in phases.values()] if shared else []
    covered = [
        span for span in found if any(span.first < step <= span.last or step == first == span.first for step in steps)
    ]
    if not covered or first < covered[0].first or last > covered[-1].last:
        return [Span("", first, last)]
    return covered


def _build_span(phases: Sequence[Phase]) -> Span:
    """A phase's steps; its share of the width is its share of the time."""
    seconds = phases[0].total("time/step")
    last = max(phase.last for phase in phases)
    return Span(phases[0].label, phases[0].begin, last, seconds or float(last - phases[0].begin))


def _build_reward_panel(records: Sequence[Record]) -> Panel:
    """The reward, and its parts as the run's own reward names them."""
    keys = sorted(
        {
            key
            for record in records
            for phase in record.phases
            for row in phase.rows
            for key in row
            if PART.fullmatch(key)
        }
    )
    parts = tuple((key.removeprefix("reward/").removesuffix("/mean"), key) for key in keys)
    return Panel("Reward in training", "mean of a step's answers", (("reward", "reward/mean"), *parts))
