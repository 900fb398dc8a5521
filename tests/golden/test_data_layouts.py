"""What `qed data` writes is read back as the same problems: by property, and on the real files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qed.data import tasks
from qed.data.prompts.base import load_leaf
from qed.data.prompts.demonstrations import find_demonstration
from qed.data.sources import local
from qed.data.sources.rows import Place
from qed.data.tasks.base import build_problems
from qed.data.tools.contamination import Index, find_overlap
from qed.data.tools.convert import Target, build_rows, convert
from qed.data.tools.filters import Filters, filter_problems, normalize_question
from qed.data.tools.inspect import inspect_data
from qed.data.tools.load import load_data
from qed.data.tools.prompting import PromptView
from qed.data.tools.snapshot import write_rows
from qed.errors import DataError
from qed.randomness import shuffle_indices
from qed.types import Problem

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t=-+\"',|\\{}$#"), max_size=40)
SAID = TEXT.filter(str.strip)
ANSWER = SAID.filter(lambda text: "####" not in text)  # behind which GSM8K's answers stand
ROW = st.fixed_dictionaries(
    {"question": SAID, "answer": ANSWER, "solution": TEXT},
    optional={"subject": SAID, "level": st.integers(1, 5), "generated_solution": SAID, "source": SAID},
)
FILES = {"jsonl": "x.jsonl", "csv": "x.csv", "parquet": "x.parquet", "verl": "x.parquet", "gsm8k": "x.jsonl"}


def read(given_rows: list[dict[str, Any]]) -> list[Problem]:
    return build_problems(((Place("x", n), row) for n, row in enumerate(given_rows, 1)), "x", {}, Counter())


def again(file: Path) -> list[Problem]:
    return build_problems(local.read_rows(str(file), ""), "x", {}, Counter())


def asked(prompt: str = "chat") -> PromptView:
    return PromptView(load_leaf(prompt))


@pytest.mark.parametrize("schema", ["jsonl", "csv", "parquet", "verl"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(ROW, min_size=1, max_size=4, unique_by=lambda row: row["question"].strip()))
def test_a_round_trip_keeps_the_problem(tmp_path: Path, schema: str, some: list[dict[str, Any]]) -> None:
    """Question, answer and solution whatever signs are in them, the subject and level; in ours what is imitated too."""
    before, left_out = read(some), Counter[str]()
    write_rows(tmp_path / FILES[schema], build_rows(before, schema, asked(), ("x", "train"), left_out))
    assert not left_out
    kept = ("level", "subject") if schema == "verl" else ("level", "subject", "source", "completion")
    for one, other in zip(before, again(tmp_path / FILES[schema]), strict=True):
        assert (one.question, one.answer, one.solution) == (other.question, other.answer, other.solution)
        if schema != "csv":  # where a subject of digits is read as what it looks like, and nothing as an empty text
            assert [one.meta.get(name) for name in kept] == [other.meta.get(name) for name in kept]
        if schema in ("jsonl", "parquet"):
            assert one.id == other.id


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_luffys_demonstrations_are_written_and_counted(tmp_path: Path, suffix: str) -> None:
    """All of a problem's, with the probabilities of the first one's tokens if its text stays."""
    said = [f"<think>\n{number}+1\n</think>\nIt is \\boxed{{2}}." for number in range(8)]
    rows: list[dict[str, Any]] = [
        {"prompt": [{"role": "user", "content": question}], "reward_model": {"ground_truth": "2"}} for question in "ab"
    ]
    rows[0] |= {"target": said[0], "target_lst": said[1:], "target_ds_qwen_7b_probs": [0.5, -1.0]}
    rows[1] |= {"target": said[0]}
    before, file = read(rows), tmp_path / f"x.{suffix}"
    write_rows(file, build_rows(before, "luffy", asked("luffy_no_system"), ("x", "train"), Counter()))
    names = ("completion", "traces", "trace_probabilities")
    kept = [[problem.meta.get(name) for name in names] for problem in again(file)]
    assert kept == [[said[0], said[1:], [0.5, -1.0]], [said[0], None, None]]
    data = load_data(str(file), {})
    figures = inspect_data(data, asked("luffy_no_system"))
    assert (figures["demonstrations"], figures["demonstrations_per_problem"]) == (2, {"8": 1})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(ROW, min_size=1, max_size=4, unique_by=lambda row: row["question"].strip()))
def test_gsm8k_keeps_what_it_can_hold(tmp_path: Path, some: list[dict[str, Any]]) -> None:
    """What its form would change, such as a comma in an answer, is left out and counted."""
    before, left_out = read(some), Counter[str]()
    table = build_rows(before, "gsm8k", asked(), ("x", "train"), left_out)
    assert len(table) == len(before) - left_out.total()
    write_rows(tmp_path / "x.jsonl", table)
    after = {(problem.question, problem.answer) for problem in again(tmp_path / "x.jsonl")}
    assert len(after) == len(table)
    assert after <= {(problem.question, problem.answer) for problem in before}


@pytest.mark.parametrize("prompt", ["luffy", "chat", "boxed", "simplerl"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(ROW, min_size=1, max_size=3))
def test_luffy_keeps_the_demonstration(tmp_path: Path, prompt: str, some: list[dict[str, Any]]) -> None:
    before, leaf = read(some), load_leaf(prompt)
    write_rows(tmp_path / "x.parquet", build_rows(before, "luffy", asked(prompt), ("x", "train"), Counter()))
    for one, other in zip(before, again(tmp_path / "x.parquet"), strict=True):
        assert (one.question, one.answer, one.solution) == (other.question, other.answer, other.solution)
        shown = find_demonstration(leaf, one) or ""
        assert other.meta.get("completion", "") == shown


def test_luffys_rows_are_those_of_its_own_files(shared: Path, tmp_path: Path) -> None:
    """From their parquet to jsonl and back: the columns, messages and golds are theirs again, every repeat too."""
    theirs = shared / "data" / "luffy" / "valid.parquet"
    convert(load_data(str(theirs), {}), Target(tmp_path / "plain.jsonl"), Filters(), "")
    convert(
        load_data(str(tmp_path / "plain.jsonl"), {}), Target(tmp_path / "back.parquet", "verl", "luffy"), Filters(), ""
    )
    before, after = (Dataset.from_parquet(str(path)) for path in (theirs, tmp_path / "back.parquet"))
    assert len(before) == len(after) == 2019
    assert set(before.column_names) - set(after.column_names) == {"__index_level_0__"}

    def said(table: Dataset) -> Counter[str]:
        parts = (
            (row["data_source"], row["ability"], row["reward_model"], [(m["role"], m["content"].strip()) for m in p])
            for row, p in zip(table, table["prompt"], strict=True)
        )
        return Counter(json.dumps(part, sort_keys=True) for part in parts)

    assert said(before) == said(after)


@pytest.mark.parametrize(
    ("name", "schemas"),
    [
        ("gsm8k:train@gsm8k/train.jsonl", ("jsonl", "csv", "parquet", "verl", "gsm8k")),
        ("mmlu:dev@mmlu", ("jsonl", "verl")),
        ("college_math:test@qwen_eval/college_math.jsonl", ("jsonl", "csv", "parquet", "verl")),
        ("files@luffy/valid.all.parquet", ("jsonl", "parquet", "verl")),
    ],
)
def test_real_files_lose_nothing(shared: Path, tmp_path: Path, name: str, schemas: tuple[str, ...]) -> None:
    task, _, path = name.partition("@")
    before = load_data(f"{task}@{shared / 'data' / path}", {}).problems
    for schema in schemas:
        left_out: Counter[str] = Counter()
        write_rows(tmp_path / FILES[schema], build_rows(before, schema, asked(), ("x", "train"), left_out))
        assert not left_out
        after = again(tmp_path / FILES[schema])
        assert [(p.question, p.answer) for p in before] == [(p.question, p.answer) for p in after]
        assert [p.meta.get("k") for p in before] == [p.meta.get("k") for p in after]
        if task == "mmlu:dev" and schema == "jsonl":
            assert [p.meta["choices"] for p in before] == [p.meta["choices"] for p in after]


def test_verls_own_rows_are_read_by_the_bare_question() -> None:
    """Their GSM8K has an instruction behind the question, and the bare question beside it."""
    info = {"split": "train", "index": 0, "question": "1+1?", "answer": "It is 2\n#### 2"}
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "1+1? Let's think step by step."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": info,
    }
    (problem,) = read([row])
    assert (problem.question, problem.answer, problem.meta["source"]) == ("1+1?", "2", "openai/gsm8k")
    (written,) = build_rows([problem], "verl", asked(), ("x", "train"), Counter())
    assert written["extra_info"]["answer"] == info["answer"]  # what we do not know is kept
    other = {**row, "extra_info": {"question": "something else"}}
    assert read([other])[0].question == "1+1? Let's think step by step."


def test_trl_gets_prompt_completion_or_prompts_alone() -> None:
    both = [Problem("a", "1+1?", "2", "It is 2."), Problem("b", "1+2?", "3")]
    first, second = build_rows(both, "trl", asked("boxed"), ("x", "train"), Counter())
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert first["completion"][0]["content"] == "It is 2.\n\nThe answer is \\boxed{2}."
    assert second["completion"] is None
    (alone,) = build_rows(both[1:], "trl", asked("r1_zero"), ("x", "train"), Counter())
    assert set(alone) == {"prompt", "answer"}
    assert alone["prompt"].endswith("<think>")


def test_gsm8k_cannot_hold_every_answer() -> None:
    left_out: Counter[str] = Counter()
    some = [Problem("a", "?", "1,2"), Problem("b", "?", "2", "so"), Problem("c", "?", "")]
    (row,) = build_rows(some, "gsm8k", asked(), ("x", "train"), left_out)
    assert row == {"question": "?", "answer": "so\n#### 2"}
    assert left_out.total() == 2
    assert any("read otherwise" in reason for reason in left_out)


WORDS = st.lists(st.sampled_from("a b c d".split()), min_size=1, max_size=12)  # noqa: SIM905


@settings(max_examples=200, deadline=None)
@given(training=st.lists(WORDS, max_size=4), bench=st.lists(WORDS, max_size=4), n=st.integers(1, 5))
def test_overlap_is_that_of_brute_force(training: list[list[str]], bench: list[list[str]], n: int) -> None:
    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    made = [[Problem(f"{k}{i}", " ".join(w), "1") for i, w in enumerate(p)] for k, p in (("t", training), ("b", bench))]
    index = Index({"bench": made[1]}, n)
    for problem, words in zip(made[0], training, strict=True):
        found = {hit.other.id for hit in index.find_overlapping(problem)}
        assert found == {f"b{i}" for i, other in enumerate(bench) if words == other or runs(words) & runs(other)}


def test_gsm8k_overlaps_with_itself_in_four_problems(shared: Path) -> None:
    """Its train and test split share runs of 13 words in four training problems, which touch three test problems."""
    train, test = (
        load_data(f"gsm8k:{part}@{shared}/data/gsm8k/{part}.jsonl", {}).problems for part in ("train", "test")
    )
    found = find_overlap(train, {"gsm8k": test})
    assert (found.figures["contaminated"], found.figures["same_question"]) == (4, 0)
    assert found.figures["benchmarks"]["gsm8k"] == {"problems": 1319, "touched": 3, "same_question": 0}
    assert len(found.clean) == 7469
    assert find_overlap(test, {"gsm8k": test}).figures["same_question"] == 1319


def test_what_filters_leave_out_is_counted() -> None:
    some = [
        Problem("a", "One and one?", "2", "so \\boxed{2}"),
        Problem("a", "One and one?", "2", "so \\boxed{2}"),
        Problem("b", "one  and ONE", "2", "hence \\boxed{2}"),
        Problem("c", "One and one", "3", "so \\boxed{3}"),
        Problem("d", "Two?", "2", "so \\boxed{3}"),
        Problem("e", "Three, and quite a long question about it?", "3", "so"),
    ]
    left_out: Counter[str] = Counter()
    kept = filter_problems(
        some, Filters(dedupe="questions", correct_only=True, max_characters=60), asked("boxed"), left_out
    )
    assert [problem.id for problem in kept] == ["a"]
    assert left_out.total() == len(some) - len(kept)
    assert left_out["duplicate questions with another answer"] == 1
    kept = filter_problems([some[0], some[5], some[1]], Filters(dedupe="rows"), asked(), Counter())
    assert [problem.id for problem in kept] == ["a", "e"]  # the copy does not move the first row
    with pytest.raises(DataError, match="No problem is left of 6"):
        filter_problems(some, Filters(max_characters=1), asked(), Counter())
    assert normalize_question("2 + 3?") != normalize_question("2 - 3?")


@pytest.mark.parametrize("path", ["qwen_eval/asdiv.jsonl", "luffy/valid.parquet"])
def test_plain_rows_do_not_depend_on_their_order(shared: Path, path: str) -> None:
    before = tasks.load_task(str(shared / "data" / path), "test", {})
    order = shuffle_indices(len(before), 0, "order")
    ids = [
        {row["question"] for row in build_rows(some, "jsonl", asked(), ("x", "train"), Counter())}
        for some in (before, [before[index] for index in order])
    ]
    assert ids[0] == ids[1]
