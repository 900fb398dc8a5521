"""Grading: extracts the final answer of a text, and decides whether two answers are equal."""
