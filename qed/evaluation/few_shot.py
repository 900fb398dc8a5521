"""The standard few-shot examples by name, giving the same prompts as lm-eval 0.4.13.

`gsm8k`: rows of GSM8K's train split, five by default; those before the n-th question are the n-th draw of a generator
with seed 1234. `gsm8k_cot`: the eight of Wei et al. 2022 (arXiv 2201.11903) in lm-eval's wording. `minerva_math`: the
four of Lewkowycz et al. 2022 (arXiv 2206.14858). `mmlu`: the five dev questions of the same subject.

Names that start with `qwen` are the examples of Qwen2.5-Math's evaluation (arXiv 2409.12122), in the format of its
prompt types `cot` and, for multiple choice, `qwen25-math-cot`. They keep a defect of its repository: in some commands
a form feed replaces the backslash and the letter after it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.task_names import parse_task
from qed.data import tasks
from qed.errors import DataError, UsageError, suggest_nearest
from qed.evaluation.choice_formats import MMLU_SHOTS, build_items, find_stem, list_labels, require_choices
from qed.rewards.multiple_choice import list_choices
from qed.types import Problem

Pair = tuple[str, str]  # a question and its worked answer
FOLDER = Path(__file__).parent / "exemplars"
SEED = 1234  # lm-eval's for few-shot examples
TURN_ENDS = ("</s>", "<|im_end|>")
QWEN_ENDS = (*TURN_ENDS, "<|endoftext|>")
QWEN_TURN = (
    "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{{}}.<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class Exemplars:
    """A set of few-shot examples, and the format of the examples and the question.

    Attributes:
        task: the benchmark whose default they are; empty for none.
        usual: default number of examples.
        ask: formats a question, up to where its answer begins.
        stop: stop strings of the answer.
        reward: the default reward for grading the answers.
        file: name of their file, if it differs from their own.
        before: text before an answer.
        between: text between examples.
        frame: text around the examples and the question.
        choices: whether the questions have options, which are written on one line.
    """

    task: str
    usual: int
    ask: Callable[[str], str]
    stop: tuple[str, ...]
    reward: str = "accuracy"
    file: str = ""
    before: str = " "
    between: str = "\n\n"
    frame: str = "{}"
    choices: bool = False

    def write(self, pairs: Sequence[Pair], question: str) -> str:
        """Return the prompt of a question after few-shot examples."""
        worked = [f"{self.ask(asked)}{self.before}{answer}" for asked, answer in pairs]
        return self.frame.format(self.between.join([*worked, self.ask(question)]))


ASK = "Question: {}\nAnswer:".format
QWEN = Exemplars("", 8, ASK, ("\n\nQuestion:", *QWEN_ENDS), file="gsm8k_cot", between="\n\n\n")
QWEN_CHOICES = Exemplars("sat_math", 5, str, QWEN_ENDS, "multiple_choice", "", "\n", "\n\n", QWEN_TURN, choices=True)
EXEMPLARS = {
    "gsm8k": Exemplars("gsm8k", 5, ASK, ("Question:", *TURN_ENDS)),
    "gsm8k_cot": Exemplars("", 8, "Q: {}\nA:".format, ("Q:", *TURN_ENDS)),
    "minerva_math": Exemplars("math", 4, "Problem:\n{}\n\nSolution:".format, ("Problem:",)),
    "mmlu": Exemplars("mmlu", 5, str, ("\n",), "multiple_choice"),
    "qwen_gsm8k": QWEN,
    "qwen_math": replace(QWEN, usual=4, file=""),
    "qwen_choices": QWEN_CHOICES,
    "qwen_choices_cot": replace(QWEN, usual=5, file="qwen_choices", reward="multiple_choice", choices=True),
    "qwen_aqua": replace(QWEN_CHOICES, task="", usual=4),
}


@dataclass(frozen=True)
class Shots:
    """The requested examples: their name (empty for the task's own), the path of their data, and their number.

    A count of None means the default number.
    """

    name: str = ""
    path: str = ""
    count: int | None = None


def parse_shots(exemplars: str, count: int | None) -> Shots | None:
    """Parse `--exemplars NAME[@PATH]` and `--shots N`; return None if neither is given.

    Raises:
        UsageError: there are no such exemplars, or the number is negative.
    """
    if not exemplars and count is None:
        return None
    name, _, path = exemplars.partition("@")
    if name and name not in EXEMPLARS:
        raise UsageError(
            f"There are no exemplars '{name}'.{suggest_nearest(name, EXEMPLARS)} There are: {', '.join(EXEMPLARS)}."
        )
    if count is not None and count < 0:
        raise UsageError("--shots must not be negative.")
    return Shots(name, path, count)


def find_exemplars(task: str, shots: Shots) -> tuple[str, Exemplars, int]:
    """Return the exemplars of a task: their name, the set, and the number to use.

    Raises:
        UsageError: none are named, and the task has no standard ones.
    """
    leaf = parse_task(task).leaf
    name = shots.name or next((name for name, each in EXEMPLARS.items() if each.task == leaf), "")
    if not name:
        raise UsageError(
            f"{task} has no standard exemplars: name some with --exemplars, such as gsm8k_cot. There are: "
            f"{', '.join(EXEMPLARS)}."
        )
    chosen = EXEMPLARS[name]
    return name, chosen, chosen.usual if shots.count is None else shots.count


def add_exemplars(task: str, problems: Sequence[Problem], shots: Shots) -> list[Problem]:
    """Return the problems with few-shot prompts, in the order of the benchmark's file.

    Raises:
        UsageError: the task has no standard exemplars, or fewer than asked for.
        DataError: the data of the exemplars cannot be loaded.
    """
    name, chosen, count = find_exemplars(task, shots)
    if name == "mmlu":
        return _add_dev_questions(task, problems, shots.path, count)
    if chosen.choices:
        require_choices(task, problems)
    pairs = _load_training_pairs(task, shots.path) if name == "gsm8k" else _read_pairs(chosen.file or name)
    if count > len(pairs):
        raise UsageError(f"There are {len(pairs)} exemplars {name}, and --shots asks for {count}.")
    source = random.Random(SEED)
    rendered = []
    for problem in problems:
        drawn = source.sample(pairs, count) if name == "gsm8k" else pairs[:count]
        question = _list_in_line(problem) if chosen.choices else problem.question
        rendered.append(_render(problem, chosen.write(drawn, question)))
    return rendered


def _list_in_line(problem: Problem) -> str:
    """Return a question with its options on one line, in the format of Qwen2.5-Math's evaluation."""
    options = list_choices(problem)
    listed = " ".join(f"({label}) {each.strip()}" for label, each in zip(list_labels(problem), options, strict=True))
    return f"{find_stem(problem, options).strip()}\nAnswer Choices: {listed}".strip()


def _render(problem: Problem, text: str) -> Problem:
    return replace(problem, meta={**problem.meta, "rendered": text})


def _read_pairs(name: str) -> list[Pair]:
    rows: list[dict[str, str]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return [(row["question"], row["answer"]) for row in rows]


def _load_training_pairs(task: str, path: str) -> list[Pair]:
    """Load the questions and answers of GSM8K's train split unchanged, including calculator annotations."""
    path = path or _find_sibling(parse_task(task).path)
    originals: dict[str, Any] = {}
    problems = plugins.load_leaf("tasks", "gsm8k").read("train", path, originals=originals)
    rows = [originals[problem.id][0] for problem in problems]
    return [(str(row["question"]), str(row["answer"])) for row in rows]


def _find_sibling(path: str) -> str:
    """Return the training file next to a test file; empty if the task is loaded from the hub."""
    if not path:
        return ""
    place = Path(path)
    sibling = place if place.is_dir() else place.with_name(place.name.replace("test", "train"))
    if sibling.exists() and (place.is_dir() or sibling != place):
        return str(sibling)
    raise DataError(f"The exemplars gsm8k are rows of the train split, and there is no {sibling}: add @PATH to them.")


def _add_dev_questions(task: str, problems: Sequence[Problem], path: str, count: int) -> list[Problem]:
    require_choices(task, problems)
    place = path or _find_dev(parse_task(task).path)
    name = f"mmlu:{MMLU_SHOTS}" + (f"@{place}" if place else "")
    examples = tasks.load_task(name, MMLU_SHOTS, {}, Counter(), {}) if count else []
    items = build_items(task, problems, examples, count)
    return [_render(item.problem, item.context) for item in items]


def _find_dev(path: str) -> str:
    """Return the path of the dev questions: the folder `dev` next to the folder `test` of the original files."""
    place = Path(path) if path else None
    if place is not None and place.name == "test" and (dev := place.with_name(MMLU_SHOTS)).is_dir():
        return str(dev)
    return path
