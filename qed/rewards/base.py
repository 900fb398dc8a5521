"""The reward of a run: a built-in or user-defined reward, or a weighted sum of several.

`0.5*overlong` gives a part a weight; a weight of 0 logs the part without training on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from qed.config import plugins
from qed.config.callables import find_function, is_callable_name
from qed.config.reward_names import RewardEntry, parse_reward
from qed.errors import UsageError
from qed.grading.judge import serve
from qed.rewards import options as settings
from qed.rewards.adapters import GradeFunction, find_functions
from qed.rewards.callables import CallableReward
from qed.rewards.forms.calling import Grades, call_or_replace, wait_for
from qed.rewards.handed import describe_function
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import UNGRADED, Grade, Rollout

LEFT_OUT = "left out"  # the tier of a failed log-only part; never the tier of an answer
FINAL_ANSWER = "accuracy"  # the reward that checks the final answer, whatever the format


@dataclass(frozen=True)
class Part:
    """One term of a reward.

    `function` grades all answers to a problem; for an answer to which it does not apply, it returns None or a grade
    without a reward. `judges` says whether it decides correctness (a length penalty does not), `batched` whether it
    must see all answers to a problem together, `users_own` whether it is user-defined code, and `checks_format` whether
    its `format_ok` is meaningful. `concurrency` is the number of answers that it grades in parallel, above 1 if it
    waits for a server; `close` cancels the waiting. `precompute` receives all answers of a step before they are graded,
    so that a reward model can score them in batches. `called` is the user's function, in one of the `form`s of the
    adapters, and `source` the file or module it comes from, without the function's name. `tags` are those that a
    built-in reward looks for, in the order of a prompt's.
    """

    weight: float
    name: str
    function: GradeFunction
    judges: bool = True
    batched: bool = False
    users_own: bool = False
    checks_format: bool = True
    concurrency: int = 1
    close: Callable[[], None] = lambda: None
    precompute: Callable[[Sequence[Rollout]], None] | None = None
    form: str = "qed"
    called: Callable[..., Any] | None = None
    source: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reward:
    """A reward: a sum of weighted parts."""

    parts: tuple[Part, ...]

    @property
    def batched(self) -> bool:
        """Whether any part must see all answers to a problem at once."""
        return any(part.batched for part in self.parts)

    @property
    def judge(self) -> str | None:
        """The name of the first part that decides correctness; None if no part does."""
        return next((part.name for part in self.parts if part.judges), None)

    @property
    def checks_format(self) -> bool:
        """Whether any part checks the format."""
        return any(part.checks_format for part in self.parts)

    @property
    def users_own(self) -> bool:
        """Whether any part is user-defined code."""
        return any(part.users_own for part in self.parts)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the first part that looks for tags."""
        return next((part.tags for part in self.parts if part.tags), ())

    @property
    def concurrency(self) -> int:
        """The number of answers that are graded in parallel."""
        return max(part.concurrency for part in self.parts)

    def close(self) -> None:
        """Cancel what the parts wait for."""
        for part in self.parts:
            part.close()

    def grade(self, rollouts: Sequence[Rollout]) -> list[Grade]:
        """Grade the answers to one problem, in order."""
        columns = wait_for([self._call(part, rollouts) for part in self.parts])
        rows = zip(*columns, strict=True)
        return [self._sum(rollout, row) for rollout, row in zip(rollouts, rows, strict=True)]

    def _counts(self, part: Part) -> bool:
        """Return whether a failure of a part leaves the answer without a reward."""
        return bool(part.weight) or part.name == self.judge

    def _call(self, part: Part, rollouts: Sequence[Rollout]) -> Grades | Awaitable[Grades]:
        """Call a part; if a log-only part fails, it gets no reward without affecting the answer's."""
        if self._counts(part):
            return part.function(rollouts)

        def leave_out(error: Exception) -> Grades:
            reason = f"{part.name}, of weight 0, failed: {type(error).__name__}: {error}"
            return [Grade(0.0, False, False, None, tier=LEFT_OUT, reason=reason, has_reward=False)] * len(rollouts)

        return call_or_replace(part.function, rollouts, leave_out)

    def _sum(self, rollout: Rollout, grades: Sequence[Grade | None]) -> Grade:
        """Return the weighted sum of the grades of one answer, with each part logged under its name.

        The verdict is that of the first part that decides correctness, else of the first that checks the format. There
        is no reward if no part applies, or if a part that is not log-only could not decide; if only parts of weight 0
        apply, the reward is 0 (as in TRL).
        """
        alone = len(self.parts) == 1 and self.parts[0].weight == 1 and self.parts[0].precompute is None
        if alone and grades[0] is not None:
            return grades[0]
        known = [(part, grade) for part, grade in zip(self.parts, grades, strict=True) if grade is not None]
        if undecided := [grade for part, grade in known if grade.tier in UNGRADED and self._counts(part)]:
            return replace(undecided[0], parts={})
        graded = [(part, grade) for part, grade in known if grade.tier not in (LEFT_OUT, *UNGRADED)]
        applicable = [(part, grade) for part, grade in graded if grade.has_reward]
        logged: dict[str, float] = {}
        for part, grade in applicable:
            logged[part.name] = grade.reward
            logged |= {f"{part.name}/{name}": value for name, value in grade.parts.items()}
        # A part of weight 0 is skipped rather than multiplied, because 0 times infinity is NaN.
        reward = sum((part.weight * grade.reward for part, grade in applicable if part.weight), 0.0)
        weights = {part.name: part.weight for part, _ in applicable}
        verdict = self._choose_verdict(rollout, graded)
        left_out = [grade.reason for _, grade in known if grade.tier in (LEFT_OUT, *UNGRADED)]
        verdict = replace(verdict, reason="; ".join(filter(None, [verdict.reason, *left_out])))
        return replace(verdict, reward=reward, parts=logged, weights=weights, has_reward=bool(applicable))

    def _choose_verdict(self, rollout: Rollout, graded: Sequence[tuple[Part, Grade]]) -> Grade:
        judging = [grade for part, grade in graded if part.judges]
        if not judging and any(part.judges for part in self.parts):
            return grade_by_final_answer(rollout)  # no applicable part decides correctness
        checking = [grade for part, grade in graded if part.checks_format]
        return (judging or checking or [grade for _, grade in graded] or [Grade(0.0, False, True, None)])[0]


