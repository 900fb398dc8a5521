"""Every schema that data comes in is known by its columns; what is no problem is counted, what is broken is named."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.config import plugins
from qed.config.task_names import parse_task
from qed.data import tasks
from qed.data.selection import has_right_solution
from qed.data.sources.choices import parse_written_options
from qed.data.sources.rows import Place
from qed.data.tasks import base
from qed.data.tasks.base import Benchmark
from qed.errors import DataError, UsageError
from qed.types import Problem

USER, ASSISTANT = {"role": "user", "content": "x?"}, {"role": "assistant", "content": "It is 3."}
SYSTEM = {"role": "system", "content": "Think."}
VERL = {
    "data_source": "math",
    "prompt": [SYSTEM, USER],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "3"},
    "extra_info": {"split": "train", "index": 7},
}
# What `qed generate` adds to a row.
GENERATED = {"row": 1, "sample": 0, "prompt": "x?", "completion": "so 4", "finish_reason": "stop", "n_tokens": 2}


def load(tmp_path: Path, *rows: dict[str, Any], counts: Counter[str] | None = None) -> list[Problem]:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tasks.load_task(str(tmp_path / "data.jsonl"), "train", {}, counts)


# A row, then the question, the answer, the worked solution and the whole demonstration that it gives.
ROWS: list[tuple[str, dict[str, Any], tuple[str, str, str, str]]] = [
    ("TRL messages", {"messages": [SYSTEM, USER, ASSISTANT]}, ("x?", "", "", "It is 3.")),
    ("TRL prompt and completion", {"prompt": "x?", "completion": "It is 3."}, ("x?", "", "", "It is 3.")),
    ("prompt and response", {"prompt": "x?", "response": "It is 3."}, ("x?", "", "", "It is 3.")),
    ("with an answer", {"prompt": "x?", "response": "So.", "answer": "3"}, ("x?", "3", "So.", "")),
    ("TRL conversations", {"prompt": [USER], "completion": [ASSISTANT]}, ("x?", "", "", "It is 3.")),
    ("TRL preference", {"prompt": "x?", "chosen": "3", "rejected": "4"}, ("x?", "", "", "3")),
    ("TRL implicit preference", {"chosen": "Q: x?\nA: 3", "rejected": "Q: x?\nA: 4"}, ("Q: x?\nA:", "", "", "3")),
    (
        "TRL conversational preference",
        {"chosen": [USER, ASSISTANT], "rejected": [USER, {"role": "assistant", "content": "4"}]},
        ("x?", "", "", "It is 3."),
    ),
    ("TRL prompt only", {"prompt": [USER], "tests": ["a"]}, ("x?", "", "", "")),
    ("TRL prompt with a result", {"prompt": "x?", "solution": "$3$"}, ("x?", "$3$", "", "")),
    ("prime-rl", {"messages": [USER, ASSISTANT], "prompt": "y", "completion": "z"}, ("x?", "", "", "It is 3.")),
    ("messages and an answer", {"messages": [USER, ASSISTANT], "answer": "3"}, ("x?", "3", "", "It is 3.")),
    ("a question and an answer", {"messages": [SYSTEM, USER], "ground_truth": 3.0}, ("x?", "3", "", "")),
    ("ShareGPT and an answer", {"conversations": [USER], "expected_answer": ["3"]}, ("x?", "3", "", "")),
    ("Alpaca and an answer", {"instruction": "x?", "output": "So.", "answer": "3"}, ("x?", "3", "", "So.")),
    ("messages and a dict", {"messages": [USER, ASSISTANT], "answer": {"a": [3]}}, ("x?", "", "", "It is 3.")),
    ("Alpaca and a flag", {"instruction": "x?", "output": "So.", "answer": True}, ("x?", "", "", "So.")),
    ("GSM8K", {"question": "x?", "answer": "So.\n#### 1,003"}, ("x?", "1003", "So.", "")),
    ("MATH", {"problem": "x?", "solution": r"It is \boxed{3}.", "type": "A"}, ("x?", "3", r"It is \boxed{3}.", "")),
    ("MATH-500", {"problem": "x?", "solution": "So.", "answer": "3", "unique_id": "a"}, ("x?", "3", "So.", "")),
    ("Olympiad", {"question": "x?", "solution": ["So."], "final_answer": ["$3$"]}, ("x?", "$3$", "So.", "")),
    ("DeepMath", {"question": "x?", "final_answer": "3", "r1_solution_1": "<think>a"}, ("x?", "3", "", "<think>a")),
    (
        "OpenR1",
        {
            "problem": "x?",
            "answer": "3",
            "generations": ["no", "yes"],
            "correctness_math_verify": [False, True],
            "is_reasoning_complete": [True, True],
            "messages": [USER, ASSISTANT],
        },
        ("x?", "3", "", "yes"),
    ),
    ("verl", VERL, ("x?", "3", "", "")),
    ("LUFFY", {**VERL, "target": [{"role": "assistant", "content": "<think>\nb"}]}, ("x?", "3", "", "<think>\nb")),
    ("LUFFY without a trace", {**VERL, "target": None}, ("x?", "3", "", "")),
    (
        "ShareGPT",
        {"conversations": [{"from": "human", "value": "x?"}, {"from": "gpt", "value": "3"}]},
        ("x?", "", "", "3"),
    ),
    ("Alpaca", {"instruction": "Add.", "input": "1 and 2", "output": "3"}, ("Add.\n\n1 and 2", "", "", "3")),
    ("Alpaca without input", {"instruction": "Add.", "input": "", "output": "3"}, ("Add.", "", "", "3")),
    (
        "MMLU",
        {"question": "x?", "choices": ["a", "b"], "answer": 1, "subject": "law"},
        ("x?\n\nA) a\nB) b", "B", "", ""),
    ),
    ("MMLU by letter", {"question": "x?", "options": ["a", "b"], "answer": "A"}, ("x?\n\nA) a\nB) b", "A", "", "")),
    ("SVAMP", {"Body": "A has 2.", "Question": "x?", "Answer": 2.0}, ("A has 2. x?", "2", "", "")),
    *(
        (f"generated answer to {name}", {**row, **GENERATED}, expected)
        for name, row, expected in (
            ("GSM8K", {"question": "x?", "answer": "gold\n#### 3"}, ("x?", "3", "", "so 4")),
            ("MATH", {"problem": "x?", "solution": "\\boxed{3}"}, ("x?", "3", "", "so 4")),
            ("verl", {**VERL}, ("x?", "3", "", "so 4")),
            ("Alpaca", {"instruction": "x?", "output": "gold"}, ("x?", "", "", "so 4")),
            ("MATH with the same text", {"problem": "x?", "solution": "so 4, \\boxed{3}"}, ("x?", "3", "", "so 4")),
            ("another column", {"question": "other?", "answer": "3"}, ("x?", "3", "", "so 4")),
            ("a question alone", {"question": "x?"}, ("x?", "", "", "so 4")),
            ("a prompt alone", {}, ("x?", "", "", "so 4")),
        )
    ),
]


@pytest.mark.parametrize(("row", "expected"), [case[1:] for case in ROWS], ids=[case[0] for case in ROWS])
def test_a_schema_is_known_by_its_columns(tmp_path: Path, row: dict[str, Any], expected: tuple[str, ...]) -> None:
    (problem,) = load(tmp_path, row)
    completion = problem.meta.get("completion", "")
    assert (problem.question, problem.answer, problem.solution, completion) == expected


@pytest.mark.parametrize(("name", "row", "expected"), ROWS, ids=[case[0] for case in ROWS])
def test_capitals_do_not_hide_a_schema(
    tmp_path: Path, name: str, row: dict[str, Any], expected: tuple[str, ...]
) -> None:
    if name.startswith("generated"):
        return  # what qed writes itself has its own spelling
    (problem,) = load(tmp_path, {column.title(): value for column, value in row.items()})
    completion = problem.meta.get("completion", "")
    assert (problem.question, problem.answer, problem.solution, completion) == expected


@pytest.mark.parametrize(
    ("options", "answer", "letter"),
    [
        (["1", "2", "3", "4"], 2, "C"),  # a number counts from 0
        (["1", "2", "3", "4"], "C", "C"),
        (["1", "2", "3", "4"], "4", "D"),
        (["1", "0"], 1, "B"),
        (["Rome", " Paris "], "Paris", "B"),
        (["10", "20", "30"], "30", "C"),
        ([10, 20, 30], 30, "C"),
        ([10, 20, 30], 2, "C"),
        ([1, 2, 3, 4], 3, "D"),
        ([0.5, 1.5], "1.5", "B"),
        (["B", "A"], "A", "A"),  # a letter is a label first, as in published benchmarks
        ({"text": ["x", "y"], "label": ["1", "2"]}, "2", "B"),
        ({"text": ["x", "y"], "label": ["1", "2"]}, "y", "B"),
    ],
)
def test_an_option_is_named_by_letter_number_label_or_text(
    tmp_path: Path, options: Any, answer: Any, letter: str
) -> None:
    (problem,) = load(tmp_path, {"question": "x?", "choices": options, "answer": answer})
    assert problem.answer == letter


@pytest.mark.parametrize(
    ("options", "answer", "words"),
    [
        (["1", "2", "3", "4"], "3", "may mean option C or D"),
        (["Paris", "Paris"], "Paris", "may mean option A or B"),
        (["10", "20"], "1", "'1' is none of the 2 options"),
        (["", "20"], "", "'' is none of the 2 options"),
        (["10", "20"], None, "NoneType"),
        (["10", "20"], True, "bool"),
    ],
)
def test_an_answer_that_may_mean_two_options_is_refused(
    tmp_path: Path, options: list[Any], answer: Any, words: str
) -> None:
    with pytest.raises(DataError, match="row 1.*" + words):
        load(tmp_path, {"question": "x?", "options": options, "answer": answer})


def test_what_else_a_row_says_is_kept(tmp_path: Path) -> None:
    """Under one name where the datasets have many; unknown columns as they are, for a user's own reward."""
    (problem,) = load(tmp_path, {**VERL, "level": "Level 5", "tests": ["a"]})
    assert problem.meta == {
        "source": "math",
        "ability": "math",
        "extra_info": {"split": "train", "index": 7},
        "level": 5,
        "tests": ["a"],
    }
    (problem,) = load(tmp_path, {"prompt": "x?", "chosen": "3", "rejected": "4"})
    assert (problem.meta["chosen"], problem.meta["rejected"]) == ("3", "4")


