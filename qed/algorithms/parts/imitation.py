"""Imitation within a policy gradient: rows with demonstration tokens use the likelihood instead of the surrogate.

loss = the policy gradient over the rows that the policy sampled, with advantages from only their statistics
       - sum_t c_t log pi(y_t | x, y_<t) over the rows with demonstration tokens

Each of the two sums is averaged separately over all rows of the optimizer step, so their balance does not
depend on the micro-batches. The file of each algorithm defines the weights c_t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from qed.algorithms.parts import shaping
from qed.algorithms.parts.surrogates import Terms, mask_off_policy

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


def find_imitated(batch: Batch) -> Tensor:
    """Return the rows with demonstration tokens, [B] bool."""
    return batch.expert.any(1)


def mark_rows(batch: Batch) -> Batch:
    """Mark every token of a completion that contains demonstration tokens as a demonstration token."""
    return replace(batch, expert=batch.mask * find_imitated(batch)[:, None])


def weigh_rows(
    batch: Batch, weigh_sampled: Callable[[Batch], Tensor], weigh_imitated: Callable[[Tensor], Tensor]
) -> Tensor:
    """Compute the weight of every token of the step, [B, T], with a separate average for each kind of row.

    Args:
        batch: all rows of the step.
        weigh_sampled: computes the weights of the sampled rows, from only these rows.
        weigh_imitated: computes the weights of the imitated tokens from their mask, [B, T].
    """
    imitated = find_imitated(batch)
    sampled = (~imitated).nonzero().flatten()
    weights = weigh_imitated(batch.mask * imitated[:, None])
    if len(sampled):
        part = weigh_sampled(batch.select(sampled))
        weights[sampled, : part.shape[1]] = part
    return weights


def compute_terms(batch: Batch, logps: Tensor, surrogate: Callable[[Batch, Tensor], Terms]) -> Terms:
    """Compute the surrogate of sampled tokens, and - log pi of those marked by `mark_rows`, [B, T]."""
    logps = shaping.fill_masked(logps, batch)
    terms, stats = surrogate(mask_off_policy(batch), logps)
    return -logps.where(batch.expert.bool(), -terms), stats | {"guidance/token_share": batch.expert.sum()}
