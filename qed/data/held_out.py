"""Keep held-out questions out of the training data, by normalized text and optionally by shared runs of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from qed.data.questions import normalize_question
from qed.data.tools.contamination import Index
from qed.types import Problem


class HeldOut:
    """The questions that must not be trained on.

    Args:
        problems: the held-out problems.
        words: also drop questions that share this many consecutive words with one of them; 0 compares only whole
            questions.
    """

    def __init__(self, problems: Iterable[Problem], words: int = 0) -> None:
        problems = list(problems)
        self.words = words
        self._questions = {normalize_question(problem.question) for problem in problems}
        self._index = Index({"": problems}, words) if words else None

    def drop(self, problems: Sequence[Problem], left_out: Counter[str]) -> list[Problem]:
        """Return the problems that may be trained on, and count the others by reason."""
        others = [problem for problem in problems if normalize_question(problem.question) not in self._questions]
        left_out["training problems that are held out"] += len(problems) - len(others)
        if self._index is None:
            return others
        kept = [problem for problem in others if next(self._index.find_overlapping(problem), None) is None]
        left_out[f"training problems that share {self.words} words with a held-out question"] += len(others) - len(kept)
        return kept


def describe_check(words: int) -> str:
    """Describe how held-out questions are compared with those of the training data."""
    check = "whole questions, ignoring case, spaces and punctuation"
    return f"{check}, and runs of {words} words" if words else check
