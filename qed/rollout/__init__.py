"""From problems to graded rollouts: sample, grade, collect, store for replay."""
