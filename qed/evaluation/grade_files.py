"""Grade answers stored in files, with a verdict per row and a summary.

Rows of kind `answer` are graded as they are, others by their extracted final answer, unless a reward is given.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple

from qed.data.sources.rows import Place, Row, Rows, has_bytes
from qed.data.sources.writing import Writer
from qed.errors import DataError, QedError, suggest_nearest
from qed.evaluation.answer_lists import convert_gold, convert_to_text, is_list, require_answers, split_answers
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

GOLD = ("gold", "answer", "ground_truth", "expected_answer", "reward_model.ground_truth", "gts", "target", "solution")
RESPONSE = ("prediction", "response", "text", "completion", "output", "generated_text", "generation", "model_output")
CHECKED = 1_000  # rows whose lists are checked before the first answer is graded
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
    """A row with its answer's text and the gold."""

    place: Place
    row: Row
    keys: tuple[str, str]
    gold: str
    text: str

    def build_rollout(self) -> Rollout:
        """Build the rollout that a reward takes, with the row's other columns as the problem's metadata."""
        row, keys = self.row, self.keys
        question = row.get("question") or row.get("problem") or ""
        meta = {name: value for name, value in row.items() if name not in keys}
        problem = Problem(str(row.get("id", self.place.number)), str(question), self.gold, meta=meta)
        return Rollout(problem, (), (), (), self.text, "stop")


def grade_stored(gold: str, text: str, kind: str, mode: str, policy: Policy = MATH) -> Grade:
    """Grade a stored answer by its final answer; the format counts as correct if strict extraction finds an answer."""
    if kind == "answer":
        verdict = equal(gold, text, policy)
        return Grade(float(verdict.correct), verdict.correct, True, text, {}, verdict.tier, verdict.reason)
    verdict, extracted = judge_found(gold, find_final_answer(text, mode), policy)
    format_ok = extracted is not None and (mode == "strict" or extract_final_answer(text, "strict") is not None)
    return Grade(float(verdict.correct), verdict.correct, format_ok, extracted, {}, verdict.tier, verdict.reason)


def grade_answer(rollout: Rollout, grader: Grader | None, kind: str, mode: str, policy: Policy = MATH) -> Grade:
    """Grade a stored answer by a reward, or by its final answer if no reward decides correctness."""
    gold, text = rollout.problem.answer, rollout.text
    if grader is None:
        return grade_stored(gold, text, kind, mode, policy)
    grade = grader([[rollout]])[0][0]
    return grade if grader.judge else join(grade, grade_stored(gold, text, kind, mode, policy), grader.checks_format)


def grade_rows(
    rows: Rows, keys: tuple[str, str], mode: str, graders: Graders, workers: int, policy: Policy = MATH
) -> Iterator[Graded]:
    """Yield the rows with their verdicts, in order, as soon as they are graded.

    Args:
        rows: rows with their places.
        keys: columns of the gold and of the answer; empty uses the first known column of a row. A dot accesses a
            nested column.
        mode: extraction mode, see `qed.grading.extract`.
        graders: grader of a reward, if one is given, and additional graders.
        workers: answers graded in parallel, for rewards that run in separate processes.
        policy: grading policy for final answers.
    """
    grade, (grader, _) = _build_timed_grader(mode, graders, policy), graders
    cases = (_read_case(place, row, keys) for place, row in rows)
    if workers == 1:
        yield from map(grade, cases)
        return
    threads = ThreadPoolExecutor(workers)
    try:
        yield from map_ahead(threads, grade, cases, AHEAD * workers)
    except BaseException:  # on an interrupt, do not wait for gradings that may hang
        threads.shutdown(wait=False, cancel_futures=True)
        if grader is not None:
            grader.close()
        raise
    threads.shutdown()


