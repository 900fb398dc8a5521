"""Base class of algorithms on preference pairs: the losses, their weights, and the sums of log-probs.

Rows alternate between chosen and rejected. Log-probs are summed over the response; the prompt is the same for
both, so it cancels out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qed.algorithms.base import Algorithm, Average, compute_token_weights, require, require_moves
from qed.algorithms.parts import pair_losses
from qed.algorithms.parts.pair_losses import FDivergence, Pairs, Preference

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Preferences(Algorithm):
    """Raises the probability of chosen over rejected completions, relative to a reference model."""

    average: Average = "token"
    """How the sft loss is averaged over the chosen answers; the other losses are means over pairs."""
    losses: tuple[Preference, ...] = ("sigmoid",)
    """The losses to add up; sft is the negative log-likelihood of the chosen answers."""
    loss_weights: tuple[float, ...] = ()
    """The weight of each loss; empty gives each 1."""
    beta: float = 0.1
    """Strength of the KL constraint to the reference; larger values stay closer to it."""
    label_smoothing: float = 0.0
    """Assumed share of mislabelled pairs, for cdpo, robust, exo_pair, aot and aot_unpaired."""
    divergence: FDivergence = "reverse_kl"
    """The f-divergence from the reference."""
    divergence_alpha: float = 0.5
    """The alpha of the alpha-divergence."""
    length_alpha: float = 1.0
    """Weight of tokens beyond the length of the pair's shorter answer (LD-DPO); 1 gives all tokens the same weight."""
    weighted: bool = False
    """Weight each pair by the probability of both answers under the policy (WPO)."""
    reference_model: str = ""
    """Name or folder of the reference model; empty takes the model at the start of the phase."""

    reference_every: int = 0
    """Number of steps after which the reference model moves towards the policy (TR-DPO); 0 never moves it."""
    reference_mix: float = 0.6
    """How far the reference moves: 1 replaces it with the current policy, smaller values mix their weights."""

    together: ClassVar[int] = 2
    by_advantage: ClassVar[bool] = False
    step_means: ClassVar[tuple[str, ...]] = tuple(
        f"{name}/{figure}" for name in ("rewards", "logps") for figure in ("chosen", "rejected", "margin", "accuracy")
    )

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        require(bool(self.losses), "algorithm.losses must name at least one loss.")
        require(
            len(self.loss_weights) in (0, len(self.losses)),
            f"algorithm.loss_weights must hold one weight for each of the {len(self.losses)} losses, or be empty.",
        )
        require_moves(*self.reference_moves)
        require(
            self.reference or not self.reference_every,
            "algorithm.reference_every moves a reference model, but none is kept: the sft loss alone needs none, and "
            "algorithm.precompute_reference uses it only once.",
        )
        require(0 < self.beta < math.inf, "algorithm.beta must be a finite number above 0.")
        require(all(map(math.isfinite, self.loss_weights)), "algorithm.loss_weights must be finite numbers.")
        require(math.isfinite(self.divergence_alpha), "algorithm.divergence_alpha must be a finite number.")
        require(0 <= self.label_smoothing < 0.5, "algorithm.label_smoothing must lie in [0, 0.5).")
        require(0 <= self.length_alpha <= 1, "algorithm.length_alpha must lie in [0, 1].")
        sorting = [loss for loss in self.losses if loss in pair_losses.SORTED]
        require(len(set(sorting)) < 2, "algorithm.losses can contain aot or aot_unpaired, but not both.")
        require(
            not sorting or not self.weighted,
            f"algorithm.weighted cannot be used with {sorting}, which compares pairs by rank.",
        )
        require(
            "aot" not in sorting or self.divergence == "reverse_kl",
            "The loss aot sorts margins of log-probs, so algorithm.divergence must be reverse_kl.",
        )

    @property
    def reference(self) -> bool:
        """Whether there is a loss other than sft."""
        return set(self.losses) != {"sft"}

    @property
    def reference_name(self) -> str:
        """The setting `reference_model`."""
        return self.reference_model

    @property
    def reference_moves(self) -> tuple[int, float]:
        """The settings `reference_every` and `reference_mix`."""
        return self.reference_every, self.reference_mix

    @property
    def log_squares(self) -> bool:
        """Whether the weights of WPO are computed."""
        return self.weighted

    @property
    def two_pass(self) -> bool:
        """Whether a loss sorts all pairs of the step."""
        return bool(set(self.losses) & set(pair_losses.SORTED))

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the sft loss's weights for chosen rows, averaged over only these; rejected rows sum to the pair's
        weight."""
        weights = compute_token_weights(batch.mask, "sequence", length) * 2
        weights[0::2] = compute_token_weights(batch.mask[0::2], self.average, self.average_length or length)
        return weights

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return both rows of every pair with a trained token."""
        return super().has_gradient(batch).view(-1, 2).any(1).repeat_interleave(2)

    def pairs(self, batch: Batch, logps: Tensor) -> Pairs:
        """Compute the input of the losses."""
        ratios = self._sum_tokens(batch, logps - batch.ref_logps)
        scores = pair_losses.compute_score(ratios, self.divergence, self.divergence_alpha)
        lengths, partners = batch.mask.sum(1).clamp(min=1), batch.prepared[:, 0]
        return Pairs(scores[0::2], scores[1::2], lengths[0::2], lengths[1::2], partners[0::2], partners[1::2])

    def _sum_tokens(self, batch: Batch, values: Tensor) -> Tensor:
        """Sum values over each row's response, [B], with the token weights from `length_alpha`."""
        shares = pair_losses.compute_shares(batch.mask, self.length_alpha)
        return (shares * values.masked_fill(batch.mask == 0, 0)).sum(1)

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """Compute the partners of each pair, if a loss compares it with other pairs."""
        if logps is None:
            return batch
        pairs, reference = self.pairs(batch, logps), self._sum_tokens(batch, batch.ref_logps)
        name = next(loss for loss in self.losses if loss in pair_losses.SORTED)
        prepared = batch.prepared.clone()
        both = pair_losses.choose_partners(name, pairs.c, pairs.r, reference[0::2] - reference[1::2])
        prepared[0::2], prepared[1::2] = (partner[:, None] for partner in both)
        return replace(batch, prepared=prepared)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted sum of the losses, each a mean over the pairs of the step."""
        share, pairs = batch.weights[1::2].sum(1), self.pairs(batch, logps)
        per_pair = pairs.c.new_zeros(len(share))
        loss = pairs.c.new_zeros(())
        for name, weight in zip(self.losses, self.loss_weights or (1.0,) * len(self.losses), strict=True):
            if name == "sft":
                likelihood = batch.weights[0::2] * logps[0::2].masked_fill(batch.mask[0::2] == 0, 0)
                loss = loss - weight * likelihood.sum()
            else:
                per_pair = per_pair + weight * pair_losses.LOSSES[name](pairs, self.beta, self.label_smoothing)
        if self.weighted:
            per_pair = per_pair * self._compute_wpo_weights(batch, logps.detach())
        return loss + (share * per_pair).sum(), self._compute_metrics(batch, logps.detach(), share)

    def _compute_wpo_weights(self, batch: Batch, logps: Tensor) -> Tensor:
        """Compute WPO's weights (arXiv 2406.11827), [P]: prod over both of exp(mean_t(log p_t - log sum_v p_v^2))."""
        surplus = (logps - batch.log_squares).masked_fill(batch.mask == 0, 0)
        means = surplus.sum(1) / batch.mask.sum(1).clamp(min=1)
        return (means[0::2] + means[1::2]).exp()

    def _compute_metrics(self, batch: Batch, logps: Tensor, share: Tensor) -> dict[str, Tensor]:
        """Compute metrics: log-probs, implicit rewards beta c and beta r, their margins, and ranking accuracy."""
        columns = {"logps": self._sum_tokens(batch, logps)}
        if set(self.losses) != {"sft"}:
            columns["rewards"] = self.beta * self._sum_tokens(batch, logps - batch.ref_logps)
        metrics: dict[str, Tensor] = {}
        for name, values in columns.items():
            chosen, rejected = values[0::2], values[1::2]
            metrics |= {f"{name}/chosen": chosen, f"{name}/rejected": rejected, f"{name}/margin": chosen - rejected}
            metrics[f"{name}/accuracy"] = (chosen > rejected).to(share.dtype)
        return {name: (share * values).sum() for name, values in metrics.items()}
