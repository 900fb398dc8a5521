"""How far the policy is from a reference, token by token: estimators of the KL from log-probs, and its controller.

With d = log pi - log ref, on tokens that pi has sampled: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, abs = |d|. In a
loss the gradient of k1 has expectation 0 and regularises nothing, that of k2 is the right one on-policy, and that of k3
is biased. A name with a plus has the value of its estimator and the gradient of k2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Divergence = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"]
# What verl calls them.
VERL = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
LARGEST_CHANGE = 0.2  # of a step's relative error, as the controller counts it


def estimate_kl(name: str, difference: Tensor) -> Tensor:
    """An estimator of the KL, from d = log pi - log ref of any shape."""
    if name.endswith("+"):
        half_square = estimate_kl("k2", difference)
        return half_square - half_square.detach() + estimate_kl(name[:-1], difference).detach()
    if name == "k1":
        return difference
    if name == "k2":
        return difference**2 / 2
    return difference.abs() if name == "abs" else (-difference).exp() + difference - 1


def estimate_kl_as_verl(name: str, logps: Tensor, ref_logps: Tensor) -> Tensor:
    """verl's estimators by verl's names, for comparisons: k3 has d cut at 20 and its value at 10, both ways.

    Beyond its cuts the gradient is 0, so a policy that has gone far is no longer held; qed's own have none.
    """
    plain = name.removesuffix("+")
    own, difference = VERL.get(plain, plain), logps - ref_logps
    value = estimate_kl(own, difference.clamp(-20, 20)).clamp(-10, 10) if own == "k3" else estimate_kl(own, difference)
    if not name.endswith("+"):
        return value
    half_square = estimate_kl("k2", difference)
    return half_square - half_square.detach() + value.detach()


def adapt_kl_weight(weight: float, measured: float, target: float, rows: float, horizon: int) -> float:
    """The KL's weight for the next step (arXiv 1909.08593): weight (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon).

    Args:
        weight: of this step.
        measured: the KL of this step, per token.
        target: what the KL should be.
        rows: n, the answers of this step.
        horizon: answers over which the weight adapts.
    """
    error = min(LARGEST_CHANGE, max(-LARGEST_CHANGE, measured / target - 1))
    return weight * (1 + error * rows / horizon)
