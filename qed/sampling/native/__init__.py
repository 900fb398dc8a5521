"""The native sampler: a decoding loop with continuous batching on the learner's own model."""

from qed.sampling.native.sampler import make

__all__ = ["make"]
