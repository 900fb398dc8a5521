"""The rewards: `reward(rollout) -> Grade`, one reward per file; `base.load_reward` combines several into one."""

from qed.rewards.wrappers import trl, verl

__all__ = ["trl", "verl"]
