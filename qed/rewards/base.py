"""A reward as a run uses it: one part of the shelf, somebody's own, or a weighted sum of several.

`0.5*overlong` takes a part with a weight; a weight of 0 logs a part without training on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from qed.config import plugins
from qed.config.reward_names import RewardEntry, parse_reward
from qed.errors import UsageError
from qed.grading.judge import serve
from qed.rewards import options as settings
from qed.rewards.adapters import Judge, find_functions
from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Grade, Rollout

FINAL_ANSWER = "accuracy"  # the leaf that judges the final answer, whatever the format


@dataclass(frozen=True)
class Part:
    """One term of a reward.

    `function` grades all answers to a problem; None, or a grade without a reward, stands for one to which it does not
    apply. `judges` tells whether it decides correctness, as a penalty on length does not; `batched` whether it must see
    those answers together; `checks_format` whether its `format_ok` says something.
    """

    weight: float
    name: str
    function: Judge
    judges: bool = True
    batched: bool = False
    users_own: bool = False
    checks_format: bool = True


@dataclass(frozen=True)
class Reward:
    """What grades answers: a sum of weighted parts."""

    parts: tuple[Part, ...]

    @property
    def batched(self) -> bool:
        """Whether some part must see all answers to a problem at once."""
        return any(part.batched for part in self.parts)

    @property
    def judge(self) -> str | None:
        """The name of the first part that decides correctness; None where none does."""
        return next((part.name for part in self.parts if part.judges), None)

    @property
    def checks_format(self) -> bool:
        """Whether some part says if the format holds."""
        return any(part.checks_format for part in self.parts)

    @property
    def users_own(self) -> bool:
        """Whether some part is code from outside of qed."""
        return any(part.users_own for part in self.parts)

    def grade(self, rollouts: Sequence[Rollout]) -> list[Grade]:
        """The grades of the answers to one problem, in their order."""
        columns = [part.function(rollouts) for part in self.parts]
        rows = zip(*columns, strict=True)
        return [self._sum(rollout, row) for rollout, row in zip(rollouts, rows, strict=True)]

    def _sum(self, rollout: Rollout, grades: Sequence[Grade | None]) -> Grade:
        """The weighted sum, with the verdict of the first part that judges, or that checks the format where none does;
        what its parts say is logged by name.

        Without a part that applies there is no reward; a part of weight 0 that applies makes it 0 (as in TRL).
        """
        if len(self.parts) == 1 and self.parts[0].weight == 1 and grades[0] is not None:
            return grades[0]
        told = [(part, grade) for part, grade in zip(self.parts, grades, strict=True) if grade is not None]
        present = [(part, grade) for part, grade in told if grade.has_reward]
        logged: dict[str, float] = {}
        for part, grade in present:
            logged[part.name] = grade.reward
            logged |= {f"{part.name}/{name}": value for name, value in grade.parts.items()}
        # A weight of 0 is left out, not multiplied: the part may be infinite.
        reward = sum((part.weight * grade.reward for part, grade in present if part.weight), 0.0)
        weights = {part.name: part.weight for part, _ in present}
        verdict = self._verdict(rollout, told)
        return replace(verdict, reward=reward, parts=logged, weights=weights, has_reward=bool(present))

    def _verdict(self, rollout: Rollout, told: Sequence[tuple[Part, Grade]]) -> Grade:
        judging = [grade for part, grade in told if part.judges]
        if not judging and any(part.judges for part in self.parts):
            return grade_by_final_answer(rollout)  # every function that judges said that it does not apply
        checking = [grade for part, grade in told if part.checks_format]
        return (judging or checking or [grade for _, grade in told] or [Grade(0.0, False, True, None)])[0]


def load_reward(
    names: Sequence[str], options: Sequence[str] = (), max_tokens: int = 0, conversational: bool = False
) -> Reward:
    """The reward of these entries, each `NAME` or `WEIGHT*NAME`, with options `NAME.FIELD=VALUE`.

    A name is a leaf of the shelf, a dotted module, `path.py` or `path.py:function`. `max_tokens`, the longest answer,
    is what parts that depend on it take where no option says otherwise. `conversational` gives TRL functions messages
    instead of strings.

    Raises:
        UsageError: an entry or option cannot be meant, a file defines no reward, or two parts have the same name.
    """
    if not names:
        raise UsageError("A run needs at least one reward.")
    entries = [parse_reward(name) for name in names]
    parsed = settings.parse_options(options)
    settings.check_names(parsed, (entry.name for entry in entries))
    parts = [part for entry in entries for part in _load_parts(entry, parsed, max_tokens, conversational)]
    for place, part in enumerate(parts):
        if any(part.name == other.name for other in parts[:place]):
            raise UsageError(f"Two rewards are called {part.name}, so they cannot be told apart: rename one.")
    return Reward(tuple(parts))


def _load_parts(
    entry: RewardEntry, options: Sequence[settings.Option], max_tokens: int, conversational: bool
) -> list[Part]:
    users_own = plugins.is_users_own(entry.source)
    module = plugins.load_leaf("rewards", entry.source)
    target = getattr(module, entry.function or "reward", None)
    target = settings.apply_options(entry.name, target, options, max_tokens)
    found = find_functions(module, entry.name, entry.function, target, conversational)
    judges = _judges(module)
    checks = judges or bool(getattr(module, "CHECKS_FORMAT", False))
    return [Part(entry.weight, one.name, one.judge, judges, one.batched, users_own, checks) for one in found]


def may_judge(name: str) -> bool:
    """Whether a reward decides correctness; code of the user's own, which is not loaded here, is taken to."""
    source = parse_reward(name).source
    return plugins.is_users_own(source) or _judges(plugins.load_leaf("rewards", source))


def _judges(module: ModuleType) -> bool:
    """Whether a module decides correctness: unless it says `JUDGES = False`."""
    return bool(getattr(module, "JUDGES", True))


def serve_reward(
    names: Sequence[str], options: Sequence[str], max_tokens: int, conversational: bool
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """A reward as the workers of a judge load it; see `load`."""
    reward = load_reward(names, options, max_tokens, conversational)
    about = {"batched": reward.batched, "judge": reward.judge, "checks_format": reward.checks_format}
    return about, serve(reward.grade)
