"""Grading: what is the final answer in a text, and are two answers the same."""
