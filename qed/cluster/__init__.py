"""Starts the processes of a run and watches them."""
