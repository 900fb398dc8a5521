"""Set the grading policy of the rewards that compare answers: `--policy qwen`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from qed.config import plugins
from qed.config.callables import is_callable_name
from qed.config.reward_names import parse_reward
from qed.errors import UsageError
from qed.grading.policy import find_policy

DEFAULT = "math"


def add_policy(names: Sequence[str], options: Sequence[str], policy: str) -> tuple[str, ...]:
    """Return the options of rewards, with the policy added for those that compare answers.

    Args:
        names: entries `NAME` or `WEIGHT*NAME` of a reward, without `auto`.
        options: `NAME.FIELD=VALUE`; a policy already set there for a reward is kept.
        policy: math, qwen or strict.

    Raises:
        UsageError: there is no such policy, or no part supports one because all have their own rules.
    """
    find_policy(policy)
    if policy == DEFAULT:
        return tuple(options)
    taking = [parse_reward(name).name for name in names if _takes_policy(name)]
    if not taking:
        raise UsageError(
            f"--policy {policy} is for rewards that compare answers with qed's grader; {', '.join(names)} has its own "
            "rules. Use --reward accuracy, or boxed, question_only, r1_zero or think_answer."
        )
    chosen = {option.partition("=")[0].strip() for option in options}
    added = (f"{name}.policy={policy}" for name in dict.fromkeys(taking) if f"{name}.policy" not in chosen)
    return (*options, *added)


def _takes_policy(name: str) -> bool:
    source = parse_reward(name).source
    if plugins.is_users_own(source) or is_callable_name(source):
        return False
    target: Any = getattr(plugins.load_leaf("rewards", source), "reward", None)
    return is_dataclass(target) and any(field.name == "policy" for field in fields(target))
