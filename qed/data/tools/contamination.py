"""Contamination: training questions that share a run of n words with a question of a benchmark, or are the same.

Runs of 13 words are the custom since GPT-3 (Brown et al. 2020, arXiv 2005.14165, appendix C). Words are letters and
digits whatever their capitals; signs do not count, so a formula alone makes no run. Questions of fewer words are found
only where they are the same as a whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qed.data.tools.filters import normalize_question
from qed.types import Problem

WORDS = 13
EXAMPLES = 5
WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Hit:
    """A training question and the benchmark's that it overlaps with; `words` are shared, empty where all are."""

    problem: Problem
    bench: str
    other: Problem
    words: str = ""

    def as_dict(self) -> dict[str, str]:
        """For people and machines to judge."""
        return {
            "question": self.problem.question,
            "benchmark": self.bench,
            "benchmark_question": self.other.question,
            "shared": self.words or "the whole question",
        }


class Index:
    """Benchmarks' questions by their runs of words.

    A run is kept as the hash of its words' numbers, and a hit is compared word by word, so no two hashes are confused.

    Args:
        benches: problems by the name of their benchmark.
        n: how many words make a run.
    """

    def __init__(self, benches: Mapping[str, Sequence[Problem]], n: int = WORDS) -> None:
        self.n = n
        self.problems = [(bench, problem) for bench, some in benches.items() for problem in some]
        self.numbers: dict[str, int] = {}
        self.texts: list[tuple[int, ...]] = []
        self.whole: dict[str, list[int]] = {}
        self.runs: dict[int, list[tuple[int, int]]] = {}
        for index, (_, problem) in enumerate(self.problems):
            self.whole.setdefault(normalize_question(problem.question), []).append(index)
            found = WORD.findall(problem.question.casefold())
            words = tuple(self.numbers.setdefault(word, len(self.numbers)) for word in found)
            self.texts.append(words)
            for start in range(len(words) - n + 1):
                self.runs.setdefault(hash(words[start : start + n]), []).append((index, start))

    def find_overlapping(self, problem: Problem) -> Iterator[Hit]:
        """The benchmarks' questions that a question overlaps with, each once, the same question first."""
        seen = set()
        for index in self.whole.get(normalize_question(problem.question), ()):
            seen.add(index)
            yield Hit(problem, *self.problems[index])
        text = WORD.findall(problem.question.casefold())
        words = tuple(self.numbers.get(word, -1) for word in text)
        for start in range(len(words) - self.n + 1):
            run = words[start : start + self.n]
            for index, at in self.runs.get(hash(run), ()):
                if index not in seen and self.texts[index][at : at + self.n] == run:
                    seen.add(index)
                    yield Hit(problem, *self.problems[index], " ".join(text[start : start + self.n]))


@dataclass(frozen=True)
class Overlap:
    """What a comparison found: the problems that do not overlap, and figures about the others."""

    clean: list[Problem]
    figures: dict[str, Any]


def find_overlap(problems: Sequence[Problem], benches: Mapping[str, Sequence[Problem]], n: int = WORDS) -> Overlap:
    """Compare training problems with benchmarks.

    `figures` has the number of words, how many training problems overlap, how many of them are a benchmark's question
    as a whole, for each benchmark how many of its questions are touched and how many are there as a whole, and a few
    examples.
    """
    index = Index(benches, n)
    found = [(problem, list(index.find_overlapping(problem))) for problem in problems]
    hits = [some for _, some in found if some]
    touched = {(hit.bench, hit.other.id) for some in hits for hit in some}
    same = {(hit.bench, hit.other.id) for some in hits for hit in some if not hit.words}
    counts, wholes = Counter(bench for bench, _ in touched), Counter(bench for bench, _ in same)
    figures = {
        "words": n,
        "problems": len(problems),
        "contaminated": len(hits),
        "same_question": sum(not some[0].words for some in hits),
        "benchmarks": {
            bench: {"problems": len(some), "touched": counts[bench], "same_question": wholes[bench]}
            for bench, some in benches.items()
        },
        "examples": [some[0].as_dict() for some in hits[:EXAMPLES]],
    }
    return Overlap([problem for problem, some in found if not some], figures)
