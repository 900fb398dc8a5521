"""ARC Challenge: 1,172 grade-school science questions with options (Clark et al. 2018, arXiv 1803.05457)."""

from __future__ import annotations

from qed.data.sources.choices import parse_written_options
from qed.data.sources.conversations import is_conversation
from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark


def add_options(row: Row) -> Row:
    """Add the options as columns to rows of LUFFY's file, which has them only in the question."""
    prompt = row.get("prompt")
    text = prompt[-1].get("content") if is_conversation(prompt) else None
    return {**row, **parse_written_options(text)} if isinstance(text, str) else row


REVISION = "210d026faf9955653af8916fad021475a3f00453"
PROMPT = "boxed"
BENCHMARK = Benchmark(
    "arc_c",
    {
        split: HubDataset("allenai/ai2_arc", split, ("ARC-Challenge",), revision=REVISION)
        for split in ("train", "validation", "test")
    },
    adapt=add_options,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
