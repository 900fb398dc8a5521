"""A column of the user's own is not taken for what its name means inside qed, and data is not read as another thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.config.task_names import parse_task
from qed.data import tasks
from qed.data.prompts.base import load_leaf, render_prompt
from qed.data.prompts.demonstrations import list_demonstrations
from qed.data.sources.writing import Writer
from qed.data.tools.prompting import PromptView, build_messages
from qed.errors import DataError, UsageError
from qed.evaluation.choice_formats import find_stem
from qed.rewards.multiple_choice import list_choices
from qed.types import Problem


def load(tmp_path: Path, *rows: dict[str, Any]) -> list[Problem]:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tasks.load_task(str(file), "train", {})


@pytest.mark.parametrize(("name", "value"), [("k", 5), ("k", "many"), ("rendered", "yes"), ("adapt", False)])
def test_a_column_does_not_set_what_qed_sets(tmp_path: Path, name: str, value: Any) -> None:
    """The number of answers that are sampled, the text of the prompt, and whether a reply gets the prompt's form."""
    row = {"question": "1+2?", "answer": "3", "generated_solution": "I add. #### 3"}
    (plain,) = load(tmp_path, row)
    (problem,) = load(tmp_path, row | {name: value})
    assert problem == plain
    assert render_prompt(load_leaf("r1_zero"), problem, None) != "yes"


@pytest.mark.parametrize("traces", ["abc", 3, [{"span": 1}], {"a": "b"}])
def test_traces_that_are_no_texts_are_no_demonstrations(tmp_path: Path, traces: Any) -> None:
    (problem,) = load(tmp_path, {"question": "1+2?", "answer": "3", "traces": traces})
    assert list_demonstrations(load_leaf("r1_zero"), problem) == []


def test_an_empty_place_among_traces_leaves_the_others(tmp_path: Path) -> None:
    (problem,) = load(tmp_path, {"question": "1+2?", "answer": "3", "traces": ["I add. #### 3", None]})
    assert len(list_demonstrations(load_leaf("r1_zero"), problem)) == 1


def test_a_column_stem_is_not_the_question(tmp_path: Path) -> None:
    """`stem` is the name of a question before white space is removed, which scores by likelihood need."""
    row = {"question": "1+2? ", "choices": ["3", "4"], "answer": "A"}
    (own,) = load(tmp_path, row | {"question": "1+2?", "stem": True})
    (published,) = load(tmp_path, row)
    assert [find_stem(problem, list_choices(problem)) for problem in (own, published)] == ["1+2?", "1+2? "]


@pytest.mark.parametrize("about", [{"choices": ["3", "4"], "answer": "A"}, {"solution": "It is 3.", "answer": "3"}])
def test_a_completion_beside_an_answer_gets_the_form_of_the_prompt(tmp_path: Path, about: dict[str, Any]) -> None:
    rows = [{"question": "1+2?", "completion": reply, **about} for reply in ("I add 1 and 2.", "Two more than 1.")]
    problems = load(tmp_path, *rows)
    written = [list_demonstrations(load_leaf("r1_zero"), problem) for problem in problems]
    assert all(text.startswith("<think> ") for texts in written for text in texts)
    assert len({problem.id for problem in problems}) == 2, "each reply is a demonstration of its own"


@pytest.mark.parametrize("prompt", ["zero_shot", "r1_zero"])
def test_a_question_is_not_asked_without_its_options(tmp_path: Path, prompt: str) -> None:
    with pytest.raises(DataError, match="choices is not a list of options"):
        load(tmp_path, {"question": "Which is even?", "choices": "['3' '4']", "answer": "B"})
    with pytest.raises(DataError, match="choices has 27 options, and only 26 have letters"):
        load(tmp_path, {"question": "Which is even?", "choices": list(map(str, range(27))), "answer": "B"})
    written = "Which is even? (A) 3 (B) 4"
    (problem,) = load(tmp_path, {"question": written, "choices": "['3' '4']", "answer": "B"})
    assert written in load_leaf(prompt).render(problem, None)


