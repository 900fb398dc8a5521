"""Grade answers stored in files, with a verdict per row and a summary.

Rows of kind `answer` are graded as they are, others by their extracted final answer, unless a reward is given.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from qed.data.sources.rows import Place, Row
from qed.data.sources.writing import Writer
from qed.errors import DataError, QedError
from qed.evaluation.answer_lists import convert_gold, convert_to_text
from qed.evaluation.answer_rows import GOLD, RESPONSE, Group, read_value
from qed.evaluation.map_ahead import map_ahead
from qed.evaluation.verdicts import SecondGrader, judge_again, summarize_verdicts
from qed.grading import symbolic
from qed.grading.equal import equal
from qed.grading.extract import extract_final_answer, find_final_answer
from qed.grading.extraction.marks import list_answer_tags
from qed.grading.policy import MATH, Policy
from qed.rewards.grader import Grader, join, list_tags
from qed.rewards.verdicts import CLASSES, classify, judge_found
from qed.types import Grade, Problem, Rollout

AHEAD = 1_000  # rows per worker to read and grade ahead of a slow one, so that the other workers do not wait
Graders = tuple[Grader | None, Sequence[SecondGrader]]
ADDED = ("correct", "extracted", "reason", "tier", "format_ok", "seconds")


class Graded(NamedTuple):
    """A row and its verdict; `seconds` is wall-clock time, `kind` the class of format × answer.

    `also` holds the verdicts of additional graders by column, see `qed.evaluation.verdicts`.
    """

    row: Row
    grade: Grade
    seconds: float
    kind: str
    also: Mapping[str, bool] = MappingProxyType({})
    has_gold: bool = True

    def as_row(self, rewarded: bool) -> Row:
        """Return the row with its verdict's columns; `rewarded` adds the reward and its parts."""
        grade = self.grade
        values = (grade.correct, grade.extracted, grade.reason, grade.tier, grade.format_ok, round(self.seconds, 6))
        more = {"reward": grade.reward if grade.is_decided else None, "parts": dict(grade.parts)} if rewarded else {}
        return {**self.row, **dict(zip(ADDED, values, strict=True)), **more, **self.also}

    def add_to(self, summary: Summary, writer: Writer | None, rewarded: bool) -> None:
        """Count the row, and write it."""
        summary.add(self)
        if writer is not None:
            writer.add(self.as_row(rewarded))


class _Case(NamedTuple):
    """A row with its answer's text, the gold and the column `kind`."""

    place: Place
    row: Row
    keys: tuple[str, str]
    gold: str
    text: str
    kind: str

    def build_rollout(self, index: int) -> Rollout:
        """Build the rollout that a reward takes, with the row's other columns as the problem's metadata."""
        row, keys = self.row, self.keys
        question = row.get("question") or row.get("problem") or ""
        meta = {name: value for name, value in row.items() if name not in keys}
        problem = Problem(str(row.get("id", self.place.number)), str(question), self.gold, meta=meta)
        return Rollout(problem, (), (), (), self.text, "stop", index=index)


def grade_stored(gold: str, text: str, kind: str, mode: str, policy: Policy = MATH) -> Grade:
    """Grade a stored answer by its final answer; the format counts as correct if strict extraction finds an answer."""
    if kind == "answer":
        verdict = equal(gold, text, policy)
        return Grade(float(verdict.correct), verdict.correct, True, text, {}, verdict.tier, verdict.reason)
    verdict, extracted = judge_found(gold, find_final_answer(text, mode), policy)
    format_ok = extracted is not None and (mode == "strict" or extract_final_answer(text, "strict") is not None)
    return Grade(float(verdict.correct), verdict.correct, format_ok, extracted, {}, verdict.tier, verdict.reason)


def grade_answers(
    rollouts: Sequence[Rollout], kinds: Sequence[str], grader: Grader | None, mode: str, policy: Policy = MATH
) -> list[Grade]:
    """Grade stored answers to a problem by a reward, or by their final answers if no reward decides correctness."""
    grades = grader([list(rollouts)])[0] if grader is not None else []
    if grader is not None and grader.judge:
        return grades
    verdicts = [
        grade_stored(rollout.problem.answer, rollout.text, kind, mode, policy)
        for rollout, kind in zip(rollouts, kinds, strict=True)
    ]
    if grader is None:
        return verdicts
    return [join(grade, verdict, grader.checks_format) for grade, verdict in zip(grades, verdicts, strict=True)]


