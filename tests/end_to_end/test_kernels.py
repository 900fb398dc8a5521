"""Threads and the precision of products belong to a run: recorded, and the same when it is resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qed import host
from qed.kernels import build
from qed.models.alignment import depends_on_alignment
from qed.runs.run import read_json, read_lines

SMALL = [
    "--model",
    "new:tiny",
    "--data.unique_examples",
    8,
    "--learner.batch_size",
    4,
    "--evaluation.problems",
    1,
    "--evaluation.samples",
    0,
]


def test_a_resumed_run_computes_as_it_began(qed: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ["sft", *SMALL, "--sampling.max_tokens", 4, "--out", tmp_path / "run"]
    assert qed(*arguments, "--steps", 1, "--run.matmul_precision", "medium").code == 0
    assert read_json(tmp_path / "run" / "env.json", {})["matmul_precision"] == "medium"
    assert torch.get_float32_matmul_precision() == "highest"
    again = qed(*arguments, "--steps", 2, "--resume")
    assert again.code == 0, again.err
    assert read_json(tmp_path / "run" / "env.json", {})["matmul_precision"] == "medium"
    events = read_lines(tmp_path / "run" / "events.jsonl")
    assert "matmul_precision_changed" not in {row["event"] for row in events}
    other = qed(*arguments, "--steps", 3, "--resume", "--run.matmul_precision", "high")
    assert other.code == 0, other.err
    (told,) = (
        row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "matmul_precision_changed"
    )
    assert (told["before"], told["now"]) == ("medium", "high")


@pytest.mark.skipif(sys.platform != "linux", reason="the functions in C++ are for Linux")
def test_a_compiler_that_fails_is_told_once(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'error: no such instruction' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv(host.CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    build.load_library.cache_clear()
    try:
        done = qed("sft", *SMALL, "--sampling.max_tokens", 4, "--steps", 1, "--out", tmp_path / "run")
        build.load_library.cache_clear()
        measured = qed(
            "evaluate", "--model", tmp_path / "run", "--limit", 1, "--max-tokens", 4, "--out", tmp_path / "e"
        )
    finally:
        build.load_library.cache_clear()
    assert done.code == 0, done.err
    assert "qed compiles functions in C++" in done.out
    assert done.out.count("compiler failed: error: no such instruction") == 1
    assert measured.out.count("compiler failed: error: no such instruction") == 1, measured.err
    assert read_json(tmp_path / "run" / "env.json", {})["kernels"] == "torch"


def test_a_precision_that_is_none_is_refused(qed: Callable[..., Any], tmp_path: Path) -> None:
    done = qed("sft", *SMALL, "--out", tmp_path / "run", "--run.matmul_precision", "lowest")
    assert done.code == 2
    assert "highest" in done.err


def test_what_a_product_of_matrices_depends_on_is_recorded_and_a_change_is_said(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MKL has read the variable by now, so that what is set here changes what is recorded alone."""
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    arguments = ["sft", *SMALL, "--sampling.max_tokens", 4, "--out", tmp_path / "run"]
    monkeypatch.setenv(host.MKL_MODE, "AVX2")
    assert qed(*arguments, "--steps", 1).code == 0
    known = read_json(tmp_path / "run" / "env.json", {})
    assert known["mkl_cbwr"] == "AVX2"
    assert known["alignment_matters"] is depends_on_alignment()
    monkeypatch.setenv(host.MKL_MODE, host.REPRODUCIBLE)
    monkeypatch.setattr("qed.models.alignment.depends_on_alignment", lambda: True)
    again = qed(*arguments, "--steps", 2, "--resume")
    assert again.code == 0, again.err
    assert "started with mkl_cbwr AVX2 and continues with AUTO,STRICT" in again.out
    assert "depend on memory alignment here" in again.out
    events = {row["event"]: row for row in read_lines(tmp_path / "run" / "events.jsonl")}
    told = events["mkl_cbwr_changed"]
    assert (told["before"], told["now"]) == ("AVX2", "AUTO,STRICT")
    assert events["alignment_matters"]["mkl_cbwr"] == "AUTO,STRICT"
