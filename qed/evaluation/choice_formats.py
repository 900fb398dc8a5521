"""Contexts and choices for scoring multiple-choice questions, in the formats of lm-eval 0.4.13: MMLU, ARC and GPQA.

Each choice continues the context after a space. MMLU and GPQA list the options, and the choices are their letters; in
ARC the choices are the texts of the options, so its accuracy is also reported normalized by length (acc_norm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qed.config.task_names import parse_task
from qed.data.sources.choices import LETTERS
from qed.errors import DataError, UsageError
from qed.rewards.multiple_choice import list_choices
from qed.types import Problem

DELIMITER = " "  # between a context and a choice
BETWEEN_SHOTS = "\n\n"
MMLU_SHOTS = "dev"  # the split with the few-shot examples, five per subject


@dataclass(frozen=True)
class ChoiceFormat:
    """How a question becomes a context, and its options the choices that continue it.

    `by_subject` says whether a sentence about the subject comes before a question, and whether few-shot examples are
    defined: the first questions of the same subject in the split `dev`.
    """

    name: str
    write: Callable[[str, Sequence[str]], str]
    choices: Callable[[Sequence[str]], Sequence[str]]
    by_subject: bool = False


@dataclass(frozen=True)
class ChoiceItem:
    """A question to score: its context, the choices without the space before them, and the index of the right one."""

    problem: Problem
    context: str
    choices: tuple[str, ...]
    gold: int


def _write_mmlu(question: str, options: Sequence[str]) -> str:
    listed = "".join(f"{letter}. {option}\n" for letter, option in zip(LETTERS, options, strict=False))
    return f"{question.strip()}\n{listed}Answer:"


def _write_arc(question: str, options: Sequence[str]) -> str:
    return f"Question: {question}\nAnswer:"


def _write_gpqa(question: str, options: Sequence[str]) -> str:
    listed = "".join(f"({letter}) {_clean_gpqa(each)}\n" for letter, each in zip(LETTERS, options, strict=False))
    return f"What is the correct answer to this question:{question}\nChoices:\n{listed}Answer:"


def _clean_gpqa(option: str) -> str:
    return option.strip().replace(" [title]", ". ").replace("  ", " ")


def _list_letters(options: Sequence[str]) -> Sequence[str]:
    return LETTERS[: len(options)]


def _list_bracketed(options: Sequence[str]) -> Sequence[str]:
    return [f"({letter})" for letter in LETTERS[: len(options)]]


MMLU = ChoiceFormat("mmlu", _write_mmlu, _list_letters, by_subject=True)
ARC = ChoiceFormat("arc", _write_arc, lambda options: options)
GPQA = ChoiceFormat("gpqa", _write_gpqa, _list_bracketed)
FORMATS: Mapping[str, ChoiceFormat] = {"arc_c": ARC, "arc_e": ARC, "gpqa": GPQA}  # all others use the MMLU format


def find_format(task: str) -> ChoiceFormat:
    """Return the format of a task by its name."""
    return FORMATS.get(parse_task(task).leaf, MMLU)


def require_choices(task: str, problems: Sequence[Problem]) -> None:
    """Raise if a problem of a task has no options, or its gold answer is not one of their letters.

    Raises:
        UsageError: the task is not multiple choice; the message names the first problem without options.
    """
    for problem in problems:
        options = list_choices(problem)
        if len(options) < 2 or problem.answer not in list_labels(problem):
            raise UsageError(
                f"This evaluation needs multiple-choice questions, but problem {problem.id} of {task} has no options "
                "with the letter of the right one. Use mmlu, arc_c, arc_e, gpqa, or a file with the columns question, "
                "choices and answer."
            )


def build_items(task: str, problems: Sequence[Problem], examples: Sequence[Problem], shots: int) -> list[ChoiceItem]:
    """Build the items of a task in the order of its problems.

    Args:
        task: its name, which decides the format.
        problems: with their options in `meta["choices"]`, see `require_choices`.
        examples: the few-shot examples of all subjects, in order.
        shots: number of few-shot examples of the same subject before each question.

    Raises:
        UsageError: the format defines no few-shot examples.
        DataError: a subject has fewer examples than asked for.
    """
    form = find_format(task)
    if shots and not form.by_subject:
        raise UsageError(f"--shots with --scoring likelihood is for tasks in the MMLU format; {task} takes none.")
    leads = {str(problem.meta.get("subject", "")): "" for problem in problems}
    leads = {subject: _write_lead(form, task, subject, examples, shots) for subject in leads}
    return [_build_item(form, problem, leads[str(problem.meta.get("subject", ""))]) for problem in problems]


def _write_lead(form: ChoiceFormat, task: str, subject: str, examples: Sequence[Problem], shots: int) -> str:
    """Write the text before a question: a sentence about the subject, and the few-shot examples."""
    about = " about " + " ".join(subject.split("_")) if subject else ""
    lead = f"The following are multiple choice questions (with answers){about}.\n\n" if form.by_subject else ""
    own = [problem for problem in examples if str(problem.meta.get("subject", "")) == subject][:shots]
    if len(own) < shots:
        raise DataError(
            f"{task} has {len(own)} worked examples of {subject or 'its subject'}, and --shots asks for {shots}."
        )
    items = (_build_item(form, problem, "") for problem in own)
    return lead + "".join(f"{each.context}{DELIMITER}{each.choices[each.gold]}{BETWEEN_SHOTS}" for each in items)


def _build_item(form: ChoiceFormat, problem: Problem, lead: str) -> ChoiceItem:
    options = list_choices(problem)
    context = lead + form.write(find_stem(problem, options), options)
    return ChoiceItem(problem, context, tuple(form.choices(options)), list_labels(problem).index(problem.answer))


def list_labels(problem: Problem) -> list[str]:
    """Return the labels of a problem's options as in its data: letters, or digits in some questions of ARC."""
    return list(str(problem.meta.get("options", LETTERS)))[: len(list_choices(problem))]


def find_stem(problem: Problem, options: Sequence[str]) -> str:
    """Return the question without the options that `qed.data.sources.choices` has appended to it."""
    listed = "\n".join(f"{label}) {option}" for label, option in zip(list_labels(problem), options, strict=False))
    # The question may have lost whitespace at the end of the last option, which the options still have.
    bare = problem.question.rstrip().removesuffix(f"\n\n{listed}".rstrip())
    published = str(problem.meta.get("stem", ""))
    return published if published.strip() == bare.strip() else bare
