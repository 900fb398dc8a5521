"""SFT on demonstrations from the cache of tokenised data, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import OFFLINE, SMALL, STEPS, assert_same, cut

from qed.data import demonstrations
from qed.runs.run import read_lines

VARIANTS = {"rows": OFFLINE, "windows": ["--learner.batch_size", 4, "--data.window", 24]}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_goes_on_exactly_with_the_cache_and_without_it(
    qed: Callable[..., Any],
    data: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
) -> None:
    """The run in memory, the one that writes the cache, one cut that reads it, and one cut without its cache agree."""
    arguments = ["sft", "--tasks", data[0], *SMALL, *VARIANTS[variant], "--data.validation_split", 0.2]
    in_memory = tmp_path / "in_memory"
    assert qed(*arguments, "--out", in_memory).code == 0

    monkeypatch.setattr(demonstrations, "CACHED_CHARACTERS", 0)
    cache = tmp_path / "cache"
    monkeypatch.setenv("QED_CACHE", str(cache))
    cached = tmp_path / "cached"
    done = qed(*arguments, "--out", cached)
    assert done.code == 0, done.err
    assert done.out.count("Tokenised ") == 2  # the training and the validation part
    assert f"cached in {cache}" in done.out
    assert_same(in_memory, cached)

    read = cut(cached, STEPS // 2, tmp_path / "read")
    done = qed(*arguments, "--out", read, "--resume")
    assert done.code == 0, done.err
    assert "Tokenised" not in done.out
    assert "already tokenised" in done.out
    assert_same(in_memory, read)

    shutil.rmtree(cache)
    again = cut(cached, STEPS // 2, tmp_path / "again")
    done = qed(*arguments, "--out", again, "--resume")
    assert done.code == 0, done.err
    assert done.out.count("Tokenised ") == 2
    assert_same(in_memory, again)


def test_a_batch_that_is_not_finite_is_dumped_with_its_text(
    qed: Callable[..., Any], data: tuple[Path, Path], tmp_path: Path
) -> None:
    """Rows of a store have token ids alone."""
    arguments = ["sft", "--tasks", data[0], *SMALL, *OFFLINE, "--learner.lr", 1e30, "--learner.clip_norm", 0]
    done = qed(*arguments, "--out", tmp_path / "run")
    assert done.code == 4, done.err
    (dump,) = (tmp_path / "run" / "dumps").iterdir()
    assert {row["text"][-1] for row in read_lines(dump)} == {">"}
    assert all(row["question"] in row["prompt"] for row in read_lines(dump))


@pytest.mark.faults
def test_the_benchmark_of_large_data_measures_two_starts() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "demonstrations.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parents[1]), *filter(None, sys.path)])}
    command = [sys.executable, script, "--rows", 12_000, "--tokens", 260, "--steps", 1]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    first, second = result["starts"]
    assert first["told"][0].startswith("Tokenised")
    assert "already tokenised" in second["told"][0]
    assert result["cache_bytes"] > 12_000 * 260 * 4 * 0.8
    assert 0 < second["to_first_step_s"] < second["seconds"]
    assert 0 < second["largest_anonymous"] < second["largest_memory"]
