"""Data: tasks, prompts, sources, splits, and the tools that inspect and convert it."""
