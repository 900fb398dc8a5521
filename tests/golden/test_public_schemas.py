"""Rows of public data sets and of other programs' formats, in their real shape, and replies that are never imitated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from qed.data import tasks
from qed.data.prompts.base import find_demonstration, load_leaf
from qed.data.sources.rows import Place
from qed.data.tasks.base import build_problems
from qed.data.tools.validate import validate_file
from qed.errors import DataError
from qed.types import Problem

Row = dict[str, Any]
USER, GOOD = {"role": "user", "content": "Name a prime."}, {"role": "assistant", "content": "Two is."}
BAD = {"role": "assistant", "content": "Nine is."}
SYSTEM = {"role": "system", "content": "You are helpful."}
HUMAN, GPT = {"from": "human", "value": "Name a prime."}, {"from": "gpt", "value": "Two is."}


def read(*rows: Row, counts: Counter[str] | None = None) -> list[Problem]:
    numbered = ((Place("data.jsonl", number), row) for number, row in enumerate(rows, 1))
    return build_problems(numbered, "x", {}, counts if counts is not None else Counter())


# The question and the demonstration of each are "Name a prime." and "Two is.".
DEMONSTRATIONS: dict[str, Row] = {
    "LLaMA-Factory alpaca": {
        "instruction": "Name a prime.",
        "input": "",
        "output": "Two is.",
        "system": "You are helpful.",
        "history": [],
    },
    "LLaMA-Factory alpaca, split": {"instruction": "Name", "input": "a prime.", "output": "Two is.", "history": None},
    "LLaMA-Factory sharegpt": {"conversations": [HUMAN, GPT], "system": "You are helpful.", "tools": "[]"},
    "LLaMA-Factory openai": {"messages": [SYSTEM, USER, GOOD]},
    "LLaMA-Factory KTO": {"instruction": "Name a prime.", "input": "", "output": "Two is.", "kto_tag": True},
    "LLaMA-Factory KTO, messages": {"messages": [USER, GOOD], "label": True},
    "axolotl chat_template": {"messages": [{**USER, "content": [{"type": "text", "text": "Name a prime."}]}, GOOD]},
    "axolotl input_output": {
        "segments": [
            {"label": False, "text": "Name "},
            {"label": False, "text": "a prime."},
            {"label": True, "text": "Two "},
            {"label": True, "text": "is."},
        ]
    },
    "axolotl gpteacher": {"instruction": "Name a prime.", "input": "", "response": "Two is."},
    "OpenRLHF input and output": {"input": "Name a prime.", "output": "Two is."},
    "Llama-Nemotron post-training": {"input": [USER], "output": "Two is.", "category": "math", "reasoning": "off"},
    "OpenOrca": {"id": "flan.1", "system_prompt": "", "question": "Name a prime.", "response": "Two is."},
    "MetaMathQA": {"type": "GSM_AnsAug", "query": "Name a prime.", "original_question": "…", "response": "Two is."},
    "Dolly": {"instruction": "Name a prime.", "context": "", "response": "Two is.", "category": "open_qa"},
    "open-r1 Mixture-of-Thoughts": {"messages": [USER, GOOD], "num_tokens": 7, "source": "math"},
    "OpenThoughts": {"system": "Think.", "conversations": [{"from": "user", "value": "Name a prime."}, GPT]},
    "TRL KTO": {"prompt": "Name a prime.", "completion": "Two is.", "label": True},
    "TRL KTO, messages": {"prompt": [USER], "completion": [GOOD], "label": 1},
    "TRL conversations with parts": {
        "prompt": [
            {"role": "user", "content": [{"type": "text", "text": "Name "}, {"type": "text", "text": "a prime."}]}
        ],
        "completion": [{"role": "assistant", "content": [{"type": "text", "text": "Two is."}]}],
    },
}


@pytest.mark.parametrize("name", DEMONSTRATIONS)
def test_a_demonstration_is_found(name: str) -> None:
    (problem,) = read(DEMONSTRATIONS[name])
    assert problem.question.split() == ["Name", "a", "prime."]
    assert problem.meta["completion"] == "Two is."


# Their question ends in "Name a prime." and their replies are "Two is." and "Nine is.".
PREFERENCES: dict[str, Row] = {
    "UltraFeedback binarized": {
        "prompt": "Name a prime.",
        "prompt_id": "0f",
        "chosen": [USER, GOOD],
        "rejected": [USER, BAD],
        "messages": [USER, GOOD],
        "score_chosen": 8.5,
        "score_rejected": 3.0,
    },
    "argilla UltraFeedback": {
        "source": "evol",
        "instruction": "Name a prime.",
        "chosen_response": "Two is.",
        "rejected_response": "Nine is.",
    },
    "Intel orca_dpo_pairs": {"system": "", "question": "Name a prime.", "chosen": "Two is.", "rejected": "Nine is."},
    "distilabel orca": {
        "system": "",
        "input": "Name a prime.",
        "chosen": "Two is.",
        "rejected": "Nine is.",
        "status": "t",
    },
    "LLaMA-Factory alpaca": {"instruction": "Name", "input": "a prime.", "chosen": "Two is.", "rejected": "Nine is."},
    "LLaMA-Factory sharegpt": {
        "conversations": [HUMAN],
        "chosen": {"from": "gpt", "value": "Two is."},
        "rejected": {"from": "gpt", "value": "Nine is."},
    },
    "OpenRLHF": {"context_messages": [SYSTEM, USER], "chosen": [GOOD], "rejected": [BAD]},
    "a message each": {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
    "a message each, prompt as text": {"prompt": "Name a prime.", "chosen": GOOD, "rejected": BAD},
    "a dict each": {"prompt": "Name a prime.", "chosen": {"content": "Two is."}, "rejected": {"content": "Nine is."}},
    "lists of a message": {"prompt": "Name a prime.", "chosen": [GOOD], "rejected": [BAD]},
    "content in parts": {
        "prompt": "Name a prime.",
        "chosen": [{"role": "assistant", "content": [{"type": "text", "text": "Two is."}]}],
        "rejected": [{"role": "assistant", "content": [{"type": "text", "text": "Nine is."}]}],
    },
    "axolotl chat_template.argilla": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "the question in one of them": {"chosen": [USER, GOOD], "rejected": [BAD]},
    "the question in one of them, spaces": {
        "chosen": [USER, GOOD],
        "rejected": [{**USER, "content": " Name a prime.\n"}, BAD],
    },
}


@pytest.mark.parametrize("name", PREFERENCES)
def test_a_preference_is_found(name: str) -> None:
    (problem,) = read(PREFERENCES[name])
    assert problem.question.split() == ["Name", "a", "prime."]
    assert (problem.meta["chosen"], problem.meta["rejected"]) == ("Two is.", "Nine is.")
    assert problem.is_preference


@pytest.mark.parametrize("write", [str.upper, str.title])
@pytest.mark.parametrize("name", [*DEMONSTRATIONS, *PREFERENCES])
def test_capitals_in_column_names_do_not_matter(name: str, write: Callable[[str], str]) -> None:
    row = {**DEMONSTRATIONS, **PREFERENCES}[name]
    (problem,) = read({write(column): value for column, value in row.items()})
    assert problem.question.split() == ["Name", "a", "prime."]
    assert problem.meta["completion"] == "Two is."
    assert problem.is_preference == (name in PREFERENCES)
    (plain,) = read(row)
    assert problem.id == plain.id
    assert {column.casefold() for column in problem.meta} == {column.casefold() for column in plain.meta}


def test_what_a_row_does_not_use_keeps_its_spelling() -> None:
    """A user's reward or template reads it; and of two spellings the small one is that of the schema."""
    row = {"Question": "1+1?", "Answer": "2", "Prompt": "Add.", "Tests": ["a"], "Margin": 3}
    (problem,) = read(row)
    assert (problem.question, problem.answer) == ("1+1?", "2")
    assert problem.meta == {"Prompt": "Add.", "Tests": ["a"], "Margin": 3}
    (problem,) = read({"prompt": "x?", "completion": "So.", "Completion": "mine", "PROMPT": "mine too"})
    assert (problem.question, problem.meta["completion"]) == ("x?", "So.")
    assert (problem.meta["Completion"], problem.meta["PROMPT"]) == ("mine", "mine too")
    (problem,) = read({"Prompt": "x?", "Chosen": "a", "Rejected": "b", "Margin": 0.5})
    assert problem.meta == {"chosen": "a", "rejected": "b", "margin": 0.5, "completion": "a"}
    letters = {"question": "a + b?", "answer": "3", **dict.fromkeys("abcd", 1)}
    assert read(letters)[0].answer == "3"


