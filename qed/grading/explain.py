"""Explanation of a verdict, step by step."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from qed.grading.equal import Verdict, equal, read_both
from qed.grading.extract import Extracted, Refusal, find_final_answer
from qed.grading.normalise import clean_text
from qed.grading.policy import MATH, Policy
from qed.grading.reading import Reading
from qed.grading.tree import Node

MAX_BITS_SHOWN = 256
TIERS = {
    "string": "the texts decide",
    "typed": "the values that were read decide",
    "symbolic": "math-verify decides, in a separate process",
    "bound": "refused before any arithmetic",
    "timeout": "math-verify took too long",
    "error": "math-verify failed",
    "unknown": "no tier can read it",
    "extract": "nothing was compared",
}


def explain(gold: str, answer: str, policy: Policy = MATH, as_json: bool = False) -> str:
    """Explain how a gold answer and an answer are parsed, and which tier decides."""
    verdict = equal(gold, answer, policy)
    sides = {"gold": gold, "answer": answer}
    read = {
        side: _describe_reading(text, reading)
        for (side, text), reading in zip(sides.items(), read_both(gold, answer), strict=True)
    }
    if as_json:
        return json.dumps({**read, "correct": verdict.correct, "tier": verdict.tier, "reason": verdict.reason})
    lines = [line for side in read for line in _format_side(side, read[side])]
    return "\n".join([*lines, *_format_decision(verdict)])


def explain_response(gold: str, text: str, mode: str = "flexible", policy: Policy = MATH, as_json: bool = False) -> str:
    """Explain a verdict on an answer or a response: what is extracted, or why nothing is, and how it is compared.

    A text that equals the gold answer, or that contains nothing but an answer, is explained as an answer.
    """
    found = find_final_answer(text, mode)
    answer = found.answer if isinstance(found, Extracted) else ""
    if answer == text.strip() or len(text.split()) < 2 or equal(gold, text, policy).correct:
        return explain(gold, text, policy, as_json)
    if isinstance(found, Refusal):
        if as_json:
            return json.dumps({"response": text, "correct": False, "tier": "extract", "reason": found.reason})
        verdict = Verdict(False, "extract", found.reason)
        return "\n".join([f"{'response':<9}{text}", *_format_decision(verdict)])
    if as_json:
        return json.dumps({"response": text, "source": found.source, **json.loads(explain(gold, answer, policy, True))})
    return f"{'response':<9}{text}\n  {'extracted':<14}{answer} ({found.source})\n{explain(gold, answer, policy)}"


def _describe_reading(text: str, reading: Reading) -> dict[str, Any]:
    return {
        "text": text,
        "cleaned": clean_text(text),
        "tokens": reading.key,
        "choice": reading.choice,
        "values": [format_node(value) for value in reading.values],
        "trouble": reading.trouble,
    }


def _format_side(name: str, read: dict[str, Any]) -> list[str]:
    rows = [
        ("cleaned", read["cleaned"]),
        ("tokens", read["tokens"]),
        ("choice letter", read["choice"]),
        *(("value" if number == 0 else "or", value) for number, value in enumerate(read["values"])),
        ("not read", read["trouble"]),
    ]
    return [f"{name:<8}{read['text']}", *(f"  {label:<14}{value}" for label, value in rows if value)]


def _format_decision(verdict: Verdict) -> list[str]:
    return [
        f"{'verdict':<8}{'right' if verdict.correct else 'wrong'}",
        f"  {'tier':<14}{verdict.tier}: {TIERS[verdict.tier]}",
        f"  {'reason':<14}{verdict.reason}",
    ]


def format_node(node: Node) -> str:
    """Format a typed value as nested words: add(1, divide(x, 2))."""
    if node.kind == "number":
        return _format_number(node.number)
    label = node.name if node.kind in {"symbol", "constant", "text"} else f"{node.kind} {node.name}".strip()
    return f"{label}({', '.join(map(format_node, node.parts))})" if node.parts else label


def _format_number(value: Fraction) -> str:
    """Format the exact number, or its size if it is very long."""
    bits = value.numerator.bit_length() + value.denominator.bit_length()
    return str(value) if bits <= MAX_BITS_SHOWN else f"an exact number of {bits} bits"
