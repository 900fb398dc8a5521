"""Inference servers: our own, with an OpenAI-compatible API, and the starting and watching of others such as vLLM."""
