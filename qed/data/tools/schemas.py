"""Write problems as rows in the schemas of other programs, so that reading a row returns the same problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qed.data.prompts.demonstrations import find_demonstration, list_traces
from qed.data.sources import choices, conversations, fields, schemas
from qed.data.sources.fields import SkippedRow
from qed.data.sources.rows import Place, Row
from qed.data.tools.prompting import build_messages
from qed.types import Problem

PLAIN = ("jsonl", "csv", "parquet")
# Columns that determine the schema of a row; in `meta` they are from another schema and would mislead a reader.
SCHEMA_COLUMNS = {
    name.casefold()
    for name in (
        *(*schemas.QUESTION, *fields.ANSWER, *schemas.SOLUTION, *schemas.TRACE, *schemas.GENERATIONS),
        *("messages", "conversations", "instruction", "input", "output", "choices", "options", "chosen", "rejected"),
        *("reward_model", "target", "body", "context", "Correct Answer", "A", "B", "C", "D", "answerKey", "text"),
        *("completion", "adapt", "rendered", "k"),
    )
}

# Keys of verl's `extra_info` that qed reads or overwrites.
READ = ("question", "solution", "subject", "level", "split", "index")


@dataclass(frozen=True)
class Layout:
    """The parameters for building rows.

    Attributes:
        schema: one of `SCHEMAS`.
        leaf: the prompt of the messages and demonstrations.
        source: the task's name, for problems without a source.
        split: split of the rows, for verl.
        columns: keys of `meta` to keep as columns, the same for all rows of a file.
    """

    schema: str
    leaf: Any
    source: str
    split: str = "train"
    columns: tuple[str, ...] = field(default_factory=tuple)

    def build_row(self, index: int, problem: Problem) -> Row:
        """Build a row of the schema from a problem.

        Raises:
            SkippedRow: the problem does not fit the schema; the reason is counted.
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
        """Return the demonstration from the data or from the prompt."""
        return find_demonstration(self.leaf, problem)

    def list_kept_columns(self, problem: Problem) -> dict[str, Any]:
        """Return the columns of `meta` for the file; from verl's `extra_info`, only keys without another column."""
        kept = {name: problem.meta.get(name) for name in self.columns}
        if "extra_info" in kept:
            kept["extra_info"] = _list_further_columns(problem) or None
        return kept


def list_extra_columns(problems: Sequence[Problem], simple: bool) -> tuple[str, ...]:
    """List the columns of `meta` that rows can keep: those that do not determine the schema.

    Args:
        problems: the problems of a file.
        simple: list only columns with numbers or texts of a single type, which fit into any table.
    """
    kinds: dict[str, set[type]] = {}
    for problem in problems:
        for name, value in problem.meta.items():
            if name.casefold() not in SCHEMA_COLUMNS and value is not None:
                kinds.setdefault(name, set()).add(type(value))
    if simple:
        kinds = {name: kind for name, kind in kinds.items() if len(kind) == 1 and kind <= {str, int, float, bool}}
    return tuple(sorted(kinds))


def _build_plain(layout: Layout, index: int, problem: Problem) -> Row:
    """Build a row of qed's plain schema: question, answer, solution, complete demonstration, and columns of `meta`."""
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
    """Return a multiple-choice question without the options at its end; empty if it has none there."""
    texts = problem.meta.get("choices") or ()
    if not texts or problem.solution or problem.meta.get("completion"):
        return ""
    listed = choices.build_fields("", texts, "", ()).question.rstrip()
    return problem.question.removesuffix(listed) if problem.question.endswith(listed) else ""


def _build_gsm8k(layout: Layout, index: int, problem: Problem) -> Row:
    """Build a GSM8K row: the answer follows the worked solution after four hashes."""
    if not problem.answer:
        raise SkippedRow("problems without an answer")
    if "," in problem.answer:  # programs that read GSM8K remove commas
        raise SkippedRow("problems whose question or answer would read otherwise as gsm8k")
    solution = problem.solution or problem.meta.get("completion", "")
    return {"question": problem.question, "answer": f"{solution}\n#### {problem.answer}"}


def _build_verl(layout: Layout, index: int, problem: Problem) -> Row:
    """Build a verl row; `extra_info` has the bare question, as in verl's own data, and the problem's other columns."""
    if not problem.answer:
        raise SkippedRow("problems without an answer")
    columns = {
        name: value for name, value in layout.list_kept_columns(problem).items() if name not in ("source", "ability")
    }
    return {
        "data_source": str(problem.meta.get("source") or layout.source),
        "prompt": build_messages(layout.leaf, problem),
        "ability": str(problem.meta.get("ability") or "math"),
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            **_list_further_columns(problem),
            **columns,
            "question": problem.question,
            "solution": problem.solution,
            "split": layout.split,
            "index": index,
        },
    }


def _list_further_columns(problem: Problem) -> dict[str, Any]:
    """Return the keys of verl's `extra_info` that qed does not read."""
    info = problem.meta.get("extra_info")
    return {key: value for key, value in info.items() if key not in READ} if isinstance(info, dict) else {}


def _build_luffy(layout: Layout, index: int, problem: Problem) -> Row:
    """Build a LUFFY row: verl's row with a demonstration or null, and with all demonstrations if there are several.

    Token probabilities belong to the original text, so they are kept only with it.
    """
    text = layout.find_demonstration(problem)
    row = {
        **_build_verl(layout, index, problem),
        "target": None if text is None else [{"role": "assistant", "content": text}],
    }
    traces = (replace(problem, meta={**problem.meta, "completion": each}) for each in list_traces(problem))
    if texts := [each for each in map(layout.find_demonstration, traces) if each]:
        row[conversations.TRACES] = texts
    if text == problem.meta.get("completion") and (known := problem.meta.get("trace_probabilities")):
        row[conversations.PROBABILITIES] = list(known)
    return row


def _build_trl(layout: Layout, index: int, problem: Problem) -> Row:
    """Build a TRL row with prompt and completion, both as messages or both as text; the answer is for a reward."""
    chat, text = layout.leaf.CHAT, layout.find_demonstration(problem)
    prompt: Any = build_messages(layout.leaf, problem) if chat else layout.leaf.render(problem, None)
    reply: Any = [{"role": "assistant", "content": text}] if chat and text is not None else text
    return {"prompt": prompt, "completion": reply, "answer": problem.answer}


SCHEMAS: Mapping[str, Callable[[Layout, int, Problem], Row]] = {
    **dict.fromkeys(PLAIN, _build_plain),
    "gsm8k": _build_gsm8k,
    "verl": _build_verl,
    "luffy": _build_luffy,
    "trl": _build_trl,
}