def load_reward(
    names: Sequence[str], options: Sequence[str] = (), max_tokens: int = 0, conversational: bool = False
) -> Reward:
    """Load a reward from entries `NAME` or `WEIGHT*NAME`, with options `NAME.FIELD=VALUE`.

    Args:
        names: names of the parts: a built-in reward, a dotted module, `path.py` or `path.py:function`, or the name of
            a function of the caller, see `qed.config.callables`.
        options: the settings of the parts.
        max_tokens: the maximum answer length, the default for parts that depend on it.
        conversational: pass messages instead of strings to TRL functions.

    Raises:
        UsageError: an entry or option is invalid, a file defines no reward, or two parts have the same name.
    """
    if not names:
        raise UsageError("A run needs at least one reward.")
    entries = [parse_reward(name) for name in names]
    parsed = settings.parse_options(options)
    settings.check_names(parsed, [name for entry in entries for name in _list_names(entry)])
    _require_one_source(parsed, entries)
    return Reward(
        _distinguish(
            [(entry, part) for entry in entries for part in _load_parts(entry, parsed, max_tokens, conversational)]
        )
    )


def _distinguish(parts: Sequence[tuple[RewardEntry, Part]]) -> tuple[Part, ...]:
    """Return the parts with unique names, prefixing functions of the same name with the name of their file.

    Raises:
        UsageError: two still have the same name.
    """
    times = Counter(part.name for _, part in parts)
    named = [
        replace(part, name=f"{entry.name}.{part.name}") if times[part.name] > 1 and entry.name != part.name else part
        for entry, part in parts
    ]
    first: dict[str, RewardEntry] = {}
    for (entry, _), part in zip(parts, named, strict=True):
        if (other := first.setdefault(part.name, entry)) is not entry:
            raise UsageError(f"Two rewards are named {part.name}: {_advise_name(entry, other)}.")
    return tuple(named)


