"""A prompt in a run with another reward than the prompt's own, which decides what replies are imitated verbatim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qed.config import plugins
from qed.config.callables import is_callable_name
from qed.config.reward_names import parse_reward
from qed.data.prompts.wrapping import WrappedLeaf
from qed.rewards.base import load_reward, may_judge
from qed.rewards.grader import InProcessGrader
from qed.rewards.options import parse_options
from qed.types import UNGRADED, Problem, Rollout


@dataclass(frozen=True)
class PromptWithReward(WrappedLeaf):
    """A prompt leaf with the rewards of a run and their options; everything else is delegated to the leaf."""

    rewards: tuple[str, ...]
    reward_options: tuple[str, ...] = ()


def add_reward(leaf: Any, rewards: Sequence[str], own_options: Sequence[str], shared: Sequence[str]) -> Any:
    """Return a prompt with the rewards of a run; unchanged if the only reward is its own, without options.

    Args:
        leaf: the prompt.
        rewards: NAME or WEIGHT*NAME.
        own_options: options of the rewards.
        shared: options that the prompt shares with the rewards.
    """
    if not own_options and all(parse_reward(name).source == leaf.REWARD for name in rewards):
        return leaf
    return PromptWithReward(leaf, tuple(rewards), (*shared, *own_options))


def list_shared_options(prompt_options: Sequence[str], rewards: Sequence[str]) -> tuple[str, ...]:
    """List the prompt options that also apply to the reward of the same name, such as tags, to set them only once."""
    owners = {parse_reward(name).name for name in rewards}
    split = [option.strip().partition(".") for option in prompt_options]
    return tuple(f"{name}.{rest}" for owner, _, rest in split if (name := owner.replace("-", "_")) in owners)


@lru_cache
def load_run_grader(leaf: Any) -> InProcessGrader | None:
    """Load the grader of demonstrations in a prompt's run: the parts of its reward that decide correctness.

    Return None if these are the prompt's own, or cannot be evaluated here: user code, a server, a model, or a reward
    that depends on more than the text.
    """
    if not isinstance(leaf, PromptWithReward):
        return None
    names = [name for name in leaf.rewards if may_judge(name)]
    entries = [parse_reward(name) for name in names]
    owners = {entry.name for entry in entries}
    options = [option.written for option in parse_options(leaf.reward_options) if option.name in owners]
    own = not options and all(entry.source == leaf.REWARD for entry in entries)
    if own or not all(can_be_asked(entry.source) for entry in entries):
        return None
    grader = InProcessGrader(load_reward(names, options))
    tried = grader([[Rollout(Problem("", "", "0"), (), (), (), "0", "stop")]])[0][0]
    return None if tried.tier in UNGRADED else grader


def can_be_asked(source: str) -> bool:
    """Return whether a reward is built in and grades in this process without waiting for anything."""
    if plugins.is_users_own(source) or is_callable_name(source):
        return False
    return not hasattr(getattr(plugins.load_leaf("rewards", source), "reward", None), "prepare")
