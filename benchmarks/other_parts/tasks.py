"""Writes multiple-choice questions and GSM8K as lm-eval tasks over local files, from the rows that qed evaluates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from qed.types import Problem

LETTERS = "ABCDE"
ACC = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
NORM = {**ACC, "metric": "acc_norm"}
MMLU_TEXT = "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"
GPQA_TEXT = (
    "What is the correct answer to this question:{{Question}}\nChoices:\n(A) {{choice1}}\n(B) {{choice2}}\n"
    "(C) {{choice3}}\n(D) {{choice4}}\nAnswer:"
)
GSM8K_PATTERNS = {
    "strict-match": (r"#### (\-?[0-9\.\,]+)", 0),
    "flexible-extract": (r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1),
}


def find_stem(problem: Problem) -> str:
    """Return the question without its options."""
    return str(
        problem.meta.get("stem", problem.question.rpartition("\n\nA) ")[0] or problem.question.rpartition("\n\n1) ")[0])
    )


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows as JSON lines, and return the file's name."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def _write_task(folder: Path, name: str, files: dict[str, str], fields: dict[str, Any]) -> str:
    common = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test"}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**common, **fields}, sort_keys=False), encoding="utf-8")
    return name


def write_mmlu(folder: Path, problems: Sequence[Problem], examples: Sequence[Problem]) -> list[str]:
    """Write a task for each subject, with the fields and few-shot examples of lm-eval's mmlu; return the names."""
    names = []
    for subject in dict.fromkeys(problem.meta["subject"] for problem in problems):
        files = {
            split: write_rows(folder / f"mmlu_{subject}_{split}.jsonl", _list_mmlu(own, subject))
            for split, own in (("test", problems), ("dev", examples))
        }
        about = " ".join(subject.split("_"))
        fields = {
            "fewshot_split": "dev",
            "fewshot_config": {"sampler": "first_n"},
            "output_type": "multiple_choice",
            "description": f"The following are multiple choice questions (with answers) about {about}.\n\n",
            "doc_to_text": MMLU_TEXT,
            "doc_to_choice": list("ABCD"),
            "doc_to_target": "answer",
            "metric_list": [ACC],
        }
        names.append(_write_task(folder, f"mmlu_{subject}", files, fields))
    return names


def _list_mmlu(problems: Sequence[Problem], subject: str) -> list[dict[str, Any]]:
    return [
        {
            "id": problem.id,
            "question": find_stem(problem),
            "choices": list(problem.meta["choices"]),
            "answer": LETTERS.index(problem.answer),
        }
        for problem in problems
        if problem.meta["subject"] == subject
    ]


def write_arc(folder: Path, problems: Sequence[Problem]) -> list[str]:
    """Write a task with the fields of lm-eval's arc_challenge."""
    rows = [
        {
            "id": problem.id,
            "question": find_stem(problem),
            "choices": {"text": list(problem.meta["choices"]), "label": list(problem.meta["options"])},
            "answerKey": problem.answer,
        }
        for problem in problems
    ]
    fields = {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices.label.index(answerKey)}}",
        "doc_to_choice": "{{choices.text}}",
        "metric_list": [ACC, NORM],
    }
    return [_write_task(folder, "arc_c", {"test": write_rows(folder / "arc_c.jsonl", rows)}, fields)]


def write_gpqa(folder: Path, problems: Sequence[Problem]) -> list[str]:
    """Write a task with the fields of lm-eval's gpqa_*_zeroshot, with the options in the order of the rows."""
    rows = [
        {
            "id": problem.id,
            "Question": find_stem(problem),
            **{f"choice{number}": option for number, option in enumerate(problem.meta["choices"], 1)},
            "answer": f"({problem.answer})",
        }
        for problem in problems
    ]
    fields = {
        "output_type": "multiple_choice",
        "doc_to_text": GPQA_TEXT,
        "doc_to_target": "answer",
        "doc_to_choice": ["(A)", "(B)", "(C)", "(D)"],
        "metric_list": [ACC, NORM],
    }
    return [_write_task(folder, "gpqa", {"test": write_rows(folder / "gpqa.jsonl", rows)}, fields)]


def write_gsm8k(folder: Path, rows: Sequence[dict[str, Any]], max_tokens: int) -> list[str]:
    """Write a task with the fields of lm-eval's gsm8k."""
    filters = [
        {
            "name": name,
            "filter": [
                {"function": "regex", "regex_pattern": pattern, **({"group_select": group} if group else {})},
                {"function": "take_first"},
            ],
        }
        for name, (pattern, group) in GSM8K_PATTERNS.items()
    ]
    fields = {
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer}}",
        "metric_list": [
            {
                "metric": "exact_match",
                "aggregation": "mean",
                "higher_is_better": True,
                "ignore_case": True,
                "ignore_punctuation": False,
                "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
            }
        ],
        "generation_kwargs": {
            "until": ["Question:", "</s>", "<|im_end|>"],
            "do_sample": False,
            "temperature": 0.0,
            "max_gen_toks": max_tokens,
        },
        "filter_list": filters,
    }
    return [_write_task(folder, "gsm8k", {"test": write_rows(folder / "gsm8k.jsonl", rows)}, fields)]
