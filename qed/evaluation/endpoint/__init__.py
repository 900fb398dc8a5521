"""Evaluate a model behind an OpenAI-compatible endpoint: text in, text out."""
