"""The answers of a group side by side, and one answer with its tokens and their signals."""

from __future__ import annotations

from typing import Any

from qed.grading.extraction.marks import Tags
from qed.guards.redaction import redact
from qed.runs.run import Row
from qed.viewer.cleaning import clean_value
from qed.viewer.details import load_settings
from qed.viewer.library import Library
from qed.viewer.params import Params, Refused
from qed.viewer.replies import find_neighbours
from qed.viewer.steps import describe_group, find_stats, list_cells
from qed.viewer.texts import build_answer_pieces, build_pieces, cut_text, read_tags
from qed.viewer.tokens import describe_tokens
from qed.viewer.where import Where, find_where

MAX_SHOWN = 512  # answers of a group side by side
MAX_CHARACTERS = 4_000_000  # of all texts of a group together


def read_group(library: Library, params: Params) -> dict[str, Any]:
    """Return all answers of one problem of a step.

    Args:
        library: the runs.
        params: those of `read_step`, and `group`, the group's number.

    Raises:
        Refused: there is no such group.
    """
    where, number = find_where(library, params), params.number("group")
    rows = where.read_rows(number, texts_only=True)
    cells, tags = list_cells(where, number), read_tags(load_settings(where.place))
    first = rows[0] if rows else {}
    numbers = where.list_groups()
    shown, left = [], MAX_CHARACTERS
    for place, row in enumerate(rows[:MAX_SHOWN]):
        shown.append(_describe_answer(row, cells[place], tags, left))
        left = max(0, left - len(shown[-1]["text"]))
    return {
        "where": where.describe(),
        "group": _describe_problem(where, number, first),
        "answers": shown,
        "left_out": max(0, len(rows) - MAX_SHOWN),
        **find_neighbours(numbers, numbers.index(number)),
    }


def read_answer(library: Library, params: Params) -> dict[str, Any]:
    """Return one answer with its tokens, their texts and signals.

    Args:
        library: the runs.
        params: those of `read_group`, and `answer`, the answer's number within the group.

    Raises:
        Refused: there is no such answer.
    """
    where, number, at = find_where(library, params), params.number("group"), params.number("answer")
    row, count = select_row(where, number, at)
    tags = read_tags(load_settings(where.place))
    problem = _describe_problem(where, number, row)
    return {
        "where": where.describe(),
        "group": problem,
        "answer": _describe_answer(row, list_cells(where, number)[at], tags, MAX_CHARACTERS),
        "n_answers": count,
        "prompt": problem["prompt"],
        "prompt_pieces": build_pieces(problem["prompt"], tags),
        "gold_pieces": problem["gold_pieces"],
        **describe_tokens(where.place, row, find_stats(where, number, at)),
    }


def select_row(where: Where, group: int, answer: int, texts_only: bool = False) -> tuple[Row, int]:
    """Return one answer of a group, without its tokens if `texts_only`, and how many answers the group has.

    Raises:
        Refused: there is no such answer.
    """
    rows = where.read_rows(group, texts_only)
    if not 0 <= answer < len(rows):
        raise Refused(404, f"Group {group} of step {where.step} has {len(rows)} answers, but no answer {answer}.")
    return rows[answer], len(rows)


def read_text(row: Row, name: str) -> str:
    """Return a text of a row, without secrets; empty if there is none."""
    value = row.get(name)
    return "" if value is None else redact(str(value))


def _describe_problem(where: Where, number: int, row: Row) -> dict[str, Any]:
    question, prompt, gold = (cut_text(read_text(row, name))[0] for name in ("question", "prompt", "gold"))
    return {
        **describe_group(where, number, where.list_groups().index(number)),
        "question": question,
        "question_pieces": build_pieces(question),
        "gold": gold,
        "gold_pieces": build_answer_pieces(gold),
        "prompt": prompt,
    }


def _describe_answer(row: Row, cells: Row, tags: Tags | None, left: int) -> dict[str, Any]:
    """Return an answer for the page.

    Args:
        row: the answer as the run wrote it.
        cells: its cells in the table of the step.
        tags: the tags of thinking.
        left: how many more characters of the group may be shown.
    """
    whole = read_text(row, "text")
    text, cut = cut_text(whole[:left])
    extracted = None if row.get("extracted") is None else cut_text(read_text(row, "extracted"))[0]
    return {
        **cells,
        "sample_id": clean_value(row.get("sample_id")),
        "parts": clean_value(row.get("parts") or {}),
        "reason": cut_text(read_text(row, "reason"))[0],
        "extracted": extracted,
        "text": text,
        "pieces": build_pieces(text, tags),
        "cut": cut or len(text) < len(whole),
        "turns": list(map(_describe_turn, row.get("turns") or [])),
    }


def _describe_turn(turn: Row) -> Row:
    """Return the text of a turn, the environment's reply, and the turn's reward."""
    return {
        **{name: cut_text(read_text(turn, name))[0] for name in ("text", "reply")},
        "reward": clean_value(turn.get("reward")),
    }
