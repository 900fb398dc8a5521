"""The report says what the run's files say, and nothing else; model text stays text."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_folders import PROBLEMS, ROAD, Outcomes, make_run, report

from qed.errors import DataError, QedError, UsageError
from qed.evaluation.intervals import compute_wilson_interval
from qed.evaluation.paired import compare_paired
from qed.report import write
from qed.report.numbers import MAX_POINTS
from qed.report.record import read_record
from qed.report.write import write_report

HOSTILE = (
    "<script>alert(1)</script>\"><img src=x onerror=alert(1)>'/><a href=http://evil.example>\x1b[31mred\x00"
    "\u202etxt.exe\u200f</pre></svg><style>@import url(http://evil.example)</style>"
)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Makes runs beside each other."""
    return partial(make_run, tmp_path)


def test_the_figures_are_those_of_the_files(make: Callable[..., Path], tmp_path: Path) -> None:
    page = report(make())
    assert "mine: SFT, then GRPO" in page.text
    low, high = compute_wilson_interval(2, PROBLEMS)
    assert f"25.0 % [{100 * low:.1f}, {100 * high:.1f}] after SFT → 75.0 %" in page.text
    assert "the mean answer grew from 3.0 to 9.0 tokens" in page.text
    assert "Of 8 problems 5 went from wrong to right and 1 from right to wrong" in page.text
    record = read_record(tmp_path / "mine")
    test = compare_paired(*(record.read_rows(step, "sums", "greedy") for step in (4, 8)))
    assert test is not None
    assert f"({test.test}, p = {test.p_value:.3f}, by Holm over 2 tests p = " in page.text
    assert "greedy, step 8: 75.0 %" in page.text
    assert "model.name toy my.yaml:3" in page.text
    assert "sft.learner.steps" not in page.text
    assert (
        "The share of answers with worked steps (a thought that is not empty) went from 0.0 % to 100.0 %" in page.text
    )
    assert page.text.count("Greedy accuracy by level") == 1
    assert not page.open, "every element is closed"


def test_the_table_has_a_row_for_each_policy(make: Callable[..., Path]) -> None:
    page = report(make())
    for row in ("Before training step 0 0.0 %", "After SFT step 4 25.0 %", "After GRPO step 8 75.0 %"):
        assert row in page.text
    assert "9.0" in page.text
    assert "87.5 %" in page.text
    assert "12.5 %" in page.text


def test_answers_stand_side_by_side_mended_ones_first(make: Callable[..., Path]) -> None:
    page = report(make())
    kinds = ["From wrong to right", "From right to wrong", "Right before and after", "Wrong before and after"]
    places = [page.text.index(kind) for kind in kinds]
    assert places == sorted(places)
    assert page.text.index("Question 2?") < page.text.index("Question 1?"), "the first mended problem comes first"
    assert page.text.count("From wrong to right") == 2


@pytest.mark.parametrize("several", [False, True])
def test_model_text_is_text_only(make: Callable[..., Path], several: bool) -> None:
    ending = {"kind": "failed", "reason": HOSTILE + "\ud800"}
    runs = [
        make('a" onload="alert(1)" <b>&\'', text=lambda right, step: HOSTILE, ending=ending),
        *([make("b")] if several else []),
    ]
    page = report(*runs)
    known = (
        "html head meta title style body main header section article div span p h1 h2 h3 dl dt dd b small table caption"
    )
    known += " thead tbody tr th td figure ul li pre svg g path line circle text"
    assert page.names() <= set(known.split())
    assert ("img" in page.names(), "script" in page.names(), "a" in page.names()) == (False,) * 3
    for _, attributes in page.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style")}
    assert not any(word in page.style for word in ("url(", "@import", "http"))
    assert "<script>alert(1)</script>" in page.text, "it is shown as it was written"
    assert not set(page.source) & set("\x00\x1b\u202e\u200f")
    assert "⟨U+202E⟩txt.exe" in page.text