def test_luffys_several_traces_and_their_probabilities_arrive(tmp_path: Path) -> None:
    """The probabilities are those of `target`, so without it they mean nothing."""
    columns = {"target_lst": list("abcdefg"), "target_ds_qwen_7b_probs": [0.5, 1, -1.0]}
    (problem,) = load(tmp_path, {**VERL, **columns, "target": [{"role": "assistant", "content": "a"}]})
    assert problem.meta["completion"] == "a"
    assert problem.meta["traces"] == list("abcdefg")
    assert problem.meta["trace_probabilities"] == [0.5, 1.0, -1.0]
    (problem,) = load(tmp_path, {**VERL, **columns})
    assert problem.meta["completion"] == "a"
    assert "trace_probabilities" not in problem.meta


@pytest.mark.parametrize("trace", ["b", {"role": "assistant", "content": "b"}, [USER, {**ASSISTANT, "content": "b"}]])
def test_luffys_traces_are_read_as_its_target(tmp_path: Path, trace: object) -> None:
    (problem,) = load(tmp_path, {**VERL, "target": "a", "target_lst": [trace, None, ""]})
    assert (problem.meta["completion"], problem.meta["traces"]) == ("a", ["b"])


def test_messages_of_two_sides_are_one_of_luffys_traces(tmp_path: Path) -> None:
    (problem,) = load(tmp_path, {**VERL, "target_lst": [USER, {**ASSISTANT, "content": "b"}]})
    assert problem.meta["traces"] == ["b"]
    replies = [{**ASSISTANT, "content": "b"}, {**ASSISTANT, "content": "c"}]
    (problem,) = load(tmp_path, {**VERL, "target_lst": replies})
    assert problem.meta["traces"] == ["b", "c"]


