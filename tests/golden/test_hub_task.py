"""Any data set of the hub is a task by its name, recognised by its columns like a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset

from qed.config.task_names import parse_task
from qed.data import tasks
from qed.data.tasks import hub
from qed.data.tools.load import load_data
from qed.data.tools.prepare import BY_COLUMNS, _describe_origin, _name_task
from qed.errors import DataError, UsageError

ROWS = [{"prompt": "x?", "completion": "It is 3.", "label": True}, {"prompt": "y?", "completion": "4", "label": False}]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stand in for the hub, and return what it was asked for."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None = None, **how: Any) -> Dataset:
        calls.append((name, config, how["split"], how["revision"]))
        if name == "openai/gsm8k" and config is None:
            raise ValueError("Config name is missing.\nPlease pick one among the available configs: ['main']")
        return Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)
    return calls


@pytest.mark.parametrize(
    ("name", "expected", "label"),
    [
        ("hub:trl-lib/kto-mix-14k", ("trl-lib/kto-mix-14k", None, "train", "main"), "kto-mix-14k"),
        ("hub:trl-lib/kto-mix-14k:test", ("trl-lib/kto-mix-14k", None, "test", "main"), "kto-mix-14k"),
        ("hub:a/b/c:dev+test", ("a/b", "c", "dev+test", "main"), "b-c-dev+test"),
        ("hub:old_name:train", ("old_name", None, "train", "main"), "old_name-train"),
        ("hub:pinned/one", ("pinned/one", None, "train", "abc"), "one"),
        ("hub:pinned/one/main", ("pinned/one", "main", "train", "abc"), "one-main"),
    ],
)
def test_a_data_set_is_a_task(asked: list[tuple[Any, ...]], name: str, expected: Any, label: str) -> None:
    (problem,) = tasks.load_task(name, "train", {}, revisions={"pinned/one": "abc"})
    assert asked == [expected]
    assert problem.meta["completion"] == "It is 3."
    assert parse_task(name).label == label
    assert not tasks.has_test_split(name)


def test_columns_are_renamed_and_rows_counted(asked: list[tuple[Any, ...]]) -> None:
    data = load_data("hub:a/b", {"question": "prompt", "answer": "completion"})
    assert (data.problems[0].question, data.problems[0].answer) == ("x?", "It is 3.")
    assert (data.folder, data.trains, data.split) == ("b", True, "train")
    assert not load_data("hub:a/b:test", {}).trains
    assert data.left_out == {"replies that label calls bad (False)": 1}


def test_a_local_copy_is_read(tmp_path: Path) -> None:
    Dataset.from_list(ROWS).to_json(str(tmp_path / "train.jsonl"))
    (tmp_path / "other.jsonl").write_text('{"prompt": "z?", "completion": "5"}\n')
    (problem,) = tasks.load_task(f"hub:a/b:train@{tmp_path}", "test", {})
    assert problem.question == "x?"
    (problem,) = tasks.load_task(f"hub:a/b@{tmp_path / 'other.jsonl'}", "train", {})
    assert problem.question == "z?"


def test_a_snapshot_of_it_is_read_as_files(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    data = load_data("hub:a/b/c", {})
    assert BY_COLUMNS == ("files", "hub", "memory")
    assert _name_task(data, "train", tmp_path) == f"files:train@{tmp_path / 'b-c'}"
    assert _describe_origin(data, {"a/b": "abc"}) == {"source": "hub:a/b/c", "revision": "abc"}


def test_mistakes_are_said(asked: list[tuple[Any, ...]]) -> None:
    with pytest.raises(DataError, match=r"missing\. Please pick one among the available configs: \['main'\]"):
        tasks.load_task("hub:openai/gsm8k", "train", {})
    with pytest.raises(UsageError, match=f"needs the name of a dataset, for example --tasks {hub.EXAMPLE}"):
        tasks.load_task("hub", "train", {})
    with pytest.raises(UsageError, match="needs the name of a dataset"):
        tasks.load_task("hub:", "train", {})


def test_luffys_sets_are_splits() -> None:
    names = {split: place.name for split, place in tasks.plugins.load_leaf("tasks", "openr1").BENCHMARK.splits.items()}
    assert names["luffy"] == "Elliott/Openr1-Math-46k-8192"
    assert names["complement"] == "Elliott/Openr1-Math-48k-Complement"
