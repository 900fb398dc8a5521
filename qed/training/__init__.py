"""One optimizer step over rollouts: batches, packing, log-probs, the learner, checkpoints."""
