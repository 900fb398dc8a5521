"""The benchmarks that make runs and read those that are there: runs of other settings are other runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import critics
import curricula
import learning
import making_runs
import pytest
import random_faults
import staleness
import tools

from qed.config.plugins import load_algorithm

MAKE: dict[Any, Callable[[int, str, Path], object]] = {
    learning: lambda steps, _, out: learning.made("grpo", 0, steps, out),
    curricula: lambda steps, _, out: curricula.made("grpo, uniform", 0, steps, out),
    tools: lambda steps, _, out: tools.made("without", 0, (steps, 1), out),
    critics: lambda steps, _, out: critics.make("grpo", 0, steps, out),
    staleness: lambda steps, sampler, out: staleness.made({"staleness": 1, "seed": 0}, steps, sampler, "", out),
}


@pytest.mark.parametrize("benchmark", MAKE, ids=lambda each: each.__name__)
def test_runs_of_other_steps_are_not_read(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def fail(_: Sequence[str], folder: Path) -> str:
        folders.append(folder)
        return "it failed"

    monkeypatch.setattr(benchmark, "make_run", fail)
    for steps, sampler in ((30, "native"), (60, "native"), (60, "vllm")):
        MAKE[benchmark](steps, sampler, tmp_path)
    assert len(set(folders)) == (3 if benchmark is staleness else 2)


def test_ppo_and_grpo_are_compared_by_their_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has failed counts on neither side."""
    asked: list[tuple[str, int]] = []

    def make(arm: str, seed: int, steps: int, out: Path) -> dict[str, Any]:
        asked.append((arm, steps))
        row = {"arm": arm, "seed": seed, "steps": steps}
        return {**row, "error": "it failed"} if (arm, seed) == ("ppo", 1) else {**row, "flops": 1.0 + (arm == "ppo")}

    monkeypatch.setattr(critics, "make", make)
    monkeypatch.setattr(critics, "card", lambda _: [])
    monkeypatch.setattr(sys, "argv", ["critics.py", "--seeds", "0,1", "--steps", "10", "--out", str(tmp_path)])
    critics.main()
    assert asked[-2:] == [("grpo", 20)] * 2


def test_a_run_that_was_killed_without_a_word_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", tmp_path / "python")
    (tmp_path / "python").write_text(f"#!/bin/sh\nkill -{signal.SIGKILL} $$\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    assert making_runs.make_run(["grpo"], tmp_path / "run") == "exit code -9"


def test_faults_meet_algorithms_that_need_no_teacher() -> None:
    drawn = random_faults.list_drawn()
    assert {"grpo", "sft", *random_faults.PAIRED} <= set(drawn)
    assert "opd" not in drawn
    assert {name for name in drawn if load_algorithm(name).together == 2} - {"online_dpo"} == set(random_faults.PAIRED)
