"""From problems to graded rollouts: sample, grade, collect, keep for later."""
