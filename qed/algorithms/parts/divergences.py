"""Estimators of the KL to a reference per token, from log-probs, and the controller of its weight.

With d = log pi - log ref, on tokens that pi sampled: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, abs = |d|. In a
loss the gradient of k1 has expectation 0 and regularises nothing; that of k2 is correct on-policy; that of k3 is
biased. A name with a plus has the value of its estimator and the gradient of k2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Divergence = Literal["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"]
# verl's names for them.
VERL = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
LARGEST_CHANGE = 0.2  # the bound on the relative error of a step in the controller


def estimate_kl(name: str, difference: Tensor) -> Tensor:
    """Estimate the KL from d = log pi - log ref, of any shape."""
    if name.endswith("+"):
        half_square = estimate_kl("k2", difference)
        return half_square - half_square.detach() + estimate_kl(name[:-1], difference).detach()
    if name == "k1":
        return difference
    if name == "k2":
        return difference**2 / 2
    return difference.abs() if name == "abs" else (-difference).exp() + difference - 1


def estimate_kl_as_verl(name: str, logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Estimate the KL as verl does, by verl's names, for comparisons: k3 clamps d to ± 20 and its value to ± 10.

    Beyond the clamps the gradient is 0, so nothing pulls back a policy that is far away. qed does not clamp.
    """
    plain = name.removesuffix("+")
    estimator, difference = VERL.get(plain, plain), logps - ref_logps
    value = estimate_kl(estimator, difference.clamp(-20, 20) if estimator == "k3" else difference)
    value = value.clamp(-10, 10) if estimator == "k3" else value
    if not name.endswith("+"):
        return value
    half_square = estimate_kl("k2", difference)
    return half_square - half_square.detach() + value.detach()


def adapt_kl_weight(weight: float, measured: float, target: float, rows: float, horizon: int) -> float:
    """Compute the next KL weight (arXiv 1909.08593): weight (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon).

    Args:
        weight: of this step.
        measured: the KL of this step, per token.
        target: the desired KL.
        rows: n, the completions of this step.
        horizon: the completions over which the weight adapts.
    """
    error = min(LARGEST_CHANGE, max(-LARGEST_CHANGE, measured / target - 1))
    return weight * (1 + error * rows / horizon)
