"""Rows given in Python are a task of the call that gives them, read by their columns like the rows of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from datasets import Dataset, DatasetDict

from qed.config.task_names import parse_task
from qed.data import tasks
from qed.data.sources.memory import copy_rows, get_given_rows, give_rows
from qed.data.tools.load import load_data
from qed.errors import DataError, UsageError

ROWS = [{"question": "1+1?", "answer": 2, "level": 3}, {"question": "2+2?", "answer": 4, "level": None}]


@pytest.fixture(autouse=True)
def _give() -> Iterator[None]:
    with give_rows({}):
        yield


def register_rows(name: str, rows: Any) -> str:
    """Give rows until the end of the test."""
    get_given_rows()[name] = copy_rows(name, rows)  # type: ignore[index] -- the dict of the fixture
    return f"memory:{name}"


@pytest.mark.parametrize(
    "build",
    [list, iter, tuple, Dataset.from_list, pandas.DataFrame, pyarrow.Table.from_pylist],
    ids=["list", "iterator", "tuple", "datasets", "pandas", "arrow"],
)
def test_a_table_in_python_is_a_task(build: Callable[[Any], Any]) -> None:
    name = register_rows("sums", build(ROWS))
    assert name == "memory:sums"
    first, second = tasks.load_task(name, "train", {})
    assert [(p.question, p.answer) for p in (first, second)] == [("1+1?", "2"), ("2+2?", "4")]
    assert first.meta["level"] == 3
    assert "level" not in second.meta
    assert first.id.startswith("sums-")
    assert parse_task(name).label == "memory-sums"
    assert not tasks.has_test_split(name)


def test_columns_are_recognised_and_renamed_like_a_files() -> None:
    chat = [{"role": "user", "content": "x?"}, {"role": "assistant", "content": "3"}]
    frame = pandas.DataFrame({"messages": [np.array(chat, dtype=object)]})  # as pandas reads a parquet file
    (problem,) = tasks.load_task(register_rows("chat", frame), "train", {})
    assert (problem.question, problem.meta["completion"]) == ("x?", "3")
    name = register_rows("mine", [{"frage": "x?", "antwort": "3"}])
    assert tasks.load_task(name, "train", {"question": "frage", "answer": "antwort"})[0].answer == "3"
    assert load_data(name, {"question": "frage", "answer": "antwort"}).folder == "memory"


def test_the_rows_are_copied_and_replaced_by_name() -> None:
    rows = [{"question": "x?", "answer": "3"}]
    name = register_rows("x", rows)
    rows[0]["answer"] = "4"
    assert tasks.load_task(name, "train", {})[0].answer == "3"
    register_rows("x", rows)
    assert tasks.load_task(name, "train", {})[0].answer == "4"


def test_what_is_no_table_is_said() -> None:
    with pytest.raises(UsageError, match=r"a DatasetDict of train, test\. Pass one split of it"):
        register_rows("x", DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS)}))
    with pytest.raises(UsageError, match=r"a list of dicts, a datasets\.Dataset or a data frame, not str"):
        register_rows("x", "train.jsonl")
    with pytest.raises(DataError, match="memory:x, row 2: expected a dict of columns, found str"):
        register_rows("x", [ROWS[0], "y"])
    with pytest.raises(DataError, match="memory:x has no rows: the list is empty"):
        register_rows("x", [])
    with pytest.raises(UsageError, match="cannot name rows"):
        register_rows("a b", ROWS)
    register_rows("sums", ROWS)
    with pytest.raises(UsageError, match=r"this call does not have it\. Did you mean 'sums'"):
        tasks.load_task("memory:sum", "train", {})
    with pytest.raises(DataError, match="memory:odd, row 1: the columns are a, b"):
        tasks.load_task(register_rows("odd", [{"a": 1, "b": 2}]), "train", {})
