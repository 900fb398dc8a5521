"""What the algorithms on preference pairs share: the losses, their weights, and how a pair's log-probs are summed.

Rows come as chosen, rejected, chosen, rejected. Log-probs are summed over the response; the prompt is the same for
both, so it cancels.
"""

from __future__ import annotations

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
    """Raises the probability of chosen answers against rejected ones, measured from a reference."""

    average: Average = "token"
    """How the sft loss is averaged over the chosen answers; the other losses are means over pairs."""
    losses: tuple[Preference, ...] = ("sigmoid",)
    """Losses that are added up; sft is the negative log-likelihood of the chosen answers."""
    loss_weights: tuple[float, ...] = ()
    """The weight of each loss; empty gives each 1."""
    beta: float = 0.1
    """How strongly the policy is held to the reference."""
    label_smoothing: float = 0.0
    """The share of pairs taken to be labelled wrongly, in cdpo, robust, exo_pair, aot and aot_unpaired."""
    divergence: FDivergence = "reverse_kl"
    """The f-divergence from the reference."""
    divergence_alpha: float = 0.5
    """The alpha of the alpha-divergence."""
    length_alpha: float = 1.0
    """The weight of tokens beyond the length of the pair's shorter answer, LD-DPO; 1 counts all alike."""
    with_weights: bool = False
    """Weigh each pair by how probable both answers are under the policy, WPO."""
    reference_model: str = ""
    """The reference model by name or folder; empty takes the model as it stands when the phase begins."""

    reference_every: int = 0
    """Steps after which the reference model moves towards the policy, TR-DPO; 0 never moves it."""
    reference_mix: float = 0.6
    """How far it moves: 1 makes it the policy as it is then, less mixes their weights."""

    together: ClassVar[int] = 2
    by_advantage: ClassVar[bool] = False
    step_means: ClassVar[tuple[str, ...]] = tuple(
        f"{name}/{figure}" for name in ("rewards", "logps") for figure in ("chosen", "rejected", "margin", "accuracy")
    )

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        require(bool(self.losses), "algorithm.losses must name a loss.")
        require(
            len(self.loss_weights) in (0, len(self.losses)),
            f"algorithm.loss_weights must give a weight to each of {len(self.losses)} losses, or be empty.",
        )
        require_moves(*self.reference_moves)
        require(
            self.reference or not self.reference_every,
            "algorithm.reference_every moves a reference model, and none is kept: the sft loss alone reads none, and "
            "algorithm.precompute_reference scores it once.",
        )
        require(self.beta > 0, "algorithm.beta must be above 0.")
        require(0 <= self.label_smoothing < 0.5, "algorithm.label_smoothing must lie in [0, 0.5).")
        require(0 <= self.length_alpha <= 1, "algorithm.length_alpha must lie in [0, 1].")
        in_order = [loss for loss in self.losses if loss in pair_losses.SORTED]
        require(len(set(in_order)) < 2, "algorithm.losses can hold aot or aot_unpaired, not both.")
        require(
            not in_order or not self.with_weights,
            f"algorithm.weighted has no meaning for {in_order}, which sort pairs.",
        )
        require(
            "aot" not in in_order or self.divergence == "reverse_kl",
            "algorithm.losses: aot sorts margins of log-probs, so algorithm.divergence must be reverse_kl with it.",
        )

    @property
    def reference(self) -> bool:
        """Only the sft loss alone goes without."""
        return set(self.losses) != {"sft"}

    @property
    def reference_name(self) -> str:
        """The model that the user named."""
        return self.reference_model

    @property
    def reference_moves(self) -> tuple[int, float]:
        """As the settings say."""
        return self.reference_every, self.reference_mix

    @property
    def log_squares(self) -> bool:
        """WPO's weights read them."""
        return self.with_weights

    @property
    def two_pass(self) -> bool:
        """Sorting takes all pairs of the step."""
        return bool(set(self.losses) & set(pair_losses.SORTED))

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Of chosen rows the weights of the sft loss, among chosen rows alone; rejected rows hold their pair's
        share."""
        weights = compute_token_weights(batch.mask, "sequence", length) * 2
        weights[0::2] = compute_token_weights(batch.mask[0::2], self.average, self.average_length or length)
        return weights

    def has_gradient(self, batch: Batch) -> Tensor:
        """Both rows of every pair in which a token is trained."""
        return super().has_gradient(batch).view(-1, 2).any(1).repeat_interleave(2)

    def pairs(self, batch: Batch, logps: Tensor) -> Pairs:
        """What the losses read."""
        ratios = self._sums(batch, logps - batch.ref_logps)
        scores = pair_losses.compute_score(ratios, self.divergence, self.divergence_alpha)
        lengths, partners = batch.mask.sum(1).clamp(min=1), batch.prepared[:, 0]
        return Pairs(scores[0::2], scores[1::2], lengths[0::2], lengths[1::2], partners[0::2], partners[1::2])

    def _sums(self, batch: Batch, values: Tensor) -> Tensor:
        """Of each row the sum over its response, [B], as `length_alpha` has it."""
        return (pair_losses.compute_shares(batch.mask, self.length_alpha) * values.masked_fill(batch.mask == 0, 0)).sum(
            1
        )

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """Sort, where a loss compares with other pairs."""
        if logps is None:
            return batch
        found, reference = self.pairs(batch, logps), self._sums(batch, batch.ref_logps)
        name = next(loss for loss in self.losses if loss in pair_losses.SORTED)
        prepared = batch.prepared.clone()
        both = pair_losses.choose_partners(name, found.c, found.r, reference[0::2] - reference[1::2])
        prepared[0::2], prepared[1::2] = (partner[:, None] for partner in both)
        return replace(batch, prepared=prepared)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the losses, each a mean over the pairs of the step."""
        share, found = batch.weights[1::2].sum(1), self.pairs(batch, logps)
        of_pairs = found.c.new_zeros(len(share))
        loss = found.c.new_zeros(())
        for name, weight in zip(self.losses, self.loss_weights or (1.0,) * len(self.losses), strict=True):
            if name == "sft":
                likelihood = batch.weights[0::2] * logps[0::2].masked_fill(batch.mask[0::2] == 0, 0)
                loss = loss - weight * likelihood.sum()
            else:
                of_pairs = of_pairs + weight * pair_losses.LOSSES[name](found, self.beta, self.label_smoothing)
        if self.with_weights:
            of_pairs = of_pairs * self._probability(batch, logps.detach())
        return loss + (share * of_pairs).sum(), self._describe(batch, logps.detach(), share)

    def _probability(self, batch: Batch, logps: Tensor) -> Tensor:
        """WPO (arXiv 2406.11827), [P]: prod over both answers of exp(mean_t(log p_t - log sum_v p_v^2))."""
        surplus = (logps - batch.log_squares).masked_fill(batch.mask == 0, 0)
        means = surplus.sum(1) / batch.mask.sum(1).clamp(min=1)
        return (means[0::2] + means[1::2]).exp()

    def _describe(self, batch: Batch, logps: Tensor, share: Tensor) -> dict[str, Tensor]:
        """The sums of log-probs, the rewards beta c and beta r, and how often the chosen answer has the larger one."""
        told = {"logps": self._sums(batch, logps)}
        if set(self.losses) != {"sft"}:
            told["rewards"] = self.beta * self._sums(batch, logps - batch.ref_logps)
        found: dict[str, Tensor] = {}
        for name, values in told.items():
            chosen, rejected = values[0::2], values[1::2]
            found |= {f"{name}/chosen": chosen, f"{name}/rejected": rejected, f"{name}/margin": chosen - rejected}
            found[f"{name}/accuracy"] = (chosen > rejected).to(share.dtype)
        return {name: (share * values).sum() for name, values in found.items()}
