"""Checks and measurements of the machine: `qed doctor`."""
