"""Few-shot prompts are those of lm-eval 0.4.13, byte for byte: hashes of what its samplers and messages give.

Those of Qwen2.5-Math are hashed from its worked examples, joined as its `construct_prompt` and `parse_question` do.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from qed.data import tasks
from qed.errors import DataError, UsageError
from qed.evaluation.few_shot import add_exemplars, parse_shots
from qed.types import Problem

# Exemplars, the task with its file, how many problems, and the hash of the source's prompts joined by NUL.
PROMPTS = [
    ("gsm8k", "gsm8k:test@gsm8k/test.jsonl", 1319, "84119a05b6c77e92"),
    ("gsm8k_cot", "gsm8k:test@gsm8k/test.jsonl", 1319, "9a08edd9368fad0c"),
    ("minerva_math", "minerva:test@qwen_eval/minerva_math.jsonl", 50, "9381acd1867ac9c3"),
    ("mmlu", "mmlu:test@mmlu/test", 100, "e1a0b4e8025a0fb6"),
    ("qwen_gsm8k", "gsm8k:test@gsm8k/test.jsonl", 1319, "005754bceff0b2b4"),
    ("qwen_math", "gsm8k:test@gsm8k/test.jsonl", 1319, "deab2c72e72cf2bf"),
    ("qwen_choices", "mmlu:test@mmlu/test", 100, "e74de9063cf0b0c6"),
    ("qwen_choices_cot", "mmlu:test@mmlu/test", 100, "94e4ceb0fadc559e"),
    ("qwen_aqua", "mmlu:test@mmlu/test", 100, "02b0b96030966d7a"),
]
PROBLEM = Problem("p", "How many?", "1")


def load(shared: Path, task: str, count: int) -> tuple[str, list[Problem]]:
    name, _, path = task.partition("@")
    task = f"{name}@{shared / 'data' / path}"
    return task, tasks.load_task(task, "test", {}, Counter(), {})[:count]


@pytest.mark.parametrize(("name", "task", "count", "digest"), PROMPTS, ids=[name for name, *_ in PROMPTS])
def test_prompts_are_those_of_their_source(shared: Path, name: str, task: str, count: int, digest: str) -> None:
    shots = parse_shots(name, None)
    assert shots is not None
    asked = add_exemplars(*load(shared, task, count), shots)
    assert len(asked) == count
    text = "\x00".join(str(problem.meta["rendered"]) for problem in asked)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_a_task_has_its_own_examples_and_any_number_of_them(shared: Path) -> None:
    task, problems = load(shared, PROMPTS[0][1], 2)
    for count in (0, 1, 3):
        shots = parse_shots("", count)
        assert shots is not None
        prompts = [str(problem.meta["rendered"]) for problem in add_exemplars(task, problems, shots)]
        assert [prompt.count("Question: ") for prompt in prompts] == [count + 1] * 2
        assert all(
            prompt.endswith(f"Question: {each.question}\nAnswer:")
            for prompt, each in zip(prompts, problems, strict=True)
        )
    assert parse_shots("", None) is None


def test_sat_math_has_the_multiple_choice_examples_of_qwen(shared: Path) -> None:
    task, problems = load(shared, "sat_math:test@qwen_eval/sat_math.jsonl", 1)
    shots = parse_shots("", 2)
    assert shots is not None
    (asked,) = add_exemplars(task, problems, shots)
    text = str(asked.meta["rendered"])
    assert (text.count("Answer Choices: (A) "), text.count("<|im_start|>user\n")) == (3, 1)
    assert text.endswith("(D) $f(0)=-6$<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("exemplars", "count", "words"),
    [
        ("gsm8k_kot", None, "Did you mean 'gsm8k_cot'"),
        ("gsm8k", -1, "must not be negative"),
        ("gsm8k_cot", 9, "There are 8 exemplars"),
        ("", 5, "has no standard exemplars"),
        ("mmlu", None, "needs multiple-choice questions"),
        ("qwen_choices", None, "needs multiple-choice questions"),
        ("qwen_math", 6, "There are 5 exemplars"),
    ],
)
def test_what_cannot_be_shown_is_refused(exemplars: str, count: int | None, words: str) -> None:
    def ask() -> None:
        shots = parse_shots(exemplars, count)
        assert shots is not None
        add_exemplars("svamp:all", [PROBLEM], shots)

    with pytest.raises(UsageError, match=words):
        ask()


def test_without_its_training_file_gsm8k_has_no_examples(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "?", "answer": "#### 1"}))
    shots = parse_shots("", 5)
    assert shots is not None
    with pytest.raises(DataError, match=r"train\.jsonl: add @PATH"):
        add_exemplars(f"gsm8k:test@{tmp_path / 'test.jsonl'}", [PROBLEM], shots)
