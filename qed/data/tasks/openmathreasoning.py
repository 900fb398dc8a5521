"""OpenMathReasoning: problems with long worked traces of DeepSeek-R1 and QwQ (Moshkov et al. 2025, arXiv 2504.16891).

`mini` is the subset of 19,252 that is small enough for one machine, `mini-4k`, `mini-8k` and `mini-16k` those of its
problems whose trace has at most so many thousand characters (about four to a token); `cot` has millions of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark, Originals
from qed.types import Problem

MINI = HubDataset("unsloth/OpenMathReasoning-mini", "cot")
LONGEST = {"mini-4k": 4000, "mini-8k": 8000, "mini-16k": 16000}

PROMPT = "working_out"
BENCHMARK = Benchmark(
    "openmathreasoning",
    {"mini": MINI, **dict.fromkeys(LONGEST, MINI), "cot": HubDataset("nvidia/OpenMathReasoning", "cot")},
)
SPLITS = tuple(BENCHMARK.splits)


def load(split: str) -> list[Problem]:
    """The problems of a split, from the hub or its cache."""
    return read(split)


def read(
    split: str,
    path: str = "",
    mapping: Mapping[str, str] | None = None,
    left_out: Counter[str] | None = None,
    revision: str = "",
    originals: Originals | None = None,
) -> list[Problem]:
    """The problems of a split; those with a longer trace than it allows are counted."""
    found = BENCHMARK.read(split, path, mapping, left_out, revision, originals)
    longest = LONGEST.get(split)
    if longest is None:
        return found
    kept = [problem for problem in found if len(problem.meta.get("completion", problem.solution)) <= longest]
    if left_out is not None:
        left_out["worked traces that are too long"] += len(found) - len(kept)
    return kept