def test_the_page_fetches_nothing(make: Callable[..., Path]) -> None:
    page = report(make())
    policy = [attributes["content"] for tag, attributes in page.tags if attributes.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "://" not in page.source


def test_every_chart_says_what_it_is(make: Callable[..., Path]) -> None:
    page = report(make())
    drawings = [attributes for tag, attributes in page.tags if tag == "svg" and "viewbox" in attributes]
    assert len(drawings) > 8
    assert all(drawing.get("role") == "img" and drawing["aria-label"] for drawing in drawings)
    for title in ("Held-out accuracy", "Reward in training", "boxed", "Loss of SFT", "Loss of GRPO", "Learning rate"):
        assert title in page.text
    assert "Entropy" not in page.text, "a panel without data is left out"


@pytest.mark.parametrize(
    ("steps", "outcomes", "sampled", "said"),
    [
        (range(1, 5), {0: ROAD[0], 4: ROAD[4]}, True, "0.0 % [0.0, 32.4] before training → 25.0 %"),
        (range(5, 9), {4: ROAD[4], 8: ROAD[8]}, True, "before training → 75.0 %"),
        (range(1, 9), ROAD, False, "after SFT → 75.0 %"),
        (range(1, 9), {8: ROAD[8]}, True, "There is no other evaluation to compare it with"),
        (range(5, 9), {}, True, "the mean reward was 0.625 in the first 1 and 1.000 in the last 1 of 4 steps"),
        (range(1, 9), {}, True, "No held-out evaluation was made"),
    ],
)
def test_missing_parts_are_left_out(
    make: Callable[..., Path], steps: range, outcomes: Outcomes, sampled: bool, said: str
) -> None:
    page = report(make(steps=steps, outcomes=outcomes, sampled=sampled))
    assert said in page.text
    assert "nan" not in page.text.lower().split()
    assert ("How the policy changed" in page.text) == (len(outcomes) > 1)


def test_only_a_page_is_replaced(make: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "precious.jsonl"
    file.write_text('{"question": "1 + 1"}')
    with pytest.raises(UsageError, match="is not an HTML page"):
        write_report([make()], file)
    assert file.read_text() == '{"question": "1 + 1"}'
    page = write_report([tmp_path / "mine"], tmp_path / "page.html")
    assert write_report([tmp_path / "mine"], page) == page


def test_a_bare_run_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "phase": "sft", "train/loss": NaN, "optim/lr": 0.0}\n')
    assert "Learning rate" in report(tmp_path).text
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "phase": "sft", "train/loss": null}\n')
    assert "Loss" not in report(tmp_path).text


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("preferred", (0.0, 0.75), "share of validation pairs ranked right was 0.0 % at step 0 and 75.0 % at step 2"),
        ("loss", (6.5, 6.25), "nats per token, was 6.5 at step 0 and 6.25 at step 2"),
    ],
)
def test_what_is_validated_without_answers_is_shown(
    tmp_path: Path, name: str, values: tuple[float, float], said: str
) -> None:
    """Preference pairs and demonstrations have no accuracy; a comparison has one line for each run."""
    title = {"preferred": "Validation pairs", "loss": "Loss on validation demonstrations"}[name]
    key = f"eval/validation/{name}"
    interval = {f"{key}/ci_lo": 0.1, f"{key}/ci_hi": 0.9} if name == "preferred" else {}
    rows = [
        {"step": 0, "phase": "dpo", key: values[0], **interval},
        {"step": 1, "phase": "dpo", "train/loss": 0.5, "policy/entropy": 0.0},
        {"step": 2, "phase": "dpo", "train/loss": 0.5, "policy/entropy": 0.0},
        {"step": 2, "phase": "dpo", key: values[1], **interval},
    ]
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = report(tmp_path / "one")
    assert said in page.text
    assert title in page.text
    assert "not a held-out result" in page.text
    assert "Entropy" not in page.text
    both = write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "both.html").read_text()
    assert title in both


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ({"kind": "failed", "reason": "The loss is nan."}, "This run failed at step 6 of 8. Reason: The loss is nan."),
        ({"kind": "interrupted", "reason": ""}, "This run was interrupted at step 6 of 8."),
        (
            {"kind": "hung", "stage": "rollout", "seconds": 90.0},
            "This run hung at step 6 of 8. Reason: no progress for 90 s in stage 'rollout'.",
        ),
        ({"kind": "resumed"}, "stops at step 6 of 8 without an ending"),
    ],
)
def test_a_run_that_broke_off_says_so(make: Callable[..., Path], ending: dict[str, Any], said: str) -> None:
    page = report(make(steps=range(1, 7), outcomes={4: ROAD[4], 5: ROAD[8]}, ending=ending))
    assert said in page.text
    assert "after 1 step of GRPO" in page.text


@pytest.mark.parametrize(
    ("greedy", "steps", "said"),
    [
        ("01000001", range(1, 5), "GRPO alone is right on 6, the control alone on 2: +50.0 points ["),
        ("11111111", range(1, 5), "GRPO alone is right on 0, the control alone on 2: −25.0 points ["),
        ("10111110", range(1, 5), "GRPO alone is right on 0, the control alone on 0: +0.0 points ["),
        ("00000000", range(1, 5), "GRPO alone is right on 6, the control alone on 0: +75.0 points ["),
        ("01000001", range(1, 4), "One of the two is not finished, so they cannot be compared yet."),
    ],
)
def test_the_control_has_its_word(make: Callable[..., Path], greedy: str, steps: range, said: str) -> None:
    run = make()
    assert "Control" not in report(run).text
    make("mine/control", outcomes={0: ROAD[4], steps[-1]: (greedy, "10000000")}, steps=steps, control=True)
    page = report(run)
    assert said in page.text
    assert "Control: SFT continued" in page.text
    assert ("SFT continued for the same time (8.0 s; GRPO took 8.0 s) reached" in page.text) == (len(steps) == 4)
    assert f"control after {steps[-1]} steps, {2 * len(steps):.1f} s" in page.text


