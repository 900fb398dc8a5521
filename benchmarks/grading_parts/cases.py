"""Inputs to grade: labelled cases, the gold answers of public data sets, and random strings."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet  # installed with datasets

from qed.grading.extract import find_last_boxed

Case = dict[str, Any]
HOSTILE = {"adversarial_hang", "injection"}
ANSWERS = ("answer", "Answer", "target", "final_answer")
SIZED = re.compile(r"\\(?:left|right)(?![A-Za-z.])")
PIECES = [
    *"0123456789xyzabcdein+-*/^_=<>()[]{}|,;:!%$&.'\" \n\\",
    *("\\frac", "\\dfrac12", "\\sqrt", "\\sqrt[3]", "\\pm", "\\cup", "\\text{", "\\{", "\\}", "\\%", "\\pi", "\\infty"),
    *("\\sin", "\\log_2", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", " and ", " or ", "\\left(", "\\right)", "\\le"),
    *("\\sum_{k=1}^{9}", "\\int_0^1", "\\boxed{", "<answer>", "</answer>", "####", "answer is ", "^{99}", "1e9", "!"),
    *("\ud800", "\0", "²", "½", "π", "−", "\u202e", "\ufdfa", "٣", "五", "1,000", "0.\\overline{3}", "_{16}", " cm"),
    *(
        "\\mathbb{R}",
        "\\cdot",
        "\\times10^",
        "^\\circ",
        "\\$",
        "x=",
        "\\lim_{x\\to0}",
        "\\binom{9}{3}",
        "**",
        "`",
        "```",
    ),
]


def labelled(file: Path) -> list[Case]:
    """Return the undisputed cases of a file."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [case for case in map(json.loads, lines) if not case.get("debatable")]


def golds(data: Path) -> dict[str, list[str]]:
    """Return the gold answers of each public file, in order."""
    found = {file.stem: list(map(_gold, _rows(file))) for file in sorted((data / "qwen_eval").glob("*.jsonl"))}
    for split in ("train", "test"):
        found[f"gsm8k {split}"] = [_gold(row) for row in _rows(data / "gsm8k" / f"{split}.jsonl")]
    found["luffy"] = list(_luffy(data / "luffy" / "valid.parquet"))
    found["mmlu test"] = [
        row[-1] for file in sorted((data / "mmlu" / "test").glob("*.csv")) for row in csv.reader(file.open())
    ]
    return found


def _rows(file: Path) -> Iterator[Case]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _gold(row: Case) -> str:
    value = next((row[name] for name in ANSWERS if name in row), None)
    if value is None:  # Minerva's answers are in the box of the solution
        return find_last_boxed(row["solution"]) or ""
    if isinstance(value, str) and value.startswith("['"):
        value = ast.literal_eval(value)
    value = value[0] if isinstance(value, list) else value
    return str(value).rpartition("####")[2].strip()


def _luffy(file: Path) -> Iterator[str]:
    for row in parquet.read_table(file, columns=["reward_model"]).to_pylist():
        gold = row["reward_model"]["ground_truth"]
        yield str(gold[0] if isinstance(gold, list) else gold)


def cosmetic(gold: str) -> list[Case]:
    """Return pairs of a gold answer and itself, also as a model would write it; only the first has equal strings."""
    bare = gold[1:-1] if gold.count("$") == 2 and gold.startswith("$") and gold.endswith("$") else gold
    wrapped = f"So we are done.\n\nThe final answer is $\\boxed{{{bare}}}$."
    edited = SIZED.sub("", gold.replace("\\frac", "\\dfrac"))
    return [
        {"gold": gold, "prediction": gold},
        {"gold": gold, "prediction": wrapped, "kind": "response"},
        {"gold": gold, "prediction": f" ${edited}$ "},
    ]


def pairs(pool: list[str], count: int) -> list[Case]:
    """Return random pairs of gold answers with different strings."""
    draw = random.Random(2)
    different = sorted(set(pool))
    drawn = (draw.sample(different, 2) for _ in range(count))
    return [{"gold": one, "prediction": other} for one, other in drawn]


def strange(pool: list[str], count: int) -> list[str]:
    """Return strings: half are random pieces of mathematics, half are gold answers with some bytes changed."""
    draw = random.Random(3)
    made = ["".join(draw.choices(PIECES, k=draw.randint(1, 60))) for _ in range(count // 2)]
    return made + [_mutated(draw.choice(pool), draw) for _ in range(count - len(made))]


def _mutated(text: str, draw: random.Random) -> str:
    raw = bytearray(text.encode("utf-8", "replace") or b"1")
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(raw))
        change = draw.randrange(3)
        if change == 0:
            raw[place] = draw.randrange(256)
        elif change == 1:
            raw[place:place] = bytes(draw.choices(b"\\{}()[]^_,.$%0123456789xe+-/", k=draw.randint(1, 4)))
        elif len(raw) > 1:
            del raw[place]
    return raw.decode("utf-8", "surrogateescape")
