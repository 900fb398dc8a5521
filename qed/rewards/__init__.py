"""The rewards: `reward(rollout) -> Grade`, one reward per file; `base.load_reward` combines several into one."""
