"""qed teaches language models to reason, and proves that they got better."""

__version__ = "0.1.0"
