"""Guards: checks and watchers that detect what goes wrong in a run."""