def test_a_parquet_of_pandas_has_lists_again(tmp_path: Path) -> None:
    """verl writes its messages as arrays of objects."""
    frame = pandas.DataFrame([{**VERL, "prompt": np.array([SYSTEM, USER], dtype=object)}], index=[5])
    frame.to_parquet(tmp_path / "verl.parquet")
    (problem,) = tasks.load_task(str(tmp_path / "verl.parquet"), "train", {})
    assert (problem.question, problem.answer, problem.meta["extra_info"]["index"]) == ("x?", "3", 7)
    assert "__index_level_0__" not in problem.meta


def test_conversations_that_are_no_problem_are_counted(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    load(
        tmp_path,
        {"messages": [USER, ASSISTANT]},
        {"messages": [USER, ASSISTANT, USER, ASSISTANT]},
        {"messages": [USER]},
        {"messages": [USER], "answer": " "},
        {"messages": [USER, ASSISTANT, USER], "answer": "3"},
        {"prompt": [USER, ASSISTANT, USER], "completion": "3"},
        counts=counts,
    )
    assert counts == {
        "conversations that are not one question and one answer": 4,
        "conversations that do not ask one question": 1,
    }


def test_generated_answers_that_were_cut_off_are_not_imitated(tmp_path: Path) -> None:
    """Their problems stay: they are hard ones."""
    row = {"question": "x?", "answer": "gold\n#### 3", **GENERATED}
    whole, cut = load(tmp_path, row, {**row, "finish_reason": "length"})
    assert (whole.meta["completion"], whole.answer) == ("so 4", "3")
    assert (cut.question, cut.answer, cut.solution, cut.meta.get("completion")) == ("x?", "3", "", None)
    assert len(load(tmp_path, row, {**row, "is_correct": False}, counts=Counter())) == 1


def test_a_generated_answer_that_is_wrong_stays_wrong(tmp_path: Path) -> None:
    for text, is_right in (("So \\boxed{5}.", False), ("So \\boxed{3}.", True)):
        (problem,) = load(tmp_path, {"question": "x?", "answer": "3", **GENERATED, "completion": text})
        assert problem.meta["completion"] == text
        assert has_right_solution(problem) == is_right


BENCHMARKS = [
    module.BENCHMARK
    for module in (plugins.load_leaf("tasks", leaf) for leaf in plugins.list_leaves("tasks"))
    if hasattr(module, "BENCHMARK")
]
COLUMNS = st.sampled_from(
    re.split(
        r",\s*",
        """question, problem, prompt, answer, final_answer, expected_answer, solution, completion, generated_solution,
        messages, conversations, chosen, rejected, choices, options, answerKey, A, B, C, D, instruction, input, output,
        reward_model, target, data_source, body, context, Body, Question, Answer, generations, correctness_math_verify,
        is_reasoning_complete, level, type, Numbers, text, Correct Answer, Incorrect Answer 1, Incorrect Answer 2,
        Incorrect Answer 3, Possible Answers""",
    )
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["A", "x?"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "label", "ground_truth"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(row=st.dictionaries(COLUMNS, VALUES, max_size=7), benchmark=st.sampled_from(BENCHMARKS))
def test_no_row_ends_in_a_traceback(row: dict[str, Any], benchmark: Benchmark) -> None:
    """Whatever stands in the columns that are known: a problem, a counted reason, or an error that names the row."""
    for prepare in (dict, benchmark._adapt_row):
        try:
            problems = base.build_problems(iter([(Place("data", 1), row)]), "data", {}, Counter(), prepare)
        except DataError as error:
            named = str(error)
            assert named.startswith("data, row 1")
        else:
            assert all(isinstance(problem.question, str) and problem.question for problem in problems)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "A long text."}, ["row 1", "plain text", "prompt and completion"]),
        ({"frage": "x?", "antwort": "3"}, ["row 1", "frage, antwort", "question, problem, prompt", "--data.map"]),
        ({"questions": "x?", "answer": "3"}, ["--data.map question=questions"]),
        ({"question": "x?", "choices": ["a", "b"], "answer": 2}, ["row 1", "none of the 2 options"]),
        ({"prompt": "x?", "chosen": "3"}, ["row 1", "column chosen but none rejected", "prompt, chosen"]),
        ({"messages": [{"role": "user"}]}, ["row 1", "no role or no content"]),
        ({**VERL, "prompt": "x?", "target": [{"role": "assistant", "content": 3.5}], "reward_model": 3}, []),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, row: dict[str, Any], words: list[str]) -> None:
    if not words:
        assert load(tmp_path, row), "a column that is not what its name says leaves the row to the next schema"
        return
    with pytest.raises(DataError) as caught:
        load(tmp_path, row)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_columns_are_renamed(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"frage": "x?", "answer": "3", "thema": "A"}))
    (problem,) = tasks.load_task(str(tmp_path / "data.jsonl"), "train", {"question": "frage", "subject": "thema"})
    assert (problem.question, problem.answer, dict(problem.meta)) == ("x?", "3", {"subject": "A"})
    (tmp_path / "chat.jsonl").write_text(json.dumps({"chat": [USER, ASSISTANT], "ziel": "3"}))
    (problem,) = tasks.load_task(str(tmp_path / "chat.jsonl"), "train", {"messages": "chat", "answer": "ziel"})
    assert (problem.answer, dict(problem.meta)) == ("3", {"completion": "It is 3.", "adapt": True})
    with pytest.raises(DataError, match="names wo, but the columns are frage"):
        tasks.load_task(str(tmp_path / "data.jsonl"), "train", {"question": "wo"})
    with pytest.raises(UsageError, match="names qestion"):
        tasks.load_task(str(tmp_path / "data.jsonl"), "train", {"qestion": "frage"})


