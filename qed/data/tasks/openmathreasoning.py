"""OpenMathReasoning: problems with long worked traces of DeepSeek-R1 and QwQ (Moshkov et al. 2025, arXiv 2504.16891).

`mini` is a subset of 19,252 problems for one machine; `mini-4k`, `mini-8k` and `mini-16k` are its problems with traces
of at most 4, 8 and 16 thousand characters (a token has about four); `cot` has millions of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark, Originals
from qed.types import Problem

MINI = HubDataset("unsloth/OpenMathReasoning-mini", "cot")
MAX_CHARACTERS = {"mini-4k": 4000, "mini-8k": 8000, "mini-16k": 16000}

PROMPT = "working_out"
BENCHMARK = Benchmark(
    "openmathreasoning",
    {"mini": MINI, **dict.fromkeys(MAX_CHARACTERS, MINI), "cot": HubDataset("nvidia/OpenMathReasoning", "cot")},
)
SPLITS = tuple(BENCHMARK.splits)


def load(split: str) -> list[Problem]:
    """Load the problems of a split from the hub or its cache."""
    return read(split)


def read(
    split: str,
    path: str = "",
    mapping: Mapping[str, str] | None = None,
    left_out: Counter[str] | None = None,
    revision: str = "",
    originals: Originals | None = None,
) -> list[Problem]:
    """Load the problems of a split, skipping and counting those with a longer trace than the split allows."""
    problems = BENCHMARK.read(split, path, mapping, left_out, revision, originals)
    limit = MAX_CHARACTERS.get(split)
    if limit is None:
        return problems
    kept = [problem for problem in problems if len(problem.meta.get("completion", problem.solution)) <= limit]
    if left_out is not None:
        left_out["worked traces that are too long"] += len(problems) - len(kept)
    return kept
