"""The built-in task is what it says, data files give the right problems, and every shipped config parses."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from qed.config.phases import PipelineSettings
from qed.config.resolve import resolve_settings
from qed.config.sampling_settings import EvaluationSettings
from qed.config.settings import DataSettings
from qed.config.task_names import TaskName, parse_task
from qed.data import tasks
from qed.data.prompts import think_answer as think_answer_prompt
from qed.data.prompts.demonstrations import find_demonstration
from qed.data.splits import load_problems
from qed.data.tasks import arithmetic, withheld
from qed.errors import DataError, UsageError
from qed.rewards import think_answer
from qed.types import Problem, Rollout

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_arithmetic_is_right_and_never_repeats(level: int) -> None:
    train, test = arithmetic.load(f"train-level{level}"), arithmetic.load(f"test-level{level}")
    assert (len(train), len(test)) == (8000, 1000)
    questions = [problem.question for problem in train + test]
    assert len(set(questions)) == len({problem.id for problem in train + test}) == 9000
    largest = arithmetic.LARGEST[level]
    for problem in train[:2000]:
        words = problem.question.replace(".", " ").replace(",", " ").split()
        numbers = [int(word) for word in words if word.isdigit()]
        assert len(numbers) == 3
        assert all(2 <= number <= largest for number in numbers)
        total = numbers[0]
        halves = problem.question.split(". ")[1].split(", then ")
        for half, number in zip(halves, numbers[1:], strict=True):
            total += -number if any(word in half for word in ("gives away", "loses", "sells")) else number
        assert total == int(problem.answer) >= 0


def test_arithmetic_demonstrations_are_mixed_as_promised() -> None:
    """35 % with steps, 50 % in the format alone, 15 % bare; the steps are right and end in the answer."""
    kinds: Counter[str] = Counter()
    for problem in arithmetic.load("train"):
        kinds["bare" if "completion" in problem.meta else "steps" if problem.solution else "format"] += 1
        if problem.solution:
            for step in problem.solution.split(", "):
                left, _, right = step.partition("=")
                sign = "+" if "+" in left else "-"
                one, other = map(int, left.split(sign))
                assert one + other * (1 if sign == "+" else -1) == int(right)
            assert problem.solution.endswith(f"={problem.answer}")
    shares = [kinds[kind] / 8000 for kind in ("steps", "format", "bare")]
    assert shares == pytest.approx([0.35, 0.50, 0.15], abs=0.02)


def test_arithmetic_is_the_same_every_time() -> None:
    """A benchmark that moved would make results incomparable."""
    assert arithmetic.load("test")[0] == arithmetic.load("test")[0]
    assert arithmetic.load("test") == arithmetic.load("test-level1")
    with pytest.raises(UsageError, match="train-level2"):
        arithmetic.load("train-level4")


def test_withheld_problems_are_those_of_arithmetic_and_shown_as_promised() -> None:
    """The base sees every second question with the cue and its steps, the others answered "unknown"; few are shown."""
    base, train, few = (withheld.load(split) for split in ("base", "train", "few"))
    assert [problem.question.endswith(withheld.CUE) for problem in base[:4]] == [False, True, False, True]
    assert [find_demonstration(think_answer_prompt, problem) for problem in base[:2]] == [
        "unknown",
        f"<think>{base[1].solution}</think><answer>{base[1].answer}</answer>",
    ]
    assert few == [p if n < 64 else replace(p, solution="", meta=few[n].meta) for n, p in enumerate(train[:512])]
    assert sum(find_demonstration(think_answer_prompt, problem) is not None for problem in few) == 64
    questions = {problem.question.removesuffix(withheld.CUE) for problem in base}
    plain, cued = withheld.load("test"), withheld.load("cued")
    assert not questions & {problem.question for problem in [*train, *plain]}
    assert [problem.question for problem in cued] == [problem.question + withheld.CUE for problem in plain]
    with pytest.raises(UsageError, match="Did you mean 'few'"):
        withheld.load("fe")


def test_a_task_is_named_in_three_ways() -> None:
    assert parse_task("arithmetic") == TaskName("arithmetic")
    assert parse_task("arithmetic:test-level2") == TaskName("arithmetic", "test-level2")
    assert parse_task("some/where.jsonl") == TaskName("files", "", "some/where.jsonl")
    assert parse_task("gsm8k:test@a/b.jsonl") == TaskName("gsm8k", "test", "a/b.jsonl")


ROWS = [
    ({"question": "6*8?", "answer": "So <<6*8=48>>48.\n#### 48"}, ("6*8?", "48", "So 48.")),
    ({"question": "Much?", "answer": "A lot.\n#### 1,234"}, ("Much?", "1234", "A lot.")),
    (
        {"problem": "x?", "solution": r"It is \boxed{\frac{1}{2}}.", "level": "Level 5"},
        ("x?", r"\frac{1}{2}", r"It is \boxed{\frac{1}{2}}."),
    ),
    ({"problem": "x?", "answer": 12, "subject": "Algebra"}, ("x?", "12", "")),
    ({"prompt": "x?", "answer": "3"}, ("x?", "3", "")),
    ({"question": "x?", "final_answer": "4", "solution": "2+2"}, ("x?", "4", "2+2")),
]


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_json(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text(json.dumps(rows), encoding="utf-8")


def write_gzip(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def write_csv(file: Path, rows: list[dict[str, Any]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    Dataset.from_list(rows).to_parquet(str(file))


WRITERS = {
    ".jsonl": write_jsonl,
    ".json": write_json,
    ".jsonl.gz": write_gzip,
    ".csv": write_csv,
    ".parquet": write_parquet,
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(("row", "expected"), ROWS)
def test_files_know_their_columns(
    tmp_path: Path, suffix: str, row: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    write: Callable[[Path, list[dict[str, Any]]], None] = WRITERS[suffix]
    write(tmp_path / f"data{suffix}", [row, row])
    problems = tasks.load_task(str(tmp_path / f"data{suffix}"), "train", {})
    assert [(p.question, p.answer, p.solution) for p in problems] == [expected, expected]
    assert problems[0].id == problems[1].id, "the same row twice is the same problem"
    assert problems[0].meta.get("subject") == row.get("subject")
    assert problems[0].meta.get("level") == (5 if "level" in row else None)


def test_a_completion_is_imitated_as_it_stands(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data.jsonl", [{"prompt": "x?", "completion": "It is 3."}])
    (problem,) = tasks.load_task(str(tmp_path / "data.jsonl"), "train", {})
    assert problem.meta["completion"] == "It is 3."


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """Two solutions of a question are two demonstrations; a row that stands twice, or has no answer to measure, is
    counted."""
    rows = [{"question": f"{number}?", "answer": f"{number}"} for number in range(20)]
    rows += [rows[0], {"question": "1?", "answer": "1", "solution": "another way"}]
    write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(
        tmp_path / "test.jsonl", [rows[3], {"question": "new?", "answer": "5"}, {"question": "x?", "solution": "y"}]
    )
    data = DataSettings(tasks=(str(tmp_path / "train.jsonl"),))
    loaded = load_problems(data, EvaluationSettings(tasks=(str(tmp_path / "test.jsonl"),)), seed=0)
    assert len(loaded.problems) == 20, "twenty and another way, less one that is held out"
    assert sum(problem.question == "1?" for problem in loaded.problems) == 2
    assert [problem.question for problem in loaded.benchmarks["test"]] == ["3?", "new?"]
    assert loaded.left_out == {
        "duplicate rows": 1,
        "held-out rows without an answer": 1,
        "training problems that are held out": 1,
    }
    with pytest.raises(DataError, match="No training problem is left"):
        load_problems(data, EvaluationSettings(tasks=data.tasks), seed=0)


def test_every_joined_task_is_measured(tmp_path: Path) -> None:
    """One brings a test split, the other has a part of its own held out."""
    write_jsonl(tmp_path / "mine.jsonl", [{"question": f"{number}?", "answer": "1"} for number in range(30)])
    loaded = load_problems(
        DataSettings(tasks=("arithmetic", str(tmp_path / "mine.jsonl"))), EvaluationSettings(problems=5), seed=0
    )
    assert {name: len(some) for name, some in loaded.benchmarks.items()} == {"arithmetic": 5, "mine": 3}
    assert len(loaded.problems) == 8000 + 27


@pytest.mark.parametrize(
    "kind", ["files", "folders", "one.json", "folder of one.json", "parquet", "saved", "hub copy", "gsm8k"]
)
def test_a_test_split_of_ones_own_is_measured(tmp_path: Path, kind: str) -> None:
    """Its problems are evaluated, and none of the training split is held out."""
    rows = {
        "train": [{"question": f"{number}?", "answer": "1"} for number in range(30)],
        "test": [{"question": f"{number} and 1?", "answer": "1"} for number in range(4)],
    }
    place = tmp_path / "fold"
    (place / "test" if kind == "folders" else place).mkdir(parents=True)
    if kind == "saved":
        DatasetDict({split: Dataset.from_list(some) for split, some in rows.items()}).save_to_disk(str(place))
    elif kind.endswith(("json", "gsm8k")):
        (place / "one.json").write_text(json.dumps(rows))
    for split, some in rows.items():
        if kind in ("parquet", "hub copy"):
            Dataset.from_list(some).to_parquet(str(place / f"{split}-00000-of-00001.parquet"))
        elif kind in ("files", "folders"):
            write_jsonl(
                place / (f"{split}/a.jsonl" if kind == "folders" and split == "test" else f"{split}.jsonl"), some
            )
    name = {"one.json": f"{place}/one.json", "hub copy": f"hub:a/b@{place}", "gsm8k": f"gsm8k@{place}/one.json"}
    loaded = load_problems(DataSettings(tasks=(name.get(kind, str(place)),)), EvaluationSettings(), seed=0)
    assert len(loaded.problems) == 30
    assert [[problem.question for problem in some] for some in loaded.benchmarks.values()] == [
        [row["question"] for row in rows["test"]]
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [("test.jsonl", None), ("train.json", {"test": None}), ("train.json", {"train": None, "test": []})],
)
def test_one_split_is_no_test_split(tmp_path: Path, name: str, content: dict[str, Any] | None) -> None:
    rows = [{"question": f"{number}?", "answer": "1"} for number in range(30)]
    write_jsonl(tmp_path / name, rows)
    if content:
        (tmp_path / name).write_text(json.dumps({key: rows if some is None else some for key, some in content.items()}))
    for task in (str(tmp_path), str(tmp_path / name)):
        loaded = load_problems(DataSettings(tasks=(task,)), EvaluationSettings(), seed=0)
        assert (len(loaded.problems), [len(some) for some in loaded.benchmarks.values()]) == (27, [3])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"question": "7 and 1?"}', "test split, which is not evaluated: .*test.jsonl, row 1: "),
        ('{"question": "7 and 1?", "answer": ""}', "held-out rows without an answer"),
        ('{"question": "7 and 1?", answer: 8}', "test split, which is not evaluated: .*test.jsonl, row 1: broken JSON"),
        ("", "test split, which is not evaluated: .*no rows"),
    ],
)
def test_a_test_split_of_ones_own_that_cannot_be_evaluated(tmp_path: Path, text: str, reason: str) -> None:
    """A part of the training split is held out, and the reason is told, with the file and the row."""
    write_jsonl(tmp_path / "train.jsonl", [{"question": f"{number}?", "answer": "1"} for number in range(30)])
    (tmp_path / "test.jsonl").write_text(text)
    loaded = load_problems(DataSettings(tasks=(str(tmp_path),)), EvaluationSettings(), seed=0)
    assert (len(loaded.problems), [len(some) for some in loaded.benchmarks.values()]) == (27, [3])
    assert [count for told, count in loaded.left_out.items() if re.match(reason, told)] == [1]


@pytest.mark.parametrize(("answered", "benchmarks", "kept"), [(5, 0, 59), (30, 1, 57)])
def test_conversations_of_which_few_have_an_answer_are_imitated(
    tmp_path: Path, answered: int, benchmarks: int, kept: int
) -> None:
    said = [{"role": "user", "content": ""}, {"role": "assistant", "content": "So."}]
    rows = [{"messages": [{**said[0], "content": f"{number}?"}, said[1]]} for number in range(60)]
    rows = [{**row, "answer": "1"} if number < answered else row for number, row in enumerate(rows)]
    write_jsonl(tmp_path / "chat.jsonl", rows)
    data = DataSettings(tasks=(str(tmp_path / "chat.jsonl"),))
    loaded = load_problems(data, EvaluationSettings(), seed=0, imitates=True)
    assert (len(loaded.benchmarks), len(loaded.problems)) == (benchmarks, kept)


def test_a_run_that_is_rewarded_needs_problems_to_hold_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "few.jsonl", [{"question": f"{number}?", "answer": "1"} for number in range(9)])
    with pytest.raises(DataError, match="9 problems with an answer are too few to hold some out"):
        load_problems(DataSettings(tasks=(str(tmp_path / "few.jsonl"),)), EvaluationSettings(), seed=0)
    write_jsonl(tmp_path / "none.jsonl", [{"question": f"{number}?", "solution": "1"} for number in range(90)])
    with pytest.raises(DataError, match=r"none of 90 problems has an answer, .* --data\.map answer=COLUMN"):
        load_problems(DataSettings(tasks=(str(tmp_path / "none.jsonl"),)), EvaluationSettings(), seed=0)


def test_gsm8k_is_read_whole(shared: Path) -> None:
    """7,473 and 1,319 problems, every one with a whole number for an answer and a solution without calculator marks."""
    for split, count in (("train", 7473), ("test", 1319)):
        problems = tasks.load_task(str(shared / "data" / "gsm8k" / f"{split}.jsonl"), split, {})
        assert len(problems) == len({problem.id for problem in problems}) == count
        for problem in problems:
            assert problem.answer.lstrip("-").isdigit(), problem
            assert problem.solution
            assert "<<" not in problem.solution


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_parses(config: Path) -> None:
    text = config.read_text(encoding="utf-8")
    assert text.startswith("#"), "the first comment says what to expect"
    command = "pipeline" if "\nrl:" in text else "sft" if "sft" in config.stem or "\n  window:" in text else "grpo"
    resolved = resolve_settings(command, [str(config)])
    assert isinstance(resolved.settings, PipelineSettings) == (command == "pipeline")
    given = [key for key, origin in resolved.origins.items() if config.name in origin]
    assert len(given) >= 8, "its settings are in force"


def test_a_demonstration_in_the_format_earns_the_whole_reward() -> None:
    for problem in arithmetic.load("test")[:50]:
        text = f"<think>{problem.solution}</think><answer>{problem.answer}</answer>"
        verdict = think_answer.reward(Rollout(Problem("p", "?", problem.answer), (), (), (), text, "stop"))
        assert (verdict.reward, verdict.correct) == (1.1, True)
