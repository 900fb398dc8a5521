"""Answers of real models whose verdicts were published: 4 x 1,319 solutions of GSM8K by GPT-3 (Cobbe et al. 2021)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qed.evaluation.stored import Scoring, score_responses, summarize_columns

PUBLISHED = {"6b_finetuning": 0.217, "6b_verification": 0.390, "175b_finetuning": 0.347, "175b_verification": 0.563}
MODES = ("flexible", "last-line")


@pytest.mark.parametrize("mode", MODES)
def test_published_accuracies_are_reproduced(shared: Path, mode: str) -> None:
    file = shared / "data/gsm8k/example_model_solutions.jsonl"
    labels = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    scored = score_responses(file, Scoring(response_keys=tuple(f"{name}.solution" for name in PUBLISHED), mode=mode))
    figures = summarize_columns(scored)
    found = set()
    for name, published in PUBLISHED.items():
        assert len(scored[name]) == figures[name]["n"] == 1_319
        assert figures[name]["accuracy"] == pytest.approx(published, abs=0.0005)
        verdicts = zip(scored[name], labels, strict=True)
        found |= {
            (name, row) for row, (got, label) in enumerate(verdicts) if got["correct"] != label[name]["is_correct"]
        }
    assert not found