def grade_groups(
    groups: Iterable[Group], keys: tuple[str, str], mode: str, graders: Graders, workers: int, policy: Policy = MATH
) -> Iterator[Graded]:
    """Yield the rows with their verdicts, in order, as soon as they are graded.

    Args:
        groups: rows with their places; a reward is given the answers of a group together.
        keys: columns of the gold and of the answer; empty uses the first known column of a row. A dot accesses a
            nested column.
        mode: extraction mode, see `qed.grading.extract`.
        graders: grader of a reward, if one is given, and additional graders.
        workers: answers graded in parallel, for rewards that run in separate processes.
        policy: grading policy for final answers.
    """
    grade, (grader, _) = _build_timed_grader(mode, graders, policy), graders
    cases = _read_cases(groups, keys)
    if workers == 1:
        yield from chain.from_iterable(map(grade, cases))
        return
    threads = ThreadPoolExecutor(workers)
    try:
        yield from chain.from_iterable(map_ahead(threads, grade, cases, AHEAD * workers))
    except BaseException:  # on an interrupt, do not wait for gradings that may hang
        threads.shutdown(wait=False, cancel_futures=True)
        if grader is not None:
            grader.close()
        raise
    threads.shutdown()


def _build_timed_grader(mode: str, graders: Graders, policy: Policy) -> Callable[[Sequence[_Case]], list[Graded]]:
    """Return a function that grades the answers to a problem; each is given an equal part of the time."""
    grader, second = graders
    tags, needs_rollouts = list_answer_tags(list_tags(grader)), grader is not None or bool(second)

    def grade(cases: Sequence[_Case]) -> list[Graded]:
        rollouts = [case.build_rollout(index) for index, case in enumerate(cases)] if needs_rollouts else []
        start, waited = time.perf_counter(), symbolic.count_loading_seconds()
        if rollouts:
            verdicts = grade_answers(rollouts, [case.kind for case in cases], grader, mode, policy)
        else:
            verdicts = [grade_stored(case.gold, case.text, case.kind, mode, policy) for case in cases]
        seconds = time.perf_counter() - start - (symbolic.count_loading_seconds() - waited)
        also = [judge_again(rollout, second) for rollout in rollouts] or [{}] * len(cases)
        return [
            Graded(case.row, verdict, seconds / len(cases), classify_case(case, verdict), more, bool(case.gold))
            for case, verdict, more in zip(cases, verdicts, also, strict=True)
        ]

    def classify_case(case: _Case, verdict: Grade) -> str:
        if case.kind == "answer":
            return f"fmt1_ans{int(verdict.correct)}"
        return classify(verdict, case.gold, case.text, policy, tags)

    return grade


def _read_cases(groups: Iterable[Group], keys: tuple[str, str]) -> Iterator[list[_Case]]:
    """Yield the cases of each group; before an error, those of the rows before it."""
    for group in groups:
        cases: list[_Case] = []
        try:
            for place, row in group:
                cases.append(_read_case(place, row, keys))
        except DataError:
            if cases:
                yield cases
            raise
        yield cases


def _read_case(place: Place, row: Row, keys: tuple[str, str]) -> _Case:
    gold = read_value(place, row, keys[0], GOLD, "--gold-key")
    response = read_value(place, row, keys[1], RESPONSE, "--response-key")
    return _Case(
        place, row, keys, extract_gold(convert_gold(gold)), convert_to_text(response), str(row.get("kind", ""))
    )


def extract_gold(gold: str) -> str:
    """Extract the gold of a worked solution: after ####, or in GSM8K's model solutions after `A:` on the last line."""
    behind = gold.rpartition("####")[2] if "####" in gold else gold.rpartition("\nA:")[2]
    return gold.strip() if "\n" in behind.strip() else behind.strip()