def _advise_name(entry: RewardEntry, other: RewardEntry) -> str:
    """Return advice about two rewards with the same name."""
    if entry.folder != other.folder:
        return f"a run takes one reward model, {other.folder} or {entry.folder}"
    if entry.source == other.source or _is_file_of(entry, other):
        return "name it once"
    return f"rename one, {other.source} or {entry.source}"


def _is_file_of(entry: RewardEntry, other: RewardEntry) -> bool:
    """Return whether two rewards are from the same file, whose path may be written in several ways."""
    return entry.source.endswith(".py") and Path(entry.source).resolve() == Path(other.source).resolve()


def _load_parts(
    entry: RewardEntry, options: Sequence[settings.Option], max_tokens: int, conversational: bool
) -> list[Part]:
    if is_callable_name(entry.source):
        name = entry.source.strip("<>").replace(" ", "_")
        own = CallableReward(find_function(entry.source), name, conversational)
        return [Part(entry.weight, own.name, own, batched=True, users_own=True, checks_format=True)]
    users_own = plugins.is_users_own(entry.source)
    module = plugins.load_leaf("rewards", entry.source)
    target = getattr(module, entry.function or "reward", None)
    target = replace(target, folder=entry.folder) if entry.folder and target is not None else target
    target = settings.apply_options(_list_names(entry), target, options, max_tokens)
    judges, serving = _decides_correctness(module), dict[str, Any]()
    if not users_own and hasattr(target, "prepare"):  # a reward that waits for a server
        target.prepare()
        judges, serving = target.judges, {"concurrency": target.concurrency, "close": target.close}
        serving["precompute"] = getattr(target, "score_all", None)
    functions = find_functions(module, entry.name, entry.function, target, conversational)
    checks = judges or bool(getattr(module, "CHECKS_FORMAT", False))
    return [
        Part(
            entry.weight,
            function.name,
            function.grade,
            judges,
            function.batched,
            users_own,
            checks,
            form=function.form,
            called=function.called,
            source="" if entry.function else entry.source,
            tags=() if users_own else tuple(getattr(target, "tags", ())),
            **serving,
        )
        for function in functions
    ]


def _list_names(entry: RewardEntry) -> list[str]:
    """Return the names that options of a reward may use: its own, and that of its function."""
    return [entry.name, entry.function] if entry.function else [entry.name]


def _require_one_source(options: Sequence[settings.Option], entries: Sequence[RewardEntry]) -> None:
    """Raise if an option's name is ambiguous between functions of several files.

    Raises:
        UsageError: there is such an option.
    """
    for option in options:
        meant = {entry.source: entry for entry in entries if option.name in _list_names(entry)}
        if len(meant) > 1:
            others = [name for entry in meant.values() for name in _list_names(entry) if name != option.name]
            named = " or ".join(f"{name}.{option.field}={option.value}" for name in others)
            raise UsageError(
                f"The option '{option.written}' applies to {' and '.join(meant)}. Write {named or 'other names'}."
            )


def may_judge(name: str) -> bool:
    """Return whether a reward may decide correctness; user-defined code is not loaded here and is assumed to."""
    source = parse_reward(name).source
    users_own = plugins.is_users_own(source) or is_callable_name(source)
    return users_own or _decides_correctness(plugins.load_leaf("rewards", source))


def _decides_correctness(module: ModuleType) -> bool:
    """Return whether a module decides correctness, which is the default unless it sets `JUDGES = False`."""
    return bool(getattr(module, "JUDGES", True))


def serve_reward(
    names: Sequence[str], options: Sequence[str], max_tokens: int, conversational: bool
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Load a reward in the workers of a judge; see `load_reward` for the arguments."""
    reward = load_reward(names, options, max_tokens, conversational)
    about = {
        "batched": reward.batched,
        "judge": reward.judge,
        "checks_format": reward.checks_format,
        "functions": [
            describe_function(part.name, part.form, part.called, part.source, conversational)
            for part in reward.parts
            if part.users_own and part.called is not None
        ],
    }
    return about, serve(reward.grade)
