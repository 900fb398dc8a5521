"""A problem as a row of each schema that other programs read; what is written is read back as the same problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qed.data.prompts.base import find_demonstration
from qed.data.sources import choices, fields, schemas
from qed.data.sources.fields import SkippedRow
from qed.data.sources.rows import Place, Row
from qed.data.tools.prompting import build_messages
from qed.types import Problem

PLAIN = ("jsonl", "csv", "parquet")
# Columns that say of a row what it is; in `meta` they are what is left of another schema, and would mislead a reader.
MEANT = {
    name.casefold()
    for name in (
        *(*schemas.QUESTION, *schemas.ANSWER, *schemas.SOLUTION, *schemas.TRACE, *schemas.GENERATIONS),
        *("messages", "conversations", "instruction", "input", "output", "choices", "options", "chosen", "rejected"),
        *("reward_model", "target", "body", "context", "Correct Answer", "A", "B", "C", "D", "answerKey", "text"),
        *("completion", "k"),
    )
}

# What we read from verl's `extra_info`, or write there anew.
READ = ("question", "solution", "subject", "level", "split", "index")


@dataclass(frozen=True)
class Layout:
    """What rows are made with.

    Attributes:
        schema: one of `SCHEMAS`.
        leaf: the prompt whose messages and demonstrations are written.
        source: the task's name, for problems that do not know where they come from.
        split: of the rows, for verl.
        columns: what is kept of every problem's `meta`, the same for all rows of a file.
    """

    schema: str
    leaf: Any
    source: str
    split: str = "train"
    columns: tuple[str, ...] = field(default_factory=tuple)

    def build_row(self, index: int, problem: Problem) -> Row:
        """A problem as a row of the schema.

        Raises:
            LeftOut: the schema cannot hold it; the reason is counted.
        """
        row = SCHEMAS[self.schema](self, index, problem)
        try:
            again = fields.build_problem(schemas.read_fields(row, Place("", index)), row, "")
        except Exception as error:
            raise SkippedRow(f"problems that cannot be written as {self.schema}") from error
        if again.answer != problem.answer or (self.schema != "trl" and again.question != problem.question):
            raise SkippedRow(f"problems whose question or answer would read otherwise as {self.schema}")
        return row

    def find_demonstration(self, problem: Problem) -> str | None:
        """The demonstration, as the data gives it or as the prompt writes it."""
        return find_demonstration(self.leaf, problem)

    def list_kept_columns(self, problem: Problem) -> dict[str, Any]:
        """The columns of `meta` that the file has; of verl's further columns those that no column of ours has."""
        kept = {name: problem.meta.get(name) for name in self.columns}
        if "extra_info" in kept:
            kept["extra_info"] = _list_further_columns(problem) or None
        return kept


def list_extra_columns(problems: list[Problem], simple: bool) -> tuple[str, ...]:
    """The columns of `meta` that rows can keep: those that do not say what a row is.

    Args:
        problems: of a file.
        simple: only columns of numbers and texts, of one kind each, which every table can hold.
    """
    kinds: dict[str, set[type]] = {}
    for problem in problems:
        for name, value in problem.meta.items():
            if name.casefold() not in MEANT and value is not None:
                kinds.setdefault(name, set()).add(type(value))
    if simple:
        kinds = {name: kind for name, kind in kinds.items() if len(kind) == 1 and kind <= {str, int, float, bool}}
    return tuple(sorted(kinds))


def _build_plain(layout: Layout, index: int, problem: Problem) -> Row:
    """Our own words as columns: question, answer, solution, what is imitated as it stands, and what else is known."""
    row: Row = {"question": problem.question, "answer": problem.answer, "solution": problem.solution}
    chosen, rejected = problem.meta.get("chosen"), problem.meta.get("rejected")
    if chosen is not None and rejected is not None:
        return {"prompt": problem.question, "chosen": chosen, "rejected": rejected, **layout.list_kept_columns(problem)}
    if problem.meta.get("completion"):
        row["generated_solution"] = problem.meta["completion"]
    stem = _strip_options(problem) if layout.schema != "csv" else ""
    if stem:
        row = {"question": stem, "choices": list(problem.meta["choices"]), "answer": problem.answer}
    return {**row, **layout.list_kept_columns(problem)}


def _strip_options(problem: Problem) -> str:
    """The question of a multiple choice without its options, where they were written below it; else empty."""
    texts = problem.meta.get("choices") or ()
    if not texts or problem.solution or problem.meta.get("completion"):
        return ""
    listed = choices.build_fields("", texts, "", ()).question.rstrip()
    return problem.question.removesuffix(listed) if problem.question.endswith(listed) else ""


def _build_gsm8k(layout: Layout, index: int, problem: Problem) -> Row:
    """The answer behind the worked solution, after four hashes."""
    if not problem.answer:
        raise SkippedRow("problems without an answer")
    solution = problem.solution or problem.meta.get("completion", "")
    return {"question": problem.question, "answer": f"{solution}\n#### {problem.answer}"}


def _build_verl(layout: Layout, index: int, problem: Problem) -> Row:
    """verl's row. `extra_info` keeps the bare question, as verl's own do, and what else the problem knows."""
    if not problem.answer:
        raise SkippedRow("problems without an answer")
    known = {
        name: value for name, value in layout.list_kept_columns(problem).items() if name not in ("source", "ability")
    }
    return {
        "data_source": str(problem.meta.get("source") or layout.source),
        "prompt": build_messages(layout.leaf, problem),
        "ability": str(problem.meta.get("ability") or "math"),
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            **_list_further_columns(problem),
            **known,
            "question": problem.question,
            "solution": problem.solution,
            "split": layout.split,
            "index": index,
        },
    }


def _list_further_columns(problem: Problem) -> dict[str, Any]:
    """What data made for verl knows of a problem beyond what we read from it."""
    info = problem.meta.get("extra_info")
    return {key: value for key, value in info.items() if key not in READ} if isinstance(info, dict) else {}


def _build_luffy(layout: Layout, index: int, problem: Problem) -> Row:
    """verl's row with a worked trace, or null."""
    shown = layout.find_demonstration(problem)
    target = None if shown is None else [{"role": "assistant", "content": shown}]
    return {**_build_verl(layout, index, problem), "target": target}


def _build_trl(layout: Layout, index: int, problem: Problem) -> Row:
    """TRL's prompt and completion, as messages or as text like the prompt; the answer is there for a reward."""
    chat, shown = layout.leaf.CHAT, layout.find_demonstration(problem)
    prompt: Any = build_messages(layout.leaf, problem) if chat else layout.leaf.render(problem, None)
    reply: Any = [{"role": "assistant", "content": shown}] if chat and shown is not None else shown
    return {"prompt": prompt, "completion": reply, "answer": problem.answer}


SCHEMAS: Mapping[str, Callable[[Layout, int, Problem], Row]] = {
    **dict.fromkeys(PLAIN, _build_plain),
    "gsm8k": _build_gsm8k,
    "verl": _build_verl,
    "luffy": _build_luffy,
    "trl": _build_trl,
}
