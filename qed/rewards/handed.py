"""Explain which arguments user-defined reward functions receive, and reject those that need a missing data column.

The functions live in worker processes, which describe them as JSON; the caller has the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qed.errors import UsageError
from qed.rewards.forms.calling import explain_missing, list_named, list_needed
from qed.rewards.forms.golds import is_gold, list_gold_parameters, name_golds, reads_mathematics
from qed.rewards.forms.verl import MANY, TEXTS
from qed.types import Problem

Description = dict[str, Any]

# Arguments that each form offers besides the correct answer and the data's columns.
OFFERED = {
    "TRL": ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "question"),
    "verl": ("prompt", "data_source", "extra_info", *TEXTS, *MANY),
    "OpenRLHF": ("queries", "prompts", "labels"),
}
SHOWN_CHARACTERS = 60


def describe_function(
    name: str, form: str, function: Callable[..., Any] | None, source: str, conversational: bool = False
) -> Description:
    """Describe a user-defined function: required parameters, those for the correct answer, whether it gets messages."""
    if form == "qed" or function is None:
        return {"name": name, "form": form, "source": source}
    return {
        "name": name,
        "form": form,
        "source": source,
        "needs": list_needed(function),
        "golds": list_gold_parameters(function),
        "boxed": reads_mathematics(function),
        "messages": form == "TRL" and conversational,
        "many": form == "verl" and not MANY.isdisjoint(list_named(function)),
    }


def explain_functions(functions: Sequence[Description], problems: Sequence[Problem]) -> list[str]:
    """Return sentences about user-defined rewards: those of each file, and the correct answer that each one receives.

    Raises:
        UsageError: a function needs a column that no problem has.
    """
    lines = []
    for source in dict.fromkeys(one["source"] for one in functions if one["source"]):
        names = [one["name"] for one in functions if one["source"] == source]
        if len(names) > 1:
            lines.append(
                f"{source} has {len(names)} rewards, and all are summed: {', '.join(names)}. "
                f"To use only one, write {source}:{names[0]}."
            )
    for one in functions:
        if one["form"] in OFFERED and problems:
            _require_columns(one, problems)
            lines += [*_describe_golds(one, problems[0]), *_describe_messages(one)]
    return lines


def _describe_messages(one: Description) -> list[str]:
    """Return a sentence about completions that are lists of messages, in which code for strings finds nothing."""
    if not one.get("messages"):
        return []
    return [
        f"The reward {one['name']} (TRL) gets each completion as a list of messages, because the prompt has a chat "
        'template: its text is completion[0]["content"].'
    ]


def _require_columns(one: Description, problems: Sequence[Problem]) -> None:
    columns = dict.fromkeys(key for problem in problems for key in problem.meta)
    offered = dict.fromkeys((*OFFERED[one["form"]], "answer", "ground_truth", "solution", *columns))
    for name in one["needs"]:
        singular = one["many"] and name.removesuffix("s") in offered
        if name not in offered and not is_gold(name) and not singular:
            raise UsageError(explain_missing(one["name"], name, offered))


def _describe_golds(one: Description, problem: Problem) -> list[str]:
    """Return a sentence about the correct answer that a function receives, with that of the first problem."""
    golds = dict.fromkeys(one["golds"] if one["form"] != "OpenRLHF" else ["labels"])
    if not golds:
        return []
    values = name_golds(golds, problem, one["boxed"]) | {
        name: problem.meta[name] for name in golds if name in problem.meta and name not in ("answer", "solution")
    }
    shown = ", ".join(f"{name} = {_shorten(value)}" for name, value in values.items())
    return [f"The reward {one['name']} ({one['form']}) receives as the correct answer of the first problem: {shown}"]


def _shorten(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else value
    text = " ".join(text.split()) or '""'
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
