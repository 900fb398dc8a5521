"""Training with top-p, min-p, min_tokens and a stop string of one's own, as a user starts it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import ONLINE

from qed.runs.run import read_lines

FILTERS = ("--sampling.top_p", 0.8, "--sampling.min_p", 0.02, "--sampling.min_tokens", 3, "--sampling.stop", "2,<")
SEVERAL = ("--learner.batch_size", 8, "--learner.passes", 2)


@pytest.mark.parametrize(("precision", "updates"), [("float32", ()), ("bfloat16", ()), ("float32", SEVERAL)])
def test_a_filtered_run_starts_on_policy(
    qed: Callable[..., Any],
    command: Callable[..., list[object]],
    tmp_path: Path,
    precision: str,
    updates: tuple[object, ...],
) -> None:
    """The comparison holds, the first ratio is 1 and the first KL 0, no ratio is infinite and no answer ends early."""
    run = tmp_path / "run"
    done = qed(
        *command("grpo", *ONLINE, *FILTERS, *updates, "--algorithm.kl", 0.1, "--model.precision", precision),
        "--run.preflight",
        "true",
        "--out",
        run,
    )
    assert done.code == 0, done.err
    half = precision == "bfloat16"
    rows = read_lines(run / "metrics.jsonl")
    (compared,) = (row["sampler_check/logp_diff_max"] for row in rows if "sampler_check/logp_diff_max" in row)
    assert compared < (0.3 if half else 1e-3)
    steps = [row for row in rows if row.get("train/live_rows", 0)]
    assert all(math.isfinite(row["ratio/log_max"]) and row["ratio/log_max"] < 50 for row in steps)
    if not updates:
        assert all(row["ratio/log_max"] < 1e-3 for row in steps)
        assert all(row["mismatch/logp"] < (0.05 if half else 1e-5) for row in steps)
        assert steps[0]["kl/ref"] == pytest.approx(0, abs=1e-6)
    answers = [row for path in sorted((run / "rollouts").glob("*.jsonl.zst")) for row in read_lines(path)]
    assert answers
    assert all(row["n_tokens"] > 3 for row in answers)
    ended = [row["text"] for row in answers if row["text"].endswith(("2", "<"))]
    assert all(row["stop_reason"] == "stop" for row in answers if row["text"].endswith("<"))
    assert ended


def test_a_sampler_that_reports_no_support_is_refused(
    qed: Callable[..., Any], command: Callable[..., list[object]], tmp_path: Path
) -> None:
    """With and without pre-flight; without a filter it trains."""
    own = tmp_path / "silent.py"
    own.write_text(
        "from dataclasses import replace\n"
        "from qed.sampling.hf import HFSampler\n"
        "class Silent(HFSampler):\n"
        "    def generate(self, *given):\n"
        "        return [[replace(one, support=None) for one in some] for some in super().generate(*given)]\n"
        "make = Silent\n",
        encoding="utf-8",
    )
    asked = command("grpo", *ONLINE, "--sampling.sampler", own, "--steps", 1)
    for skip in ("true", "false"):
        done = qed(*asked, "--sampling.top_k", 5, "--run.preflight", skip, "--out", tmp_path / skip)
        assert done.code == 2
        assert "does not report which tokens" in done.err
    assert qed(*asked, "--out", tmp_path / "plain").code == 0
