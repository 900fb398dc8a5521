"""The settings of distillation: which teacher, which divergence to it, and how much of a reward beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.algorithms.base import require

Kind = Literal["sampled", "reverse_kl", "forward_kl", "jsd"]


@dataclass(frozen=True)
class Distillation:
    """The divergence of the policy to a teacher, on the policy's own answers."""

    teacher: str = ""
    """The teacher: the name or folder of a model with the policy's tokenizer."""
    divergence: Kind = "sampled"
    """sampled: the reverse KL by the log-probs of the sampled tokens, as a reward of each token; reverse_kl,
    forward_kl and jsd: over the whole vocabulary, with the exact gradient."""
    beta: float = 0.5
    """The share of the teacher in the mixture of jsd: near 0 it is like the forward KL, near 1 like the reverse KL."""
    distil: float = 1.0
    """Weight of the divergence."""
    reward: float = 0.0
    """Weight of the policy gradient by the verifiable reward."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(0 < self.beta < 1, "algorithm.beta must lie in (0, 1): take forward_kl or reverse_kl for its ends.")
        require(self.distil >= 0, "algorithm.distil must not be negative.")
        require(self.reward >= 0, "algorithm.reward must not be negative.")
        require(self.distil > 0 or self.reward > 0, "algorithm.distil and algorithm.reward are both 0.")

    @property
    def by_sampled_tokens(self) -> bool:
        """Whether only the log-probs of sampled tokens are compared, before the update."""
        return self.divergence == "sampled" and self.distil > 0

    @property
    def mixture(self) -> float | None:
        """The beta of the divergence over the vocabulary: 0 for forward_kl, 1 for reverse_kl; None for sampled."""
        if self.distil == 0:
            return None
        return {"sampled": None, "forward_kl": 0.0, "reverse_kl": 1.0, "jsd": self.beta}[self.divergence]