def test_a_control_that_has_measured_nothing_is_silent(make: Callable[..., Path]) -> None:
    run = make()
    make("mine/control", outcomes={0: ROAD[4]}, steps=range(1, 2), control=True)
    assert "Control: SFT continued" not in report(run).text


def test_several_runs_are_overlaid(make: Callable[..., Path]) -> None:
    runs = make("one"), make("two", outcomes={**ROAD, 8: ("11111111", "11111111")})
    page = report(*runs)
    assert "Comparison of 2 runs: one, two" in page.text
    assert "from 75.0 % (one) to 100.0 % (two), 87.5 % on average" in page.text
    assert "How the policy changed" not in page.text
    assert "one after GRPO, step 8 75.0 %" in page.text
    assert {"c0", "c1"} <= {word for _, attributes in page.tags for word in attributes.get("class", "").split()}


def test_runs_of_one_name_are_told_apart(make: Callable[..., Path]) -> None:
    runs = make("a/same"), make("b/same", steps=range(1, 5), outcomes={4: ROAD[4]})
    assert f"{runs[0]}, {runs[1]}" in report(*runs).text


def test_a_long_run_stays_small(make: Callable[..., Path]) -> None:
    run = make(steps=range(1, 5))
    with (run / "metrics.jsonl").open("a") as file:
        for step in range(5, 6000):
            norm = math.nan if step % 7 == 0 else 1e9 if step == 3000 else 1.0 + step % 5
            file.write(json.dumps({"step": step, "phase": "grpo", "optim/grad_norm": norm, "optim/lr": 1e-6}) + "\n")
    page = report(run)
    dots = [attributes["d"].count("M") for _, attributes in page.tags if "dots" in attributes.get("class", "")]
    assert MAX_POINTS - 20 < max(dots) <= MAX_POINTS
    assert len(page.source) < 400_000


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=r"is not a run: it has no settings\.yaml"):
            write_report([folder], tmp_path / "report.html")
    (tmp_path / "lr=1").mkdir()
    (tmp_path / "lr=1" / "settings.yaml").write_text("method: sft\n")
    with pytest.raises(DataError, match=rf"Its runs are {tmp_path}/\*\."):
        write_report([tmp_path], tmp_path / "report.html")
    (tmp_path / "settings.yaml").write_text("method: sft\n")
    with pytest.raises(DataError, match="has no metrics"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(DataError, match="at least one"):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", "{broken}\n"),
        ("metrics.jsonl", '{"phase": "sft"}\n'),
        ("metrics.jsonl", "7\n"),
        ("settings.yaml", "a: [\n"),
        ("eval/step_000008/summary.json", '{"sums": {"greedy": {}}}'),
        ("eval/step_000008/summary.json", '{"sums": 7}'),
        ("eval/step_000008/summary.json", "[1]"),
        ("eval/step_000008/summary.json", '{"sums": {"greedy": {"n": 1, "accuracy": "a", "ci_lo": 0, "ci_hi": 1}}}'),
        (
            "eval/step_000008/summary.json",
            '{"sums": {"greedy": {"n": 1, "accuracy": 1, "ci_lo": 0, "ci_hi": 1, "by": 3}}}',
        ),
        ("eval/step_000008/sums.jsonl", "[]\n"),
        ("eval/step_000008/sums.jsonl", '{"decoding": "greedy"}\n'),
        ("events.jsonl", "\udcff\n"),
    ],
)
def test_a_damaged_file_is_named(make: Callable[..., Path], name: str, content: str) -> None:
    run = make()
    (run / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=r"mine"):
        report(run)


def test_a_report_is_whole_or_as_it_was(make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()
    before = report(run).source

    def full(path: Path, content: bytes, append: bool = False) -> None:
        path.write_bytes(content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_bytes", full)
    with pytest.raises(QedError, match="No space left on device"):
        write_report([run], run / "report.html")
    assert (run / "report.html").read_text(encoding="utf-8") == before
    assert not list(run.glob(".*"))


def test_a_place_that_can_only_be_read_is_named_as_it_was_given(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(write, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(QedError, match=r"Cannot write .*/report\.html: Read-only file system\. Name another file"):
        write_report([run], run / "report.html")


def test_a_report_and_what_waits_for_a_measurement_need_no_heavy_library() -> None:
    heavy = "{'torch', 'datasets', 'transformers'}"
    code = f"import sys, qed.report.write, qed.doctor.fit; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