def test_folders_of_files(tmp_path: Path) -> None:
    """The files of a split by their name or their folder, all of them where neither says anything."""
    for name in ("train_1", "train_2", "test"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": f"{name}?", "answer": "1"}))
    assert [p.question for p in tasks.load_task(f"{tmp_path}", "train", {})] == ["train_1?", "train_2?"]
    assert [p.question for p in tasks.load_task(f"files:test@{tmp_path}", "train", {})] == ["test?"]
    assert len(tasks.load_task(f"files:other@{tmp_path}", "train", {})) == 3
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "anatomy_dev.csv").write_text("Where?,a,b,c,d,D\n")
    (problem,) = tasks.load_task(f"mmlu:dev@{tmp_path}", "test", {})
    assert (problem.answer, problem.meta["subject"]) == ("D", "anatomy")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Which?\n\nA) a b\nB) c", ("AB", ("a b", "c"))),
        ("Which? A) 1 B) 2 C) 3 D) 4", ("ABCD", ("1", "2", "3", "4"))),
        ("Which?\n1) a\n2) b", ("12", ("a", "b"))),
        ("Plan A) is it. Which?\nA) a\nB) b\nC) c", ("ABC", ("a", "b", "c"))),
        ("No options at all.", None),
        ("Only A) one", None),
        ("A) a C) c", None),
    ],
)
def test_options_in_a_text(text: str, expected: tuple[str, tuple[str, ...]] | None) -> None:
    found = parse_written_options(text)
    assert found == ({"options": expected[0], "choices": expected[1]} if expected else {})


def test_a_label_tells_files_apart() -> None:
    assert parse_task("a/valid.all.parquet").label == "valid.all"
    assert parse_task("a/valid.parquet").label == "valid"
    assert parse_task("a/train.jsonl.gz").label == "train"