@pytest.mark.parametrize("options", ["A) 3 B) 4", "A. 3\nB. 4"])
@pytest.mark.parametrize("question", ["Which is even?", "A and B are numbers. Which is even?"])
@pytest.mark.parametrize("others", [{}, {"choices": None}])
def test_options_that_are_written_with_their_letters_are_read(
    tmp_path: Path, question: str, options: str, others: dict[str, Any]
) -> None:
    (problem,) = load(tmp_path, {**others, "question": question, "options": options, "answer": "B"})
    assert (problem.question, problem.answer) == (f"{question}\n\nA) 3\nB) 4", "B")
    asked = f"{question} A) 3\nB) 4"
    assert load(tmp_path, {"question": asked, "options": options, "answer": "B"})[0].question == asked


def test_a_text_that_says_that_there_are_no_options_is_none(tmp_path: Path) -> None:
    (problem,) = load(tmp_path, {"question": "Which vertex?", "options": "[]", "answer": "B"})
    assert problem.question == "Which vertex?"


@pytest.mark.parametrize("labels", [[1, 2, 3], ["1", "2", "3"]])
@pytest.mark.parametrize("answer", [2, "2"])
def test_an_answer_is_a_label_before_it_is_a_place(tmp_path: Path, labels: list[Any], answer: Any) -> None:
    row = {"question": "x?", "choices": {"text": ["u", "v", "w"], "label": labels}, "answerKey": answer}
    assert load(tmp_path, row)[0].answer == "B"


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("1,234", "1234"),
        ("$1,234,567.5", "$1234567.5"),
        ("1,00,000", "100000"),
        ("(3, 4)", "(3, 4)"),
        ("(1,200)", "(1,200)"),
        ("1, 2", "1, 2"),
        ("x = 1, y = 2", "x = 1, y = 2"),
    ],
)
def test_commas_between_parts_of_an_answer_stay(tmp_path: Path, given: str, answer: str) -> None:
    assert load(tmp_path, {"question": "x?", "answer": f"So.\n#### {given}"})[0].answer == answer


def test_a_query_is_the_prompt_of_a_preference(tmp_path: Path) -> None:
    row = {"query": "1+2?", "chosen": "The answer is 3.", "rejected": "The answer is 4."}
    (problem,) = load(tmp_path, row)
    assert (problem.question, problem.meta["chosen"]) == ("1+2?", "The answer is 3.")


@pytest.mark.parametrize(
    "write",
    [
        lambda reply: [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": reply}],
        lambda reply: f"\n\nHuman: 1+2?\n\nAssistant: {reply}",
        lambda reply: f"1+2? {reply}",
    ],
)
def test_a_query_beside_replies_with_their_question_is_no_prompt(tmp_path: Path, write: Callable[[str], Any]) -> None:
    (problem,) = load(tmp_path, {"query": "1+2?", "chosen": write("3"), "rejected": write("4")})
    assert (problem.question, problem.meta["chosen"], problem.meta["rejected"]) == ("1+2?", "3", "4")


def test_capitals_in_the_names_of_files_are_no_part_of_the_split(tmp_path: Path) -> None:
    for name in ("Train", "TEST"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": "1"}))
    assert [problem.question for problem in tasks.load_task(str(tmp_path), "train", {})] == ["Train"]
    assert tasks.has_test_split(str(tmp_path))
    assert parse_task(str(tmp_path)).leaf == "files"


def test_the_last_suffix_says_what_is_written(tmp_path: Path) -> None:
    with Writer(tmp_path / "from.jsonl.csv") as writer:
        writer.add({"a": 1})
    assert (tmp_path / "from.jsonl.csv").read_text().split() == ["a", "1"]


OPENED = '''"""Opens the thought."""
CHAT, STOP, REWARD, OPENS = True, (), "boxed", ("<think>",)

def render(problem, tokenizer):
    return tokenizer.apply_chat_template([{"role": "user", "content": problem.question}], tokenize=False) + "<think>"

def demonstration(problem):
    return f"\\\\boxed{{{problem.answer}}}"
'''


def test_a_prompt_that_adds_to_the_chat_template_is_shown_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "opened.py").write_text(OPENED)
    leaf, problem = load_leaf(str(tmp_path / "opened.py")), Problem("1", "1+2?", "3")
    assert PromptView(leaf).sample(problem)[0] == "[user]\n1+2?\n[assistant]\n<think>"
    with pytest.raises(UsageError, match="adds '<think>' to the output of the chat template"):
        build_messages(leaf, problem)
