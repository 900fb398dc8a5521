"""Turns beside training: evaluation plays them and stores them, counts leave the environment's tokens out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.runs.answer_measures import measure_answer
from qed.runs.run import read_lines
from qed.viewer.app import ENDPOINTS
from qed.viewer.library import Library
from qed.viewer.params import Params
from qed.viewer.tokens import find_blocks

SHOUT = """
from dataclasses import dataclass
from qed.environments.base import Environment, Reply

@dataclass(frozen=True)
class Shout(Environment):
    max_turns: int = 2
    def step(self, state):
        return None if state.ended else Reply(" Louder, please. ", reward=-0.25)

environment = Shout()
"""


@pytest.fixture
def trained(qed: Callable[..., Any], tmp_path: Path) -> Path:
    """A run whose environment replies to every first turn that a stop string has ended."""
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(60)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "shout.py").write_text(SHOUT, encoding="utf-8")
    small = ("--sampling.problems_per_step", 4, "--sampling.group_size", 4, "--sampling.max_tokens", 60)
    common = ("--tasks", tmp_path / "problems.jsonl", "--prompt", "question_only", "--steps", 2, *small)
    shout = ("--environment", tmp_path / "shout.py", "--sampling.stop", "e", "--evaluation.problems", 4)
    done = qed("grpo", "--model", "new:tiny", *common, *shout, "--out", tmp_path / "run")
    assert done.code in (0, 5), done.err
    return tmp_path / "run"


def find_value(figures: Any, name: str) -> Any:
    """The first value of a name in nested figures."""
    if isinstance(figures, dict):
        own = [figures[name]] if name in figures else [find_value(each, name) for each in figures.values()]
        return next((value for value in own if value is not None), None)
    own = [find_value(each, name) for each in figures] if isinstance(figures, list) else []
    return next((value for value in own if value is not None), None)


def list_turns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with turns, of which every one keeps what the environment said out of its counts."""
    several = [row for row in rows if row.get("turns")]
    for row in several:
        assert row["turns"] == [{"text": row["turns"][0]["text"], "reply": " Louder, please. ", "reward": -0.25}]
        assert "Louder" not in row["text"]
        assert row["n_tokens"] == sum(row["loss_mask"]) < len(row["tokens"])
        assert row["loss_mask"] == row["sampled_mask"]
    return several


def test_rollouts_and_evaluations_have_the_turns(qed: Callable[..., Any], trained: Path, tmp_path: Path) -> None:
    rows = [row for file in sorted((trained / "rollouts").glob("*.jsonl.zst")) for row in read_lines(file)]
    assert len(list_turns(rows)) > len(rows) / 4
    metrics = [row for row in read_lines(trained / "metrics.jsonl") if "turns/mean" in row]
    assert len(metrics) == 2
    assert all(1 < row["turns/mean"] <= 2 for row in metrics)
    ask = ("evaluate", "--model", trained, "--limit", 4, "--temperature", 1, "--samples", 4, "--json")
    refused = qed(*ask, "--out", tmp_path / "a")
    assert refused.code == 2
    assert "shout.py" in refused.err
    done = qed(*ask, "--allow-user-code", "--out", tmp_path / "b")
    assert done.code == 0, done.err
    answers = [row for file in (tmp_path / "b").rglob("*.jsonl*") for row in read_lines(file) if "text" in row]
    assert list_turns(answers)
    figures = json.loads(done.out)
    assert 1 < find_value(figures, "mean_turns") <= 2
    alone = qed(*ask, "--allow-user-code", "--environment", "single", "--out", tmp_path / "c")
    assert alone.code == 0, alone.err
    assert find_value(json.loads(alone.out), "mean_turns") is None
    assert not any(row.get("turns") for file in (tmp_path / "c").rglob("*.jsonl*") for row in read_lines(file))


def test_an_endpoint_has_one_turn(qed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n', encoding="utf-8")
    ask = ("evaluate", "--model", "openai:m", "--url", "http://127.0.0.1:9", "--tasks", tmp_path / "p.jsonl")
    done = qed(*ask, "--environment", "retry")
    assert done.code == 2
    assert "answers in one turn" in done.err


def test_the_viewer_shows_them(trained: Path, tmp_path: Path) -> None:
    library = Library((trained.parent,), tmp_path / "cache")
    rows = read_lines(trained / "rollouts" / "step_000001.jsonl.zst")
    at = next(number for number, row in enumerate(rows) if row.get("turns"))
    group, answer = divmod(at, 4)
    shown = ENDPOINTS["answer"](library, Params({"run": "run", "step": 1, "group": group, "answer": answer}))
    assert shown["answer"]["turns"] == rows[at]["turns"]
    assert shown["answer"]["text"] == rows[at]["text"]
    blocks = shown["blocks"]
    assert [block["author"] for block in blocks][:2] == ["policy", "environment"]
    assert blocks[1]["text"] == " Louder, please. "
    assert sum(block["count"] for block in blocks) == len(rows[at]["tokens"])
    assert sum(block["count"] for block in blocks if block["author"] == "policy") == rows[at]["n_tokens"]


def test_blocks_say_who_wrote_what() -> None:
    masks = {"sampled": [0, 1, 1, 0, 0, 1], "loss": [1, 1, 1, 0, 0, 1]}
    blocks = find_blocks(masks, list("abcdef"))
    assert [(block["author"], block["start"], block["text"]) for block in blocks] == [
        ("given", 0, "a"),
        ("policy", 1, "bc"),
        ("environment", 3, "de"),
        ("policy", 5, "f"),
    ]
    assert [block["text"] for block in find_blocks(masks, None)] == [None] * 4
    for prefix in (0, 1):
        assert find_blocks({"sampled": [0, 1], "loss": [prefix, 1]}, None) == []


def test_measures_leave_replies_out() -> None:
    said, own = [7] * 40, list(range(20))
    row = {"tokens": [*own[:10], *said, *own[10:]], "logps": [-0.1] * 10 + [0.0] * 40 + [-0.1] * 10}
    mask = [1] * 10 + [0] * 40 + [1] * 10
    alone = measure_answer({"tokens": own, "logps": [-0.1] * 20, "sampled_mask": [1] * 20, "loss_mask": [1] * 20})
    assert measure_answer({**row, "sampled_mask": mask, "loss_mask": mask}) == alone
    assert measure_answer({**row, "sampled_mask": mask, "loss_mask": [1] * 60})["repetition"] > 0.5


def test_debug_generations_shows_the_turns(qed: Callable[..., Any], trained: Path) -> None:
    ask = ("debug-generations", trained, "--problems", 2, "--answers", 4, "--allow-user-code")
    done = qed(*ask, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    several = [row for row in result["answers"] if row["turns"]]
    assert result["mean_turns"] == 1 + len(several) / 8 > 1
    assert all(row["turns"][0]["reply"] == " Louder, please. " for row in several)
    shown = qed(*ask)
    assert "environment:  Louder, please." in shown.out + shown.err
    table = dict(
        line.rsplit(maxsplit=1) for line in shown.out.splitlines() if line.startswith("  ") and "  " in line.strip()
    )
    assert (table["  problems"], table["  groups without signal"]) == ("2", f"{result['groups_without_signal']:.1%}")
