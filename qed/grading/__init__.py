"""Grading: extract the final answer of a text, and decide whether two answers are equal."""
