"""Load the benchmarks of an evaluation: problems, samples per problem, and counts of skipped rows."""

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
from qed.data.splits import choose_columns, load_problems, parse_pairs, resolve_prompt_name, resolve_reward_names
from qed.data.subsets import draw_subset
from qed.data.tasks.base import number_copies
from qed.errors import DataError, UsageError
from qed.evaluation.few_shot import Shots, add_exemplars, find_exemplars
from qed.grading.equal import read_gold
from qed.grading.policy import PolicyName
from qed.rewards.policies import DEFAULT, add_policy
from qed.sampling.base import Sampling
from qed.types import Problem

# The default number of samples per problem, for tasks that define no SAMPLES: smaller benchmarks get more. A key with a
# split applies only to that split.
SAMPLES = {"aime": 32, "amc23": 32, "amc": 32, "math:test500": 4, "gpqa": 8}
# The default answer limit, in tokens, of benchmarks whose published results allow long reasoning.
TOKENS = {"aime": 32_768}
MAX_NAMED = 3  # problems listed in a message


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name as given, a label for tables and file names, and its problems, one for each row.

    `data` has the prompt and the reward, `counts` the number of samples per problem, `left_out` the counts of dropped
    rows, `copies` the number of rows that repeat another, and `unreadable` the problems whose golds the grader cannot
    parse. `judged` says whether gold answers exist; without them, the outputs are written to a file for a judge.
    `subset` describes how the problems were drawn if they are a subset. `exemplars` names the few-shot examples before
    each question, and `stop` holds their stop strings.
    """

    name: str
    label: str
    problems: list[Problem]
    data: DataSettings
    counts: Mapping[str, int]
    left_out: Mapping[str, int]
    unreadable: tuple[str, ...] = ()
    judged: bool = True
    subset: str = ""
    stop: tuple[str, ...] = ()
    exemplars: str = ""
    copies: int = 0

    def samples_of(self, problem: Problem) -> int:
        """Return the number of samples of a problem."""
        return self.counts[problem.id]

    def with_policy(self, policy: PolicyName) -> Benchmark:
        """Return the benchmark with a grading policy added to its reward; see `add_policy` for the errors."""
        if policy == DEFAULT or not self.judged:
            return self
        names = resolve_reward_names(self.data)
        options = add_policy(names, self.data.reward_options, policy)
        return replace(self, data=replace(self.data, reward=names, reward_options=options))

    def with_exemplars(self, shots: Shots) -> Benchmark:
        """Return the benchmark with the reward and stop strings of the few-shot examples already in its prompts."""
        name, chosen, count = find_exemplars(self.name, shots)
        reward = (chosen.reward,) if self.data.reward == ("auto",) else self.data.reward
        data = replace(self.data, prompt="few_shot", prompt_options=(), reward=reward)
        return replace(self, data=data, stop=chosen.stop, exemplars=f"{count} of {name}")

    def report_problems(self, console: Console) -> None:
        """Print how a subset was drawn, the counts of `report_rows`, and the problems whose gold cannot be parsed."""
        if self.subset:
            console.say(f"{self.label}: {self.subset}.")
        self.report_rows(console)
        if self.unreadable:
            more = ", …" if len(self.unreadable) > MAX_NAMED else ""
            console.say(
                f"{self.label}: {len(self.unreadable)} golds cannot be read as a value and match by their characters "
                f"only: {', '.join(self.unreadable[:MAX_NAMED])}{more}."
            )

    def report_rows(self, console: Console) -> None:
        """Print how many rows are skipped, and how many are duplicates."""
        for reason, count in self.left_out.items():
            console.say(f"{self.label}: left out {count:,} {reason}.")
        if self.copies:
            rows = "row repeats" if self.copies == 1 else "rows repeat"
            console.say(f"{self.label}: {self.copies:,} {rows} another; each counts as a separate problem.")

    def describe(self, kept: Sequence[Problem], sampling: Sampling, seed: int, judge: str | None) -> str:
        """Describe the evaluation in one line; `judge` names what decides correctness if the reward does not."""
        counts = {self.samples_of(problem) for problem in kept}
        limits = dict.fromkeys((min(counts), max(counts)))
        decoding = (
            "greedy"
            if sampling.temperature == 0
            else f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}"
            + (f", top-k {sampling.top_k}" if sampling.top_k else "")
            + (f", min-p {sampling.min_p:g}" if sampling.min_p else "")
        )
        return (
            f"{self.label}: {len(kept)} problems × {' to '.join(map(str, limits))} answers, {decoding}, "
            f"at most {sampling.max_tokens} tokens, prompt {resolve_prompt_name(self.data)}, "
            f"reward {' + '.join(resolve_reward_names(self.data))}"
            f"{f' (correctness by {judge})' if judge else ''}, seed {seed}"
        )


def load_benchmarks(
    settings: Settings, names: Sequence[str], samples: int, drawn: tuple[int, int], shots: Shots | None = None
) -> list[Benchmark]:
    """Load benchmarks by name, or the held-out problems of a run if no names are given.

    Args:
        settings: settings with prompt and reward; `auto` uses each task's default.
        names: the benchmarks, `NAME[:SPLIT][@PATH]`.
        samples: answers per problem; 0 uses each benchmark's default.
        drawn: the number of problems per benchmark (0 for all), and the seed of the random subset.
        shots: few-shot examples before each question; None leaves the prompt unchanged.

    Raises:
        UsageError: two tasks would have the same label, or a task has no standard few-shot examples.
        DataError: a task cannot be loaded.
    """
    loaded: dict[str, Benchmark] = {}
    for name, label, problems, left_out, subset in _list_tasks(settings, names):
        if label in loaded:
            raise UsageError(
                f"Two tasks to evaluate would both be called '{label}': evaluate one after the other, or rename a file."
            )
        data = replace(settings.data, tasks=(name,))
        if shots is not None:
            problems = add_exemplars(name, problems, shots)
        bench = _build_benchmark(name, problems, left_out, data, samples, drawn)
        bench = bench if bench.subset else replace(bench, subset=subset)
        loaded[label] = bench if shots is None else bench.with_exemplars(shots)
    return list(loaded.values())


def _list_tasks(
    settings: Settings, names: Sequence[str]
) -> Iterator[tuple[str, str, list[Problem], Counter[str], str]]:
    """Yield each task's name, label, problems, counts of skipped rows, and how a subset was drawn."""
    data = settings.data
    if not names:
        loaded = load_problems(data, settings.evaluation, settings.run.seed)
        if not loaded.benchmarks:
            raise UsageError("The run held out no problem with an answer to evaluate: name some with --tasks.")
        for name, bench in zip(settings.evaluation.tasks or data.tasks, loaded.benchmarks.items(), strict=True):
            yield name, *bench, Counter(), loaded.subsets.get(bench[0], "")
    revisions = parse_pairs(data.revisions, "data.revisions")
    for name in names:
        left_out: Counter[str] = Counter()
        mapping = choose_columns(data.map, name, evaluated=True)
        yield name, parse_task(name).label, tasks.load_task(name, "test", mapping, left_out, revisions), left_out, ""


