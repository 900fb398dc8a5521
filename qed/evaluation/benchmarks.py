"""The benchmarks of an evaluation: their problems, how often each is answered, and what could not be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qed.config import plugins
from qed.config.phases import Settings
from qed.config.settings import DataSettings
from qed.config.task_names import parse_task
from qed.console.live import Console
from qed.data import tasks
from qed.data.splits import load_problems, parse_pairs, resolve_prompt_name, resolve_reward_names
from qed.errors import DataError, UsageError
from qed.grading.equal import read_gold
from qed.sampling.base import Sampling
from qed.types import Problem

# The answers to each problem that the field reports, where a leaf does not declare SAMPLES: the smaller the benchmark,
# the more. A split in the key is that split's alone.
SAMPLES = {"aime": 32, "amc23": 32, "amc": 32, "math:test500": 4, "gpqa": 8}
NAMED = 3  # problems that a complaint names


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: its name as given, a label for tables and files, and its problems, each once.

    `data` says how its problems are asked and graded, `counts` how many answers each problem gets, `left_out` what was
    dropped and `unreadable` whose golds the grader's parser cannot read. `judged` tells whether there are right
    answers; where there are none, the outputs are written for a program that compares them.
    """

    name: str
    label: str
    problems: list[Problem]
    data: DataSettings
    counts: Mapping[str, int]
    left_out: Mapping[str, int]
    unreadable: tuple[str, ...] = ()
    judged: bool = True

    def samples_of(self, problem: Problem) -> int:
        """How many answers a problem gets."""
        return self.counts[problem.id]

    def report_problems(self, console: Console) -> None:
        """Say what is left out, and whose gold cannot be read."""
        for reason, count in self.left_out.items():
            console.say(f"{self.label}: left out {count} {reason}.")
        if self.unreadable:
            more = ", …" if len(self.unreadable) > NAMED else ""
            console.say(
                f"{self.label}: {len(self.unreadable)} golds cannot be read as a value and match by their characters "
                f"only: {', '.join(self.unreadable[:NAMED])}{more}."
            )

    def describe(
        self, kept: Sequence[Problem], sampling: Sampling, settings: Settings, judge: str | None = None
    ) -> str:
        """What is asked and how, in a line; `judge` is what judges the answers where the reward does not."""
        counts = {self.samples_of(problem) for problem in kept}
        ends = dict.fromkeys((min(counts), max(counts)))
        drawn = (
            "greedy"
            if sampling.temperature == 0
            else f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}"
            + (f", top-k {sampling.top_k}" if sampling.top_k else "")
            + (f", min-p {sampling.min_p:g}" if sampling.min_p else "")
        )
        return (
            f"{self.label}: {len(kept)} problems × {' to '.join(map(str, ends))} answers, {drawn}, "
            f"at most {sampling.max_tokens} tokens, prompt {resolve_prompt_name(self.data)}, "
            f"reward {' + '.join(resolve_reward_names(self.data))}"
            f"{f' (judges no answer: {judge} does)' if judge else ''}, seed {settings.run.seed}"
        )


def load_benchmarks(settings: Settings, names: Sequence[str], samples: int, limit: int) -> list[Benchmark]:
    """The benchmarks by their names, or those that a run held out where none are named.

    Args:
        settings: prompt and reward; `auto` takes each task's own.
        samples: answers to each problem, 0 for the benchmark's own number.
        limit: problems of each, 0 for all.
    """
    found: dict[str, Benchmark] = {}
    for name, label, problems, left_out in _list_tasks(settings, names):
        if label in found:
            raise UsageError(
                f"Two tasks to evaluate would both be called '{label}'; name one of them, or rename a file."
            )
        data = replace(settings.data, tasks=(name,))
        found[label] = _build_benchmark(name, problems, left_out, data, samples, limit)
    return list(found.values())


def _list_tasks(settings: Settings, names: Sequence[str]) -> Iterator[tuple[str, str, list[Problem], Counter[str]]]:
    """Each task's name, label, problems, and the rows that are no problem, by their reason."""
    data = settings.data
    if not names:
        loaded = load_problems(data, settings.evaluation, settings.run.seed)
        for name, bench in zip(settings.evaluation.tasks or data.tasks, loaded.benchmarks.items(), strict=True):
            yield name, *bench, Counter()
    mapping, revisions = parse_pairs(data.map, "--map"), parse_pairs(data.revisions, "data.revisions")
    for name in names:
        left_out: Counter[str] = Counter()
        yield name, parse_task(name).label, tasks.load_task(name, "test", mapping, left_out, revisions), left_out


def _build_benchmark(
    name: str, problems: Sequence[Problem], dropped: Counter[str], data: DataSettings, samples: int, limit: int
) -> Benchmark:
    repeats = Counter(problem.id for problem in problems)
    distinct = list({problem.id: problem for problem in problems}.values())
    judged = bool(getattr(plugins.load_leaf("tasks", parse_task(name).leaf), "JUDGED", True))
    answered = [problem for problem in distinct if problem.answer.strip()] if judged else distinct
    if not answered:
        raise DataError(f"No problem of {name} has an answer, so nothing can be measured with it.")
    kept = answered[:limit] if limit else answered
    usual = find_usual_samples(name)
    # A benchmark that stands several times in its file says so: how often is how many answers it wants.
    counts = {problem.id: samples or max(repeats[problem.id], int(problem.meta.get("k", 1))) for problem in kept}
    if not samples and max(counts.values()) == 1:
        counts = dict.fromkeys(counts, usual)
    left_out = dropped + Counter({"problems without an answer": len(distinct) - len(answered)})
    unreadable = tuple(problem.id for problem in kept if judged and not _is_readable(problem.answer))
    return Benchmark(name, parse_task(name).label, kept, data, counts, left_out, unreadable, judged)


def find_usual_samples(name: str) -> int:
    """How many answers the field takes to each problem of a benchmark: what its leaf declares, else the table's."""
    task = parse_task(name)
    declared: Any = getattr(plugins.load_leaf("tasks", task.leaf), "SAMPLES", None)
    if isinstance(declared, Mapping):
        declared = declared.get(task.split)
    return int(declared or SAMPLES.get(f"{task.leaf}:{task.split}") or SAMPLES.get(task.leaf, 1))


def _is_readable(gold: str) -> bool:
    reading = read_gold(gold)
    return bool(reading.values or reading.choice) and not reading.over