def _build_timed_grader(mode: str, graders: Graders, policy: Policy) -> Callable[[_Case], Graded]:
    grader, second = graders
    tags = list_answer_tags(list_tags(grader))

    def grade(case: _Case) -> Graded:
        gold, text, kind = case.gold, case.text, str(case.row.get("kind", ""))
        rollout = case.build_rollout() if grader is not None or second else None
        start, waited = time.perf_counter(), symbolic.count_loading_seconds()
        if rollout is None:
            verdict = grade_stored(gold, text, kind, mode, policy)
        else:
            verdict = grade_answer(rollout, grader, kind, mode, policy)
        seconds = time.perf_counter() - start - (symbolic.count_loading_seconds() - waited)
        kind = classify(verdict, gold, text, policy, tags) if kind != "answer" else f"fmt1_ans{int(verdict.correct)}"
        also = judge_again(rollout, second) if rollout is not None else {}
        return Graded(case.row, verdict, seconds, kind, also, bool(gold))

    return grade


def _read_case(place: Place, row: Row, keys: tuple[str, str]) -> _Case:
    gold = read_value(place, row, keys[0], GOLD, "--gold-key")
    response = read_value(place, row, keys[1], RESPONSE, "--response-key")
    return _Case(place, row, keys, extract_gold(convert_gold(gold)), convert_to_text(response))


def extract_gold(gold: str) -> str:
    """Extract the gold of a worked solution: after ####, or in GSM8K's model solutions after `A:` on the last line."""
    behind = gold.rpartition("####")[2] if "####" in gold else gold.rpartition("\nA:")[2]
    return gold.strip() if "\n" in behind.strip() else behind.strip()


def check_lists(rows: Rows, keys: tuple[str, str], lists: str = "") -> list[tuple[Place, Row]]:
    """Check the lists of answers in the first rows, and return these rows; see `expand_lists`.

    Raises:
        DataError: a column does not exist, or the lists look like one answer in parts.
    """
    first = list(islice(rows, CHECKED))
    if not lists:
        require_answers((place, read_value(place, row, keys[1], RESPONSE, "--response-key")) for place, row in first)
    return first


def expand_lists(rows: Rows, keys: tuple[str, str], lists: str = "") -> Rows:
    """Yield a row for each answer: a row with a list of k answers becomes k rows with a `sample_id`.

    Args:
        rows: rows with their places.
        keys: columns of the gold and of the answer, see `grade_rows`.
        lists: what a list is, see `split_answers`.

    Raises:
        DataError: a column does not exist, or the meaning of a list is ambiguous.
    """
    rows = iter(rows)
    yield from expand_checked(chain(check_lists(rows, keys, lists), rows), keys, lists)


def expand_checked(rows: Rows, keys: tuple[str, str], lists: str = "") -> Rows:
    """Expand rows as `expand_lists` does, without checking the first ones."""
    for place, row in rows:
        name, value = locate_value(place, row, keys[1], RESPONSE, "--response-key")
        if not is_list(value):
            yield place, row
            continue
        answers = split_answers(place, value, read_value(place, row, keys[0], GOLD, "--gold-key"), lists)
        for number, answer in enumerate(answers):
            yield place, {**row, name: answer, "sample_id": number}


def read_value(place: Place, row: Row, key: str, known: Sequence[str], option: str) -> Any:
    """Read a column of a row, or the first known one; a dot accesses a nested column.

    Raises:
        DataError: the column does not exist, or contains bytes.
    """
    name, value = locate_value(place, row, key, known, option)
    if not isinstance(value, str) and has_bytes(value):
        raise DataError(f"{place}: {name} has bytes that are not UTF-8 text: {str(value)[:80]}")
    return value


def locate_value(place: Place, row: Row, key: str, known: Sequence[str], option: str) -> tuple[str, Any]:
    """Return the name and the value of a column of a row, or of the first known one.

    Raises:
        DataError: the column does not exist.
    """
    for name in (key,) if key else known:
        *outer, last = [name] if name in row else name.split(".")
        inner: Any = row
        for part in outer:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and last in inner:
            return name, inner[last]
    wanted = key or (known[0] if len(known) == 1 else f"of the known names ({', '.join(known)})")
    raise DataError(
        f"{place}: there is no column {wanted}; the columns are {', '.join(map(str, row))}. Name yours with {option}."
        + suggest_nearest(key or known[0], map(str, row))
    )


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
