"""Inference servers: qed's own, with an OpenAI-compatible API, and starting and watching others such as vLLM."""
