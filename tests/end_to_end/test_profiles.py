"""--profile writes a trace and the memory of some steps, and changes nothing else."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import TIMES

from qed.runs.run import read_lines

SMALL = ["--model", "new:tiny", "--steps", 3, "--sampling.problems_per_step", 2, "--sampling.group_size", 2]
SMALL += [
    "--sampling.max_tokens",
    6,
    "--algorithm.entropy",
    0.01,
    "--evaluation.problems",
    1,
    "--run.preflight",
    "false",
]


def read_results(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not name.startswith(TIMES)}
        for row in read_lines(folder / "metrics.jsonl")
    ]


def test_a_profile_changes_no_result(qed: Callable[..., Any], tmp_path: Path) -> None:
    with_profile, without = tmp_path / "with", tmp_path / "without"
    done = qed("grpo", *SMALL, "--run.on_no_signal", "warn", "--out", with_profile, "--profile", "steps=2:3")
    assert done.code == 0, done.err
    assert "Profiled steps 2 to 3" in done.out
    assert "https://ui.perfetto.dev" in done.out
    assert qed("grpo", *SMALL, "--run.on_no_signal", "warn", "--out", without).code == 0
    assert read_results(with_profile) == read_results(without)
    weights = [folder / "final" / "hf" / "model.safetensors" for folder in (with_profile, without)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not (without / "profile").exists()

    with gzip.open(with_profile / "profile" / "rank_0.trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    stages = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    assert [stages[name] for name in ("sample", "score", "update", "sync")] == [2] * 4
    snapshot = pickle.loads((with_profile / "profile" / "rank_0.memory.pickle").read_bytes())
    names = {frame["name"] for entry in snapshot["device_traces"][0] for frame in entry["frames"]}
    assert {"sample", "update"} <= names

    peak = json.loads((without / "env.json").read_text())["peak_flops"]
    steps = [row for row in read_lines(without / "metrics.jsonl") if "train/loss" in row]
    for row in steps:
        assert row["perf/tokens_per_s"] > 0
        assert 0 < row["perf/mfu"] < 1
        assert row["perf/mfu"] * row["time/step"] * peak == pytest.approx(row["perf/flops"])
        assert row["mem/peak"] == row["mem/rss_gb"] > 0


@pytest.mark.parametrize("value", ["3:5", "steps=0:2", "steps=3:2", "steps=3", "steps=2:4", "steps=a:b"])
def test_wrong_steps_are_refused(qed: Callable[..., Any], tmp_path: Path, value: str) -> None:
    done = qed("grpo", *SMALL, "--out", tmp_path / "run", "--profile", value)
    assert done.code == 2
    assert "run.profile" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()
