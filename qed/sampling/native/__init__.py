"""The fast sampler: a decoding loop of its own over the learner's model, read where it lies."""

from qed.sampling.native.sampler import make

__all__ = ["make"]
