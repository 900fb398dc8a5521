"""The shelf of rewards: `reward(rollout) -> Grade`, one file a thing."""
