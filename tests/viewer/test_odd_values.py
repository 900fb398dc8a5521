"""Rows that are JSON, but not what a run writes: every field with every odd value, in every endpoint that reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from serving_views import build_figures, make_run

from qed.errors import QedError
from qed.viewer.app import ENDPOINTS
from qed.viewer.library import Library
from qed.viewer.params import Params
from qed.viewer.replies import encode_reply

ODD: tuple[Any, ...] = (10**400, {"a": {"b": []}})
# The others take a quarter of a minute.
ODDER: tuple[Any, ...] = (
    *(None, [10**400, float("nan")], 5, -1, 1.5, "", "x", [], [1], ["a"], {}, {"a": 1}, True),
    *(float("nan"), float("inf"), -(10**30), "9" * 50, [[1]], "\ud800", "../../x"),
)
TRAINING = {"run": "one", "step": 1}
EVALUATION = {"run": "one", "step": 0, "task": "arithmetic", "decoding": "greedy"}
ANSWER = {
    **{"step": 1, "group_id": "p", "sample_id": 0, "question": "1+1?", "gold": "2", "subject": "s", "level": 1},
    **{"data_source": "d", "prompt": "1+1?", "text": "<think>a</think> $x$ \\boxed{2}", "extracted": "2"},
    **{"reward": 1.0, "parts": {"correct": 1.0}, "correct": True, "format_ok": True, "tier": "exact", "reason": "r"},
    **{"advantage": 0.5, "n_tokens": 2, "tokens": [1, 2], "logps": [-0.5, -0.1], "stop_reason": "end"},
    **{"source": "policy", "given": 0, "sampled_mask": [1, 1], "loss_mask": [1, 1], "version": 0, "decoding": "greedy"},
}
STATS = {
    **{"group": 0, "answer": 0, "learner_logps": [-0.5, -0.1], "entropy": [0.1, 0.2], "updated_logps": [-0.5, -0.2]},
    **{"ref_logps": [-0.5, -0.2], "top": [[[1, -0.1]], [[2, -0.2]]]},
}
FIGURES = {
    **{**build_figures(0.5), "format": 0.5, "reward": 0.1, "mean_tokens": 5.0, "maj": {}, "parts": {"correct": 0.5}},
    **{"classes": {"fmt1_ans1": 0.5}, "pass": {"1": {"value": 0.5}}, "accuracy_by": {"strict": {"value": 0.5}}},
    "by": {"subject": {"s": build_figures(0.5)}},
}
METRICS = {"step": 1, "phase": "grpo", "reward/mean": 0.5, "time/step": 1.0, "eval/arithmetic/greedy/avg@1": 0.5}
EVENT = {"event": "alarm", "time": 1.0, "name": "n", "step": 1, "told": "t", "phase": "grpo"}
SETTINGS = {
    **{"method": "grpo", "learner": {"steps": 3}, "model": {"name": "t"}, "run": {"seed": 1, "watchdog": 9.0}},
    "data": {"tasks": ["arithmetic"]},
}


def vary(usual: Mapping[str, Any], odd: Any, **numbers: str) -> str:
    """A line for each field, in which it is odd; the named fields count the lines where they are not."""
    rows = [{**usual, name: odd} for name in usual]
    for number, row in enumerate(rows):
        row.update({name: text.format(number) for name, text in numbers.items() if row[name] == usual[name]})
    return "".join(json.dumps(row) + "\n" for row in [*rows, usual])


def ask(library: Library, name: str, **params: Any) -> None:
    """An endpoint replies or refuses; what it replies is JSON."""
    with suppress(QedError):
        json.loads(encode_reply(ENDPOINTS[name](library, Params(params))), parse_constant=pytest.fail)


def list_questions(groups: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What pages ask of a run."""
    yield "runs", {}
    yield from ((name, {"run": "one"}) for name in ("run", "metrics", "evaluations", "problems", "suspects"))
    yield "compare", {"a": "one", "b": "two"}
    yield "problem", {"run": "one", "id": "p"}
    yield "evaluation", EVALUATION
    for where in (TRAINING, EVALUATION):
        yield "step", where
        for group in range(groups):
            yield "group", {**where, "group": group}
            yield "answer", {**where, "group": group, "answer": 0}


@pytest.mark.parametrize(
    "odd",
    [*ODD, *(pytest.param(odd, marks=pytest.mark.slow) for odd in ODDER)],
    ids=lambda odd: repr(odd)[:12].replace("/", "|"),
)
def test_odd_values(tmp_path: Path, odd: Any) -> None:
    figures = {"greedy": FIGURES, **{name: {**FIGURES, name: odd} for name in FIGURES}, "odd": odd}
    figures["by"] = {**FIGURES, "by": {"subject": odd, "level": {"1": odd}}}
    files = {
        "rollouts/step_000001.jsonl.zst": vary(ANSWER, odd, group_id="p{}"),
        "rollouts/step_000001.stats.zst": vary(STATS, odd),
        "eval/step_000000/arithmetic.jsonl": vary(ANSWER, odd, group_id="p{}"),
        "eval/step_000000/summary.json": json.dumps({"arithmetic": figures, "odd": odd}),
        "metrics.jsonl": vary(METRICS, odd),
        "events.jsonl": vary(EVENT, odd),
        "settings.yaml": json.dumps({**SETTINGS, "data": {"tasks": odd}, "run": {"seed": odd, "watchdog": odd}}),
        "settings.origin.json": json.dumps({"model.name": odd}),
        "env.json": json.dumps({"python": odd}),
        "heartbeat.json": json.dumps({"time": odd, "idle_s": odd, "step": odd, "stage": odd}),
    }
    usual = json.dumps(ANSWER) + "\n"
    make_run(tmp_path / "runs" / "one", **files)
    make_run(tmp_path / "runs" / "two", **{"eval/step_000000/arithmetic.jsonl": usual})
    for number, name in enumerate(SETTINGS):
        make_run(tmp_path / "runs" / f"z{number}", **{"settings.yaml": json.dumps({**SETTINGS, name: odd})})
    library = Library([tmp_path / "runs"], tmp_path / "cache")
    for name, params in list_questions(len(ANSWER) + 1):
        ask(library, name, **params)
    for number in range(len(SETTINGS)):
        ask(library, "run", run=f"z{number}")