@pytest.mark.parametrize("row", [{"question": "x?", "Rejected": "b"}, {"query": "x?", "chosen": "a"}])
def test_a_reply_of_a_preference_is_suggested_as_no_answer(row: Row) -> None:
    with pytest.raises(DataError) as raised:
        read(row)
    assert "Perhaps: --data.map answer=" not in str(raised.value)
    assert "columns are " + ", ".join(row) in str(raised.value)


def test_a_suggested_column_is_named_whole() -> None:
    with pytest.raises(DataError, match=r"Perhaps: --data\.map answer=answer's$"):
        read({"question": "x?", "answer's": "2"})


FIRST = "\n\nHuman: Hi there\n\nAssistant: Hello. What do you need?"


@pytest.mark.parametrize(
    ("before", "question"),
    [("", "Can you help me?"), (FIRST, f"{FIRST.strip()}\n\nHuman: Can you help me?")],
)
def test_a_transcript_is_split_at_its_last_reply(before: str, question: str) -> None:
    """The replies begin with the same words, which belong to both of them; the prompt adds the assistant's turn."""
    asked = f"{before}\n\nHuman: Can you help me?\n\nAssistant:"
    rows = {"chosen": f"{asked} I can help you with that.", "rejected": f"{asked} I can help nobody."}
    (problem,) = read(rows)
    assert problem.question == question
    assert "rendered" not in problem.meta
    assert problem.meta["chosen"] == "I can help you with that."
    assert problem.meta["rejected"] == "I can help nobody."
    other = {**rows, "rejected": f"{asked} No.\n\nHuman: Why?\n\nAssistant: Because."}
    counts: Counter[str] = Counter()
    assert len(read(rows, other, counts=counts)) == 1
    assert counts == {"preferences between replies to two different conversations": 1}


