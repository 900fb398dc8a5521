"""Recipes: whole runs, each readable from top to bottom."""
