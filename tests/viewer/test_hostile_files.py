"""Files of answers and tokenizers that lie about what they are: they neither block, lead out, nor fill the memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard
from asking_views import Asked
from serving_views import make_run

from qed.errors import DataError
from qed.runs import step_file, step_index
from qed.runs.step_index import build_index, name_index, read_index, write_index
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