RL: dict[str, tuple[Row, str, str]] = {
    "OpenRLHF prompts": ({"dataset": "a", "context_messages": [USER], "id": "1"}, "Name a prime.", ""),
    "open-r1 with several traces": (
        {
            "problem": "Name a prime.",
            "solution": "It is 2.",
            "answer": "2",
            "messages": [USER, GOOD],
            "generations": ["Nine is.", "Two is."],
            "correctness_math_verify": [False, True],
            "is_reasoning_complete": [True, True],
        },
        "Name a prime.",
        "2",
    ),
    "a box in the response": ({"question": "Name a prime.", "response": r"It is \boxed{2}."}, "Name a prime.", "2"),
    "input and output beside a question": ({"question": "Name a prime.", "answer": "2", "input": "a", "output": "b"},)
    * 1
    + ("Name a prime.", "2"),
}


@pytest.mark.parametrize("name", RL)
def test_a_question_is_found(name: str) -> None:
    row, question, answer = RL[name]
    (problem,) = read(row)
    assert (problem.question, problem.answer) == (question, answer)


REPLIES: list[Callable[[Any], Row]] = [
    lambda label: {"prompt": "x?", "completion": "Bad.", "label": label},
    lambda label: {"prompt": [USER], "completion": [BAD], "label": label},
    lambda label: {"instruction": "x?", "input": "", "output": "Bad.", "kto_tag": label},
    lambda label: {"messages": [USER, BAD], "label": label},
    lambda label: {"conversations": [HUMAN, GPT], "kto_tag": label},
    lambda label: {"prompt": "x?", "response": "Bad.", "Label": label},
]


@pytest.mark.parametrize("build", REPLIES)
@pytest.mark.parametrize("label", [False, 0, 0.0, -1, "false", "False", " FALSE ", "0", "0.0"])
def test_a_bad_reply_is_never_imitated(build: Callable[[Any], Row], label: Any) -> None:
    counts: Counter[str] = Counter()
    (problem,) = read(build(label), build(True), counts=counts)
    ((reason, count),) = counts.items()
    assert count == 1
    assert reason.startswith("replies that ")
    assert f"calls bad ({label})" in reason
    assert find_demonstration(load_leaf("chat"), problem)


def test_a_checked_generation_is_never_imitated() -> None:
    """OpenMathInstruct has right and wrong ones of every question."""
    row = {"question": "1+1?", "expected_answer": "2", "generated_solution": "It is 3.", "is_correct": False}
    counts: Counter[str] = Counter()
    (problem,) = read(row, {**row, "generated_solution": "It is 2.", "is_correct": True}, counts=counts)
    assert problem.meta["completion"] == "It is 2."
    assert counts == {"replies that is_correct calls bad (False)": 1}


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Which?", "choices": ["a", "b"], "answer": 0, "label": 0},
        {"question": "1+1?", "answer": "2", "label": 0},
        {"prompt": "x?", "chosen": "a", "rejected": "b", "label": False},
        {"problem": "1+1?", "solution": "So.", "answer": "2", "label": "0"},
        {"prompt": "x?", "completion": "a", "label": None},
    ],
)
def test_a_class_is_no_verdict(row: Row) -> None:
    assert len(read(row)) == 1


