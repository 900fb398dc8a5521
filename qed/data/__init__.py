"""Data: tasks, prompts, sources, splits, and the tools that look at it."""
