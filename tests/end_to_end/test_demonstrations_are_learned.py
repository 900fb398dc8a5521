"""SFT teaches the form of the prompt whatever form the data has: measured on answers of the trained model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.runs.run import read_evaluations, read_lines


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Sums in the columns of OpenMathReasoning; a tenth of the thoughts is cut off."""
    sums = [(a, b) for a in range(2, 16) for b in range(2, 16)]
    rows = [
        {
            "expected_answer": str(a + b),
            "problem": f"What is {a}+{b}?",
            "generated_solution": f"<think>\n{a}+{b}={a + b}\n</think>\n\n$\\boxed{{{a + b}}}$"
            if number % 10
            else f"<think>\n{a}+",
        }
        for number, (a, b) in enumerate(sums)
    ]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "traces.jsonl"


def test_what_earns_the_runs_reward_is_trained_on_as_it_is(qed: Callable[..., Any], tmp_path: Path) -> None:
    rows = [
        {
            "prompt": f"{a}+{b}",
            "completion": f"<start_working_out>{a}+{b}={a + b}<end_working_out><SOLUTION>{a + b}</SOLUTION>",
            "answer": str(a + b),
        }
        for a in range(2, 9)
        for b in range(2, 9)
    ]
    (tmp_path / "worked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ("--model", "new:tiny", "--tasks", tmp_path / "worked.jsonl", "--sampling.max_tokens", 48)
    few = ("--steps", 1, "--evaluation.every", 0, "--no-evaluation.at_start", "--evaluation.problems", 2)
    preflight = {}
    for name, reward in (("given", "working_out"), ("own", "r1_zero")):
        prompt = "chat" if name == "given" else "r1_zero"
        chosen = ("--prompt", prompt, "--reward", reward, "--out", tmp_path / name)
        done = qed("sft", *settings, *chosen, *few)
        assert done.code == 0, done.err
        events = read_lines(tmp_path / name / "events.jsonl")
        preflight[name] = next(row for row in events if row["event"] == "preflight")
    assert preflight["given"]["demonstrations that earn the run's full reward"] == "32 of 32"
    assert "demonstrations rewritten in the prompt's form" not in preflight["given"]
    assert preflight["own"]["demonstrations that earn the prompt's full reward"] == "32 of 32"
    assert preflight["own"]["demonstrations rewritten in the prompt's form"] == "32 of 32"


@pytest.mark.slow
def test_traces_teach_the_form(qed: Callable[..., Any], trace_file: Path, tmp_path: Path) -> None:
    done = qed(
        *("sft", "--model", "new:tiny", "--tasks", trace_file, "--prompt", "working_out", "--out", tmp_path / "run"),
        *("--steps", 60, "--learner.batch_size", 16, "--lr", "3e-3", "--sampling.max_tokens", 48),
        *("--evaluation.problems", 16, "--evaluation.samples", 0, "--evaluation.every", 60),
    )
    assert done.code == 0, done.err
    events = {row["event"]: row for row in read_lines(tmp_path / "run" / "events.jsonl")}
    earned = events["preflight"]["demonstrations that earn the prompt's full reward"]
    good, judged = map(int, earned.split(" of "))
    assert judged == 32
    assert 0 < judged - good < 10
    assert 10 <= events["demonstrations_left_out"]["without_solution"] <= 20
    before, after = (summary["traces"]["greedy"]["format"] for _, summary in read_evaluations(tmp_path / "run"))
    assert before == 0
    assert after > 0.9
