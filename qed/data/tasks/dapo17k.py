"""DAPO-Math-17k: about 17,000 problems whose answers are whole numbers (Yu et al. 2025, arXiv 2503.14476).

The first release repeats every problem a hundred times within an instruction. Both are removed, so that either file
gives the same questions.
"""

from __future__ import annotations

from qed.data.sources.conversations import is_conversation
from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark

# The start and the end of the instruction around each question.
BEFORE, AFTER = "Solve the following math problem step by step.", "Remember to put your answer on its own line"


def strip_instruction(row: Row) -> Row:
    """Remove the instruction around the question, and rename the column of the gold answer."""
    gold, prompt = row.get("reward_model"), row.get("prompt")
    if is_conversation(prompt):
        prompt = prompt[-1].get("content")
    rest = {key: value for key, value in row.items() if key not in ("prompt", "source_prompt", "reward_model")}
    answer = gold.get("ground_truth") if isinstance(gold, dict) else rest.pop("solution", None)
    return {**rest, "question": _read_question(prompt), "answer": answer}


def _read_question(prompt: object) -> object:
    if not isinstance(prompt, str) or not prompt.startswith(BEFORE):
        return prompt
    # The instruction is one paragraph before the question and one after it.
    return prompt.partition("\n\n")[2].rpartition(AFTER)[0].strip()


PROMPT = "boxed"
BENCHMARK = Benchmark(
    "dapo17k",
    {
        "train": HubDataset("open-r1/DAPO-Math-17k-Processed", "train", ("all",)),
        "en": HubDataset("open-r1/DAPO-Math-17k-Processed", "train", ("en",)),
    },
    adapt=strip_instruction,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
