"""Files of answers and tokenizers that lie about what they are: they neither block, lead out, nor fill the memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard
from asking_views import Asked
from serving_views import build_figures, make_run

from qed.errors import DataError
from qed.runs import step_file, step_index
from qed.runs.step_index import build_index, name_index, read_index, write_index
from qed.viewer import details
from qed.viewer.app import ENDPOINTS
from qed.viewer.params import Refused

ROW = {"step": 1, "group_id": "p", "question": "1+1?", "gold": "2", "prompt": "1+1?", "text": "2", "tokens": [0, 0]}
DATA = "rollouts/step_000001.jsonl.zst"


def make_step(folder: Path, **files: str) -> tuple[Asked, Path]:
    """A run with a step of one answer, and its file."""
    run = make_run(folder / "runs" / "one", **{DATA: json.dumps(ROW) + "\n", **files})
    return Asked(run.parent, cache=folder / "cache"), run / DATA


def ask_group(ask: Asked) -> dict[str, Any]:
    return ask("group", run="one", step=1, group=0)


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_an_index_that_is_no_file_is_built_anew(tmp_path: Path, kind: str) -> None:
    """A FIFO without a writer would keep its reader for ever, and a link may lead to the index of another run."""
    ask, data = make_step(tmp_path)
    if kind == "fifo":
        os.mkfifo(name_index(data))
    else:
        index = build_index(data)
        index.groups[0]["question"] = "of another folder"
        write_index(tmp_path / "other.index.zst", index)
        name_index(data).symlink_to(tmp_path / "other.index.zst")
    assert ask("step", run="one", step=1)["groups"][0]["question"] == "1+1?"
    assert [problem["question"] for problem in ask("problems", run="one")["problems"]] == ["1+1?"]


@pytest.mark.parametrize("name", ["offset", "skip", "size", "length", "n"])
@pytest.mark.parametrize("value", [1 << 40, 1 << 62, 1 << 64, 10**400])
def test_an_index_that_lies_about_places(tmp_path: Path, name: str, value: int) -> None:
    ask, data = make_step(tmp_path)
    index = build_index(data)
    index.groups[0][name] = value
    write_index(name_index(data), index)
    if read_index(name_index(data), data) is None:  # so that the viewer builds its own
        assert ask_group(ask)["answers"][0]["text"] == "2"
    else:
        with pytest.raises(Refused, match="group 0"):
            ask_group(ask)


def test_small_files_that_expand_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lines, which are counted, and of the values of one line, which take far more memory than its bytes."""
    data = tmp_path / "x.jsonl.zst"
    data.write_bytes(zstandard.compress(b"\n" * (step_index.MAX_LINES + 1)))
    with pytest.raises(DataError, match="more than 1,048,576 lines"):
        build_index(data)
    monkeypatch.setattr(step_file, "MAX_VALUES", 1_000)
    data.write_bytes(zstandard.compress(b'{"tokens": [' + b"[]," * 999 + b"[]]}\n"))
    with pytest.raises(DataError, match="more than 1,000 values"):
        build_index(data)


def test_the_last_events_alone_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the file and its lines are."""
    monkeypatch.setattr(details, "LAST_BYTES", 1_000)
    events = [{"event": "x", "step": step, "text": "y" * 300} for step in range(9)]
    ask, _ = make_step(tmp_path, **{"events.jsonl": "".join(json.dumps(event) + "\n" for event in events)})
    assert [event["step"] for event in ask("run", run="one")["events"]] == [7, 8]


def test_a_secret_in_any_text_is_shown_nowhere(tmp_path: Path) -> None:
    """Somebody's prompt, or the failure of a run, may have held a key."""
    key = "hf_" + "a" * 30
    texts = dict.fromkeys(("question", "gold", "prompt", "text", "extracted", "reason", "tier"), f"my key {key}")
    rows = [
        {
            **texts,
            "group_id": "p",
            "tokens": [0],
            "decoding": "greedy",
            "source": source,
            "correct": right,
            "reward": 1.0,
            "format_ok": True,
        }
        for source, right in (("policy", False), ("demonstration", True))
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    later = content.replace("false", "true")
    events = [{"event": "alarm", "step": 1, "name": key, "told": key}, {"event": "failed", "reason": key, "time": 1.0}]
    files = {
        "settings.yaml": f"method: {key}\nmodel: {{name: https://user:{key}@host/x}}\n",
        "events.jsonl": "".join(json.dumps(event) + "\n" for event in events),
        "logs/attempt_1/main.log": f"token {key}\n",
        "eval/step_000000/own.jsonl": content,
        "eval/step_000003/own.jsonl": later,
        **{
            f"eval/step_00000{step}/summary.json": json.dumps({"own": {"greedy": build_figures(0.5)}})
            for step in (0, 3)
        },
    }
    ask, _ = make_step(tmp_path, **{DATA: content, **files})
    own = {
        "step": 1,
        "group": 0,
        "answer": 0,
        "attempt": 1,
        "name": "main.log",
        "id": "p",
        "q": "my",
        "a": "one",
        "b": "one",
    }
    asked = {name: {"run": "one", **own} for name in ENDPOINTS}
    asked["evaluation"] |= {"step": 0, "task": "own", "decoding": "greedy"}
    replies = {name: json.dumps(ask(name, **params)) for name, params in asked.items()}
    assert not [name for name, reply in replies.items() if key in reply]
    assert [name for name, reply in replies.items() if "REDACTED" in reply] == [
        *("runs", "run", "log", "step", "group", "answer", "explain", "search", "problems", "problem", "compare"),
        "suspects",
    ]