class Summary:
    """Counts over graded rows; a mean reward that is not finite, as user rewards may produce, is None."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.n = 0
        self.counts: Counter[str] = Counter()
        self.tiers: Counter[str] = Counter()
        self.classes: Counter[str] = Counter(dict.fromkeys(CLASSES, 0))
        self.reward = 0.0
        self.spent = 0.0
        self.slowest = 0.0
        self.failure = ""  # why the grader failed on the first such answer
        self.replaced: dict[str, None] = {}
        self.verdicts: list[Row] = []  # those of all graders, if there are several

    def add(self, graded: Graded) -> None:
        """Count a row."""
        grade, expected = graded.grade, graded.row.get("expected")
        self.n += 1
        if graded.also:
            problem = str(graded.row.get("id", self.n))
            self.verdicts.append({"group_id": problem, "correct": grade.correct, **graded.also})
        if not graded.row.keys().isdisjoint(ADDED):
            self.replaced |= dict.fromkeys(name for name in ADDED if name in graded.row)
        self.tiers[grade.tier or "reward"] += 1
        if grade.tier == "error" and not self.failure:
            self.failure = grade.reason
        self.classes[graded.kind] += 1
        self.reward += grade.reward if grade.is_decided else 0.0
        self.counts["without_reward"] += not grade.is_decided
        self.spent += graded.seconds
        self.slowest = max(self.slowest, graded.seconds)
        self.counts["correct"] += grade.correct
        self.counts["format_ok"] += grade.format_ok
        self.counts["no_answer"] += grade.extracted is None
        self.counts["without_gold"] += not graded.has_gold
        if isinstance(expected, bool):
            self.counts["expected"] += 1
            self.counts["false_positives"] += grade.correct and not expected
            self.counts["false_negatives"] += expected and not grade.correct

    def as_fields(self) -> dict[str, Any]:
        """Return the counts in a form for JSON, for `merge`, without the verdicts of additional graders."""
        counters = {name: dict(getattr(self, name)) for name in ("counts", "tiers", "classes")}
        sums = {name: getattr(self, name) for name in ("n", "reward", "spent", "slowest", "failure")}
        return {**counters, **sums, "replaced": list(self.replaced)}

    def merge(self, fields: dict[str, Any]) -> None:
        """Add the counts of other rows, see `as_fields`."""
        for name in ("counts", "tiers", "classes"):
            getattr(self, name).update(fields[name])
        self.n += fields["n"]
        self.reward += fields["reward"]
        self.spent += fields["spent"]
        self.slowest = max(self.slowest, fields["slowest"])
        self.failure = self.failure or fields["failure"]
        self.replaced |= dict.fromkeys(fields["replaced"])

    def figures(self, together: bool = False) -> dict[str, Any]:
        """Return the figures for JSON.

        Rates use the wall-clock time since the first row, or with `together` the summed time of all rows, for rows
        that other processes graded.
        """
        seconds = self.spent if together else time.perf_counter() - self.start
        labelled = self.counts["expected"]
        rewarded = self.n - self.counts["without_reward"]
        mean = self.reward / rewarded if rewarded else math.nan
        wrong = {name: self.counts[name] for name in ("false_positives", "false_negatives")}
        return {
            "n": self.n,
            "correct": self.counts["correct"],
            "accuracy": self.counts["correct"] / max(1, self.n),
            "timeouts": self.tiers["timeout"],
            "errors": self.tiers["error"],
            "cases_per_second": round(self.n / max(seconds, 1e-9), 1),
            "seconds": round(seconds, 3),
            "slowest_seconds": round(self.slowest, 4),
            **({"first_error": self.failure} if self.failure else {}),
            "format_ok": self.counts["format_ok"],
            "no_answer": self.counts["no_answer"],
            "without_gold": self.counts["without_gold"],
            "without_reward": self.counts["without_reward"],
            "mean_reward": mean if math.isfinite(mean) else None,
            "classes": dict(self.classes),
            "tiers": dict(self.tiers),
            **({"labelled": labelled, **wrong} if labelled else {}),
            **self._compare_verdicts(),
        }

    def _compare_verdicts(self) -> dict[str, Any]:
        """Return the accuracy's interval and the figures of the second verdicts, if there are additional graders."""
        if not self.verdicts:
            return {}
        # Imported here: `qed grade` otherwise needs no NumPy, whose import takes as long as grading 3,000 answers.
        from qed.evaluation.summary import compute_accuracy, group_by_problem  # noqa: PLC0415

        first = compute_accuracy(list(group_by_problem(self.verdicts).values()))
        return {**{key: first[key] for key in ("ci_lo", "ci_hi")}, **summarize_verdicts(self.verdicts)}


def require_graded(figures: Mapping[str, Any]) -> None:
    """Raise if no answer could be graded; figures of a shard or an evaluation are not checked.

    Raises:
        QedError: grading failed or timed out on all answers.
    """
    count = figures.get("n")
    if count and figures["errors"] + figures["timeouts"] == count:
        late = figures["timeouts"]
        over = f", on {late:,} by taking too long" if late else ""
        raise QedError(f"The reward failed on all of {count:,} answers{over}.")
