"""Settings of distillation: the divergence to the teacher, its weight, and the weight of the reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import Divergence, require
from qed.algorithms.parts.losses import mask_values
from qed.types import Advantage, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.algorithms.parts.regularizer import Regularizer
    from qed.training.batch import Batch

Kind = Literal["sampled", "reverse_kl", "forward_kl", "jsd"]


def require_teacher_alone(regularizer: Regularizer) -> None:
    """Reject a moving reference model: the teacher takes its place, and has its own settings."""
    require(
        regularizer.reference_every == 0,
        "algorithm.reference_every moves the reference model towards the policy, but here it is the teacher. "
        "Remove the setting; only opsd has a teacher that follows the policy, with algorithm.teacher_weights=ema.",
    )


@dataclass(frozen=True)
class Distillation:
    """The policy's divergence to a teacher, on the policy's own answers."""

    divergence: Kind = "sampled"
    """sampled: the reverse KL from the log-probs of the sampled tokens, as a reward for each token; reverse_kl,
    forward_kl and jsd: over the whole vocabulary, with the exact gradient."""
    beta: float = 0.5
    """Share of the teacher in the mixture of jsd: near 0 it is like the forward KL, near 1 like the reverse KL."""
    divergence_clip: float = math.inf
    """Maximum that one token of the vocabulary adds to the divergence, in nats; sampled has no such terms."""
    teacher_top_k: int = 0
    """Compare only this many of the teacher's most likely tokens, and all others as one; 0 compares all tokens."""
    distil: float = 1.0
    """Weight of the divergence."""
    reward: float = 0.0
    """Weight of the policy gradient from the verifiable reward."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(0 < self.beta < 1, "algorithm.beta must lie in (0, 1): for its ends, use forward_kl or reverse_kl.")
        require(self.divergence_clip > 0, "algorithm.divergence_clip must be above 0; inf does not clip.")
        require(self.teacher_top_k >= 0, "algorithm.teacher_top_k must not be negative.")
        require(
            self.teacher_top_k == 0 or math.isinf(self.divergence_clip),
            "algorithm.teacher_top_k merges all other tokens into one, which algorithm.divergence_clip would clip. "
            "Set algorithm.divergence_clip=inf, or algorithm.teacher_top_k=0.",
        )
        require(
            self.teacher_top_k == 0 or self.divergence != "sampled",
            "algorithm.teacher_top_k needs a divergence over the vocabulary, but algorithm.divergence=sampled reads "
            "only the log-probs of sampled tokens. Use reverse_kl, forward_kl or jsd.",
        )
        require(0 <= self.distil < math.inf, "algorithm.distil must be a finite number, 0 or more.")
        require(0 <= self.reward < math.inf, "algorithm.reward must be a finite number, 0 or more.")
        require(self.distil > 0 or self.reward > 0, "algorithm.distil and algorithm.reward must not both be 0.")

    @property
    def unread(self) -> dict[str, str]:
        """The settings that have no effect on the divergence, each with the setting that disables it."""
        reason = "distil=0" if self.distil == 0 else f"divergence={self.divergence}"
        unread = ["beta"] if self.divergence != "jsd" or self.distil == 0 else []
        unread += ["divergence_clip", "teacher_top_k"] if self.over_vocabulary is None else []
        return dict.fromkeys(unread, reason)

    @property
    def by_sampled_tokens(self) -> bool:
        """Whether only log-probs of sampled tokens are compared, before the update."""
        return self.divergence == "sampled" and self.distil > 0

    @property
    def over_vocabulary(self) -> Divergence | None:
        """The divergence over the vocabulary: beta is 0 for forward_kl, 1 for reverse_kl; None for sampled."""
        if self.distil == 0 or self.divergence == "sampled":
            return None
        beta = {"forward_kl": 0.0, "reverse_kl": 1.0, "jsd": self.beta}[self.divergence]
        return Divergence(beta, self.divergence_clip, self.teacher_top_k)


def add_opinions(
    groups: Groups,
    rewarded: Sequence[Sequence[Advantage]],
    settings: Distillation,
    begin: Callable[[Rollout], int],
) -> list[list[Advantage]]:
    """Weight the advantages of the reward and, with the sampled divergence, add the teacher's log-ratios.

    The teacher's log-ratio of a token is log pi_T(y_t) - log pi_old(y_t).

    Args:
        groups: groups scored by the policy and by the teacher.
        rewarded: advantages of the reward.
        settings: weights of both.
        begin: returns the first token of a rollout that learns from the teacher.
    """
    return [
        [
            _add_opinion(rollout, advantage, settings, begin(rollout))
            for rollout, advantage in zip(group, advantages, strict=True)
        ]
        for group, advantages in zip(groups, rewarded, strict=True)
    ]


def _add_opinion(rollout: Rollout, advantage: Advantage, settings: Distillation, begin: int) -> Advantage:
    values = advantage if isinstance(advantage, tuple) else (advantage,) * len(rollout.output)
    paid = [settings.reward * value for value in values]
    if settings.by_sampled_tokens and rollout.old_logps is not None and rollout.ref_logps is not None:
        gained = [ref - old for ref, old in zip(rollout.ref_logps, rollout.old_logps, strict=True)]
        learned = [settings.distil * gain for gain in gained[begin:]]
        paid[begin:] = [value + gain for value, gain in zip(paid[begin:], learned, strict=True)]
    return paid[0] if len(set(paid)) == 1 else tuple(paid)


def compute_distillation(
    batch: Batch, settings: Distillation, learning: Tensor
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Compute the weighted divergence of a micro-batch, None if it is part of the advantages, and its metric.

    Args:
        batch: the micro-batch.
        settings: the weight of the divergence.
        learning: whether each token learns from the teacher, [B, T], 0 or 1.
    """
    if batch.divergence is None:
        if not settings.by_sampled_tokens:
            return None, {}
        return None, {"distillation/divergence": mask_values(batch.old_logps - batch.ref_logps, learning).sum()}
    divergence = batch.divergence * learning
    stats = {"distillation/divergence": divergence.detach().sum()}
    return settings.distil * (batch.weights * divergence).sum(), stats
