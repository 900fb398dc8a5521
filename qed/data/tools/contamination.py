"""Find contamination: training questions that equal a benchmark's question or share n consecutive words with it.

13 words are common since GPT-3 (Brown et al. 2020, arXiv 2005.14165, appendix C). Words consist of letters and digits,
ignoring case; other characters do not count, so a formula alone gives no match. Shorter questions match only if equal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qed.data.questions import normalize_question
from qed.types import Problem

WORDS = 13
EXAMPLES = 5
WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Hit:
    """A training question and the benchmark question that it overlaps with; `words` is empty if they are equal."""

    problem: Problem
    bench: str
    other: Problem
    words: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the overlap as a dict of strings."""
        return {
            "question": self.problem.question,
            "benchmark": self.bench,
            "benchmark_question": self.other.question,
            "shared": self.words or "the whole question",
        }


class Index:
    """An index of benchmark questions by their n-grams of words.

    N-grams are stored by the hash of their word ids. A hit is compared word by word, so hash collisions do not matter.

    Args:
        benches: problems by benchmark.
        n: number of words in an n-gram.
    """

    def __init__(self, benches: Mapping[str, Sequence[Problem]], n: int) -> None:
        self.n = n
        self.problems = [(bench, problem) for bench, members in benches.items() for problem in members]
        self.numbers: dict[str, int] = {}
        self.texts: list[tuple[int, ...]] = []
        self.whole: dict[str, list[int]] = {}
        self.runs: dict[int, list[tuple[int, int]]] = {}
        for index, (_, problem) in enumerate(self.problems):
            self.whole.setdefault(normalize_question(problem.question), []).append(index)
            text = WORD.findall(problem.question.casefold())
            words = tuple(self.numbers.setdefault(word, len(self.numbers)) for word in text)
            self.texts.append(words)
            for start in range(len(words) - n + 1):
                self.runs.setdefault(hash(words[start : start + n]), []).append((index, start))

    def find_overlapping(self, problem: Problem) -> Iterator[Hit]:
        """Yield the benchmark questions that a question overlaps with, each once, equal questions first."""
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
    """The result of a comparison: the problems that do not overlap, and figures about the others."""

    clean: list[Problem]
    figures: dict[str, Any]


def find_overlap(problems: Sequence[Problem], benches: Mapping[str, Sequence[Problem]], n: int = WORDS) -> Overlap:
    """Compare training problems with benchmarks.

    `figures` has the number of words, the numbers of training problems that overlap with and that equal a benchmark
    question, for each benchmark the numbers of its questions that overlap and that are equal, and a few examples.
    """
    index = Index(benches, n)
    matches = [(problem, list(index.find_overlapping(problem))) for problem in problems]
    hits = [members for _, members in matches if members]
    touched = {(hit.bench, hit.other.id) for members in hits for hit in members}
    same = {(hit.bench, hit.other.id) for members in hits for hit in members if not hit.words}
    touched_counts, same_counts = Counter(bench for bench, _ in touched), Counter(bench for bench, _ in same)
    figures = {
        "words": n,
        "problems": len(problems),
        "contaminated": len(hits),
        "same_question": sum(not members[0].words for members in hits),
        "benchmarks": {
            bench: {
                "problems": len(members),
                "touched": touched_counts[bench],
                "same_question": same_counts[bench],
            }
            for bench, members in benches.items()
        },
        "examples": [members[0].as_dict() for members in hits[:EXAMPLES]],
    }
    return Overlap([problem for problem, members in matches if not members], figures)
