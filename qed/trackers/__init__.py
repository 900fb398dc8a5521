"""Trackers: each shows a run in another program, such as W&B, and reads nothing but the run's folder."""
