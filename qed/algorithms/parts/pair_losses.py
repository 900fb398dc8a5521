"""Losses of preference pairs, [P] each; rows alternate between chosen and rejected.

s(y) = sum_t log pi(y_t | x, y_<t) over the response, c = s(y_w) - s_ref(y_w), r = s(y_l) - s_ref(y_l), d = c - r.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Preference = Literal[
    "sigmoid",
    "cdpo",
    "robust",
    "hinge",
    "ipo",
    "ipo_sum",
    "sigmoid_norm",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
]
SORTED = ("aot", "aot_unpaired")  # losses that compare a pair with other pairs of the step
FDivergence = Literal["reverse_kl", "forward_kl", "js", "alpha"]
EXO_SMOOTHING = 1e-3  # used for a label smoothing of 0, which would make the loss infinite
DISCOPOP_TEMPERATURE = 0.05
LARGEST_EXPONENT = 80.0  # just below the overflow of float32


@dataclass(frozen=True)
class Pairs:
    """Input of the losses for P pairs, [P] each."""

    c: Tensor
    r: Tensor
    chosen_length: Tensor
    rejected_length: Tensor
    chosen_partner: Tensor  # from sorting all pairs of the step, see `choose_partners`
    rejected_partner: Tensor

    @property
    def d(self) -> Tensor:
        """The margin d."""
        return self.c - self.r

    @property
    def mean_d(self) -> Tensor:
        """The margin of the per-token means."""
        return self.c / self.chosen_length - self.r / self.rejected_length


def log_sigmoid(x: Tensor) -> Tensor:
    """Compute log sigma(x) without overflow."""
    return -x.new_zeros(()).logaddexp(-x)


def compute_score(x: Tensor, divergence: FDivergence, alpha: float) -> Tensor:
    """Transform a log-ratio x for an f-divergence (arXiv 2309.16240).

    Reverse KL: x; forward KL: 1 - e^-x; Jensen-Shannon: log 2 + log sigma(x); alpha: (e^((alpha - 1) x) - 1) / (alpha -
    1), whose limit at alpha = 1 is x.
    """
    if divergence == "js":
        return math.log(2) + log_sigmoid(x)
    power = {"reverse_kl": 0.0, "forward_kl": -1.0, "alpha": alpha - 1}[divergence]
    return ((power * x).clamp(max=LARGEST_EXPONENT).exp() - 1) / power if power else x


def compute_shares(mask: Tensor, length_alpha: float) -> Tensor:
    """Compute token weights in s(y), [B, T]: alpha beyond the pair's shorter response (LD-DPO, arXiv 2409.06411)."""
    shorter = mask.sum(1).view(-1, 2).amin(1).repeat_interleave(2)
    return mask * (1 - (1 - length_alpha) * (mask.cumsum(1) > shorter[:, None]))


def choose_partners(name: str, c: Tensor, r: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the values that rows are compared with in alignment by optimal transport (arXiv 2406.05882), [P] each.

    `aot` sorts the margins of the policy and those of the reference, and compares those of equal rank: both rows
    get the difference to their own d. `aot_unpaired` sorts c and r, and each row gets the value of equal rank.

    Args:
        name: one of `SORTED`.
        c: c of all pairs of the step, without gradient.
        r: r, likewise.
        reference: s_ref(y_w) - s_ref(y_l), likewise.
    """

    def match_ranks(values: Tensor, other: Tensor) -> Tensor:
        """Return, for each entry of `values`, the entry of `other` with the same rank."""
        return other.sort().values[values.argsort(stable=True).argsort(stable=True)]

    if name == "aot_unpaired":
        return match_ranks(c, r), match_ranks(r, c)
    difference = reference - match_ranks(c - r + reference, reference)
    return difference, difference


Loss = Callable[[Pairs, float, float], "Tensor"]


def _smooth(x: Tensor, eps: float) -> Tensor:
    return -(1 - eps) * log_sigmoid(x) - eps * log_sigmoid(-x)


def _exo(pairs: Pairs, beta: float, eps: float) -> Tensor:
    eps, x = eps or EXO_SMOOTHING, beta * pairs.d
    return x.sigmoid() * (log_sigmoid(x) - math.log(1 - eps)) + (-x).sigmoid() * (log_sigmoid(-x) - math.log(eps))


def _nca(pairs: Pairs, beta: float, eps: float) -> Tensor:
    c, r = beta * pairs.c, beta * pairs.r
    return -log_sigmoid(c) - (log_sigmoid(-c) + log_sigmoid(-r)) / 2


def _aot_unpaired(pairs: Pairs, beta: float, eps: float) -> Tensor:
    value = _smooth(beta * (pairs.c - pairs.chosen_partner), eps)
    # Over the step, both sums have the same terms; the second one is added only for its gradient.
    again = _smooth(beta * (pairs.rejected_partner - pairs.r), eps)
    return value + again - again.detach()


def _discopop(pairs: Pairs, beta: float, eps: float) -> Tensor:
    x = beta * pairs.d
    k = (x / DISCOPOP_TEMPERATURE).sigmoid()
    # k e^-x as one exponential, because its factors are 0 and infinity for very negative x.
    return -(1 - k) * log_sigmoid(x) + (log_sigmoid(x / DISCOPOP_TEMPERATURE) - x).exp()


# Arguments: the pairs, beta, the label smoothing. `sft` is not here: it is a mean over tokens, not over pairs.
LOSSES: dict[str, Loss] = {
    "sigmoid": lambda pairs, beta, eps: -log_sigmoid(beta * pairs.d),
    "cdpo": lambda pairs, beta, eps: _smooth(beta * pairs.d, eps),
    "robust": lambda pairs, beta, eps: (
        (eps * log_sigmoid(-beta * pairs.d) - (1 - eps) * log_sigmoid(beta * pairs.d)) / (1 - 2 * eps)
    ),
    "hinge": lambda pairs, beta, eps: (1 - beta * pairs.d).relu(),
    "ipo": lambda pairs, beta, eps: (pairs.mean_d - 1 / (2 * beta)) ** 2,
    "ipo_sum": lambda pairs, beta, eps: (pairs.d - 1 / (2 * beta)) ** 2,
    "sigmoid_norm": lambda pairs, beta, eps: -log_sigmoid(beta * pairs.mean_d),
    "exo_pair": _exo,
    "nca_pair": _nca,
    "bco_pair": lambda pairs, beta, eps: -log_sigmoid(beta * pairs.c) - log_sigmoid(-beta * pairs.r),
    "sppo_hard": lambda pairs, beta, eps: (pairs.c - 1 / (2 * beta)) ** 2 + (pairs.r + 1 / (2 * beta)) ** 2,
    "aot": lambda pairs, beta, eps: _smooth(beta * (pairs.d + pairs.chosen_partner), eps),
    "aot_unpaired": _aot_unpaired,
    "apo_zero": lambda pairs, beta, eps: (-beta * pairs.c).sigmoid() + (beta * pairs.r).sigmoid(),
    "apo_down": lambda pairs, beta, eps: (beta * pairs.c).sigmoid() + (-beta * pairs.d).sigmoid(),
    "discopop": _discopop,
}
