"""The shelf of trackers: each shows a run in another program, such as W&B, and reads no more than the run's folder."""
