"""Implement `qed data`: inspect and convert data, write offline snapshots of tasks, and check files row by row."""
