"""Run folders made by the run's own writers, and reports read as a browser reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from qed.evaluation.intervals import compute_wilson_interval
from qed.evaluation.summary import summarize
from qed.report.write import write_report
from qed.runs.run import Row, Run, build_row, write_evaluation
from qed.types import Grade, Problem, Rollout

PROBLEMS = 8
CONTROL = "{method: sft, learner: {steps: 4}}\n"
PIPELINE = """
sft: {method: sft, learner: {steps: 4}}
rl: {method: grpo, learner: {steps: 4}}
model: {name: toy}
"""
SPACES = str.maketrans({"\u00a0": " "})
Outcomes = Mapping[int, tuple[str, str]]  # by step, the greedy and the sampled answers: "1" right, "0" wrong
ROAD: Outcomes = {0: ("00000000", "00000000"), 4: ("11000000", "10000000"), 8: ("10111110", "11011100")}


class Page(HTMLParser):
    """A report, read as a browser reads it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.style = ""
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.words.append(data.translate(SPACES))

    @property
    def text(self) -> str:
        """All text, words of neighbouring elements apart."""
        return " ".join(" ".join(self.words).split())

    def names(self) -> set[str]:
        """The tags of the page."""
        return {tag for tag, _ in self.tags}


def report(*runs: Path) -> Page:
    """The report of runs, written and read."""
    return Page(write_report(list(runs), runs[0] / "report.html"))


def answers(step: int, right: str, text: Callable[[bool, int], str]) -> list[Rollout]:
    """The answers of one decoding, one to a problem."""
    return [
        Rollout(
            problem=Problem(f"p{index}", f"Question {index}?", str(index), meta={"level": 1 + index % 2}),
            prompt=(1,),
            output=(2,) * (3 if step <= 4 else 9),
            logps=(-0.5,) * (3 if step <= 4 else 9),
            text=text(mark == "1", step),
            stop_reason="stop",
            grade=Grade(float(mark), mark == "1", True, str(index)),
            version=step,
        )
        for index, mark in enumerate(right)
    ]


def plain(right: bool, step: int) -> str:
    """An answer with worked steps after RL, and without them before."""
    return f"<think>{'2+2=4' if step > 4 else ''}</think><answer>{right}</answer>"


def figures(marks: str, tokens: float) -> dict[str, Any]:
    """The summary of one decoding, as an evaluation writes it."""
    low, high = compute_wilson_interval(marks.count("1"), len(marks))
    share = marks.count("1") / len(marks)
    known = {"n": len(marks), "k": 1, "accuracy": share, "ci_lo": low, "ci_hi": high, "format": 0.875}
    return {**known, "mean_tokens": tokens, "truncated_frac": 0.125}


def make_run(
    parent: Path,
    name: str = "mine",
    outcomes: Outcomes = ROAD,
    steps: range = range(1, 9),
    ending: dict[str, Any] | None = None,
    text: Callable[[bool, int], str] = plain,
    sampled: bool = True,
    control: bool = False,
) -> Path:
    """A run of four SFT steps and four GRPO steps."""
    folder = parent / name
    folder.mkdir(parents=True)
    writer = Run(folder)
    writer.write("settings.yaml", (CONTROL if control else PIPELINE).encode())
    writer.write("settings.origin.json", b'{"sft.learner.steps": "default", "model.name": "my.yaml:3"}')
    for step in steps:
        online = {"reward/mean": step / 8, "reward/boxed/mean": 0.25, "length/mean": 9.0} if step > 4 else {}
        row = {"step": step, "phase": "grpo" if step > 4 else "sft", "train/loss": 1 / step, **online}
        writer.metrics({**row, "time/step_s": 2.0, "train/tokens": 100, "optim/lr": 0.1})
    for step, (greedy, other) in outcomes.items():
        both = {"greedy": greedy, **({"sampled": other} if sampled else {})}
        given = [
            {"decoding": decoding, **build_row(answer, step)}
            for decoding, marks in both.items()
            for answer in answers(step, marks, text)
        ]
        writer.evaluation(step, "sums", given, {d: figures(m, 9.0 if step > 4 else 3.0) for d, m in both.items()})
    writer.event(**(ending or {"kind": "finished", "step": 8}))
    return folder


MATHS = (
    "<think>We have $\\frac{1}{2} + \\frac{1}{3}$, so \\[\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}\\]</think> "
    "\\boxed{\\frac{5}{6}}"
)


def rows_of(step: int, decoding: str, shares: float, answers: int, text: str = MATHS, problems: int = 12) -> list[Row]:
    """The rows of an evaluation as a real one writes them; a share of the problems is answered right, most of the
    time."""
    found: list[Row] = []
    for problem in range(problems):
        for number in range(answers):
            right = problem < shares * problems and (number + problem) % 4 != 3
            kept = (problem + number + step) % 5 != 0
            length = 20 + (7 * problem + 3 * number + step) % 30
            task = Problem(f"q{problem}", f"What is $x^{problem}$?", "\\frac{5}{6}", meta={"level": 1 + problem % 3})
            task.meta["subject"] = ("algebra", "geometry")[problem % 2]
            grade = Grade(float(right), right, kept, "\\frac{5}{6}" if kept else None, parts={"style": float(kept)})
            stop = "length" if length > 46 else "stop"
            own = Rollout(task, (1,), (2,) * length, (-0.5,) * length, text, stop, index=number, grade=grade)
            marks = {"strict": right and kept, "flexible": right, "string": right, "reasoning_chars": length % 4 * 9}
            kind = f"fmt{int(kept)}_ans{int(right)}"
            found.append({"decoding": decoding, **build_row(own, step), **marks, "class": kind})
    return found


def make_whole_run(parent: Path, name: str = "whole", text: str = MATHS) -> Path:
    """A run with every figure that evaluations write, and a validation part that is asked at every other step."""
    folder = make_run(parent, name, outcomes={})
    writer = Run(folder)
    for step in range(0, 9, 2):
        parts = ("validation",) if step not in (0, 4, 8) else ("maths", "validation")
        for part in parts:
            greedy, sampled = (rows_of(step, d, (step + 1) / 10, k, text) for d, k in (("greedy", 1), ("sampled", 4)))
            summary = {"greedy": summarize(greedy), "sampled": summarize(sampled)}
            writer.evaluation(step, part, [*greedy, *sampled], summary)
    writer.write("checkpoints/BEST", b"step_000006\n")
    return folder


def make_evaluation(parent: Path, name: str, share: float, decoding: str = "sampled", answers: int = 4) -> Path:
    """A folder of an evaluation alone, as `qed evaluate` leaves it."""
    rows = rows_of(0, decoding, share, answers)
    write_evaluation(parent / name, 0, "maths", rows, {decoding: summarize(rows)})
    return parent / name