SKIPPED: dict[str, tuple[Row, str]] = {
    "history": (
        {"instruction": "x?", "output": "y", "history": [["a", "b"]]},
        "conversations that are not one question and one answer",
    ),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}, GOOD]},
        "conversations with images or other parts that are not text",
    ),
    "segments of two turns": (
        {"segments": [{"label": value, "text": "a"} for value in (False, True, False, True)]},
        "conversations that are not one question and one answer",
    ),
    "tool calls": (
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, GOOD]},
        "conversations with tool calls",
    ),
    "two questions": (
        {"chosen": [USER, GOOD], "rejected": [{"role": "user", "content": "Name a city."}, BAD]},
        "preferences between replies to two different conversations",
    ),
    "two questions beside a prompt": (
        {"prompt": "Name a prime.", "chosen": [USER, GOOD], "rejected": [{"role": "user", "content": "A city?"}, BAD]},
        "preferences between replies to two different conversations",
    ),
    "tools": (
        {"conversations": [HUMAN, {"from": "function_call", "value": "f"}, {"from": "observation", "value": "3"}, GPT]},
        "conversations that are not one question and one answer",
    ),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_no_problems_says_why(name: str, tmp_path: Path) -> None:
    """The rows, the columns, the schema in which they were read, and the reasons."""
    row, reason = SKIPPED[name]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(3)))
    with pytest.raises(DataError) as raised:
        tasks.load_task(str(tmp_path / "data.jsonl"), "train", {})
    said = str(raised.value)
    for words in ("data.jsonl, rows 1 to 3: no problems", f"3 {reason}", f"The columns are {', '.join(row)}, read as "):
        assert words in said


def test_a_file_of_bad_replies_says_why() -> None:
    with pytest.raises(DataError, match=r"2 replies that label calls bad \(False\). The columns are prompt, compl"):
        read(*({"prompt": f"{n}?", "completion": "Bad.", "label": False} for n in range(2)))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt_text": "x?", "chosen": "a", "rejekted": "b"}, "nearest known schema is preferences; it also needs"),
        ({"conversation": [HUMAN, GPT]}, "conversations"),
        ({"question": "x?", "reply": "y"}, "nearest known schema is question and answer; it also needs answer or"),
        ({"text": "a b"}, "split the text into the columns prompt and completion"),
        ({"frage": 1, "antwort": 2}, "the columns are frage, antwort; expected one of question"),
    ],
)
def test_unknown_columns_are_explained(row: Row, words: str) -> None:
    with pytest.raises(DataError) as raised:
        read(row)
    assert words in str(raised.value)
    assert str(raised.value).startswith("data.jsonl, row 1: ")


@pytest.mark.parametrize("columns", [("question", "answer"), ("prompt", "answer"), ("instruction", "output")])
def test_a_whole_number_may_be_as_long_as_python_writes_it(columns: tuple[str, str]) -> None:
    (problem,) = read(dict(zip(columns, ("x?", 10**400), strict=True)))
    assert f"1{'0' * 400}" in (problem.answer, problem.meta.get("completion"))
    with pytest.raises(DataError, match=rf"row 1: {columns[1]} is a whole number with too many digits"):
        read(dict(zip(columns, ("x?", 10**5000), strict=True)))


def test_no_rows_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    columns = pyarrow.schema([("question", pyarrow.string()), ("answer", pyarrow.string())])
    pyarrow.parquet.write_table(columns.empty_table(), tmp_path / "empty.parquet")
    pyarrow.parquet.ParquetWriter(tmp_path / "empty without groups.parquet", columns).close()
    for file in tmp_path.iterdir():
        with pytest.raises(DataError, match=rf"{file.name} has no problems: there are no rows"):
            tasks.load_task(str(file), "train", {})
        assert [issue.reason for issue in validate_file(file, {}).errors] == ["the file has no rows."]


@pytest.mark.parametrize("mark", ["proof", "notfound"])
def test_what_numinamath_writes_without_an_answer_is_none(mark: str) -> None:
    """A run would teach to answer every proof with the word."""
    numina = {"problem": "Is 2 prime?", "solution": "It is.", "answer": mark, "problem_is_valid": "Yes"}
    assert [problem.answer for problem in read(numina)] == [""]
    assert [problem.answer for problem in read({"problem": "What is 80-proof short for?", "answer": mark})] == [mark]


@pytest.mark.parametrize(("gold", "answer"), [('["\\\\frac{1}{2}"]', "\\frac{1}{2}"), ('["1", "2"]', '["1", "2"]')])
def test_an_answer_in_a_list_of_json_is_read(gold: str, answer: str) -> None:
    """Skywork-OR1 has it; the rewards of verl's users find the text as it is."""
    (problem,) = read({"prompt": [USER], "reward_model": {"ground_truth": gold, "style": "rule"}})
    assert problem.answer == answer
    assert problem.meta.get("ground_truth", gold) == gold
    assert ("ground_truth" in problem.meta) == (answer != gold)