def _build_benchmark(
    name: str,
    problems: Sequence[Problem],
    dropped: Counter[str],
    data: DataSettings,
    samples: int,
    drawn: tuple[int, int],
) -> Benchmark:
    """Build a benchmark of at most `drawn[0]` problems, drawn with seed `drawn[1]`."""
    numbered = number_copies(problems)
    judged = bool(getattr(plugins.load_leaf("tasks", parse_task(name).leaf), "JUDGED", True))
    answered = [problem for problem in numbered if problem.answer.strip()] if judged else numbered
    if not answered:
        raise DataError(f"No problem of {name} has an answer, so it cannot be evaluated.")
    kept, subset = draw_subset(answered, *drawn)
    usual = find_usual_samples(name)
    # A file that repeats each problem k times asks for k samples per problem.
    counts = {problem.id: samples or int(problem.meta.get("k", 1)) for problem in kept}
    if not samples and max(counts.values()) == 1:
        counts = dict.fromkeys(counts, usual)
    left_out = dropped + Counter({"problems without an answer": len(numbered) - len(answered)})
    unreadable = tuple(problem.id for problem in kept if judged and not _is_readable(problem.answer))
    bench = Benchmark(name, parse_task(name).label, kept, data, counts, left_out, unreadable, judged, subset)
    return replace(bench, copies=len(problems) - len({problem.id for problem in problems}))


def find_usual_samples(name: str) -> int:
    """Return the default number of samples per problem: declared by the task's module, or from the table."""
    task = parse_task(name)
    declared: Any = getattr(plugins.load_leaf("tasks", task.leaf), "SAMPLES", None)
    split = task.split or "test"  # which an evaluation reads
    if isinstance(declared, Mapping):
        declared = declared.get(split)
    if declared is not None and (type(declared) is not int or declared < 1):
        raise UsageError(
            f"The task {name}: SAMPLES must be a whole number from 1, or one for each split: {declared!r}."
        )
    return declared or SAMPLES.get(f"{task.leaf}:{split}") or SAMPLES.get(task.leaf, 1)


def find_usual_tokens(name: str) -> int:
    """Return the default answer limit in tokens: declared by the task's module, or from the table; 0 if neither."""
    leaf = parse_task(name).leaf
    return int(getattr(plugins.load_leaf("tasks", leaf), "MAX_TOKENS", 0) or TOKENS.get(leaf, 0))


def _is_readable(gold: str) -> bool:
    reading = read_gold(gold)
    return bool(reading.values or reading.choice) and not reading.over
