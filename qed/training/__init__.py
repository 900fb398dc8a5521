"""Optimizer steps over rollouts: batches, packing, log-probs, the learner, checkpoints."""
