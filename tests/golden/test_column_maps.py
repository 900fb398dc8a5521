"""Columns are renamed for every file by itself, and any column may be named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qed.config.resolve import resolve_settings
from qed.config.sampling_settings import EvaluationSettings
from qed.config.settings import DataSettings
from qed.config.task_names import parse_task
from qed.data import tasks
from qed.data.splits import choose_columns, load_problems
from qed.data.tools.validate import validate_file
from qed.errors import DataError, UsageError

ODD = [{"frage": f"{n}+1?", "antwort": str(n + 1), "info": {"weg": {"lang": f"{n}+1={n + 1}"}}} for n in range(4)]
USUAL = [{"question": f"{n}+2?", "answer": str(n + 2)} for n in range(3)]
MAP = ("question=frage", "answer=antwort")


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_file_names_its_own_columns(tmp_path: Path) -> None:
    odd, usual = write(tmp_path / "odd.jsonl", ODD), write(tmp_path / "usual.jsonl", USUAL)
    name = f"{odd}?question=frage&answer=antwort&solution=info.weg.lang"
    assert parse_task(name).label == "odd"
    for data in (DataSettings((name,)), DataSettings((name,), map=("question=wrong",))):
        loaded = load_problems(data, EvaluationSettings(tasks=(usual,)), 0)
        assert [(p.question, p.answer, p.solution) for p in loaded.problems] == [
            (f"{n}+1?", str(n + 1), f"{n}+1={n + 1}") for n in range(4)
        ]
        assert len(loaded.benchmarks["usual"]) == 3
    evaluated = load_problems(DataSettings((usual,)), EvaluationSettings(tasks=(name,)), 0)
    assert len(evaluated.benchmarks["odd"]) == 4


def test_a_map_for_training_leaves_another_evaluation_file_alone(tmp_path: Path) -> None:
    odd, usual = write(tmp_path / "odd.jsonl", ODD), write(tmp_path / "usual.jsonl", USUAL)
    again = write(tmp_path / "again.jsonl", ODD[2:])
    loaded = load_problems(DataSettings((odd,), map=MAP), EvaluationSettings(tasks=(usual, again)), 0)
    assert [len(problems) for problems in loaded.benchmarks.values()] == [3, 2]
    assert len(loaded.problems) == 2
    with pytest.raises(DataError, match=r"data\.map names wo, but the columns are frage"):
        load_problems(DataSettings((odd,), map=("question=wo",)), EvaluationSettings(tasks=(usual,)), 0)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (("question=a", "question=b"), r"data\.map names question twice: question=a and question=b"),
        (("x.jsonl?question=a", "x.jsonl?answer=b"), r"data\.map has two entries for x; join them"),
        (("x.jsonl?question=a&question=b",), "names a column twice after the question mark"),
    ],
)
def test_a_name_given_twice_is_refused(entries: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_columns(entries, "x.jsonl")


@pytest.mark.parametrize(
    ("entries", "column"),
    [
        (("question=a", "question=a"), "a"),
        (("x.jsonl?question=a", "x.jsonl?question=a&question=a"), "a"),
        (("old/x.jsonl?question=a", "x.jsonl?question=b"), "b"),  # two files, with one label
        (("old/x.jsonl?question=a", "new/x.jsonl?question=a"), "a"),
    ],
)
def test_what_is_given_twice_without_a_contradiction_is_read(entries: tuple[str, ...], column: str) -> None:
    assert choose_columns(entries, "x.jsonl") == {"question": column}


def test_a_mapping_by_task_in_yaml(tmp_path: Path) -> None:
    odd, usual = write(tmp_path / "odd & co.jsonl", ODD), write(tmp_path / "usual.jsonl", USUAL)
    file = tmp_path / "run.yaml"
    shown = json.dumps(odd)
    file.write_text(f"data:\n  tasks: [{shown}]\n  map:\n    {shown}: {{question: frage, answer: antwort}}\n")
    data: Any = resolve_settings("grpo", [str(file)]).settings.data  # type: ignore[union-attr]
    assert choose_columns(data.map, odd) == {"question": "frage", "answer": "antwort"}
    assert choose_columns(data.map, usual) == {}
    assert len(load_problems(data, EvaluationSettings(tasks=(usual,)), 0).problems) == 4
    file.write_text(f"data:\n  tasks: [{shown}]\n  map: {{question: frage, answer: antwort}}\n")
    assert resolve_settings("grpo", [str(file)]).settings.data.map == MAP  # type: ignore[union-attr]


def test_a_question_mark_in_a_files_name_stays(tmp_path: Path) -> None:
    name = write(tmp_path / "what? a=b.jsonl", USUAL)
    assert parse_task(name).path == name
    assert len(tasks.load_task(name, "train", {})) == 3


@pytest.mark.parametrize("query", ["question", "question=", "=frage", ""])
def test_a_query_that_says_nothing_is_refused(query: str) -> None:
    with pytest.raises(UsageError, match="question=frage&answer=antwort"):
        parse_task(f"x.jsonl?{query}")


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ({"messages": "talk"}, {"talk": [{"role": "user", "content": "x?"}, {"role": "assistant", "content": "3"}]}),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, {"p": "x?", "a": "3", "b": "4"}),
        ({"problem": "p", "generated_solution": "r"}, {"p": "x?", "r": "3"}),
        ({"instruction": "p", "output": "r", "tests": "t"}, {"p": "x?", "r": "3", "t": ["a"]}),
    ],
)
def test_any_column_may_be_named(tmp_path: Path, columns: dict[str, str], row: dict[str, Any]) -> None:
    (problem,) = tasks.load_task(write(tmp_path / "x.jsonl", [row]), "train", columns)
    assert (problem.question, problem.meta["completion"]) == ("x?", "3")
    assert problem.meta.get("tests") == row.get("t")


def test_validate_takes_the_columns_too(tmp_path: Path) -> None:
    odd = write(tmp_path / "odd.jsonl", ODD)
    assert not validate_file(Path(f"{odd}?question=frage&answer=antwort"), {}).errors
    assert len(validate_file(Path(odd), {}).errors) == 4
