"""What `qed data` does: look at data, convert it, make offline snapshots of tasks, and check files row by row."""
