"""Advantage estimators, KL estimators and averages against recorded outputs of verl and LUFFY, every case."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from other_libraries import apply_verl_singleton_rule, compute_gae, estimate_kl_as_verl
from torch import Tensor

from qed.algorithms.base import Average, compute_token_weights
from qed.algorithms.parts import estimators
from qed.algorithms.parts.divergences import estimate_kl
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.rollout.stages import assign_advantages
from qed.types import Grade, Problem, Rollout

Case = tuple[dict[str, Tensor], dict[str, Any], dict[str, Tensor], dict[str, Any]]


def cases(path: Path) -> Iterator[tuple[str, Case]]:
    """Inputs, arguments, outputs and scalars of every case of a file."""
    vectors = np.load(path)
    for name in json.loads(str(vectors["__cases__"])):
        columns: list[dict[str, Tensor]] = [
            {
                key.split("::")[2]: torch.tensor(vectors[key])
                for key in vectors.files
                if key.startswith(f"{name}::{kind}::")
            }
            for kind in ("in", "out")
        ]
        arguments, scalars = (json.loads(str(vectors[f"{name}::{kind}"])) for kind in ("args", "scalars"))
        yield name, (columns[0], arguments, columns[1], scalars)


def by_group(rewards: Tensor, index: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What a function of a group's rewards and of its members' rows gives, row by row."""
    found = torch.zeros_like(rewards)
    for number in index.unique():
        members = (index == number).nonzero().flatten()
        found[members] = function(rewards[members], members)
    return found


def group_in_verl(rewards: Tensor, index: Tensor, normalize_std: bool, epsilon: float) -> Tensor:
    def one(own: Tensor, _: Tensor) -> Tensor:
        advantages = estimators.normalize_group(own, normalize_std, epsilon)
        return apply_verl_singleton_rule(own, advantages, epsilon if normalize_std else 0.0)

    return by_group(rewards, index, one)


def of_rows(name: str, columns: dict[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """An outcome estimator of verl, one number a row, made of ours and verl's rule for a group of one."""
    rewards, index = columns["token_level_rewards"].sum(1), columns["index"]
    lengths = columns["response_mask"].sum(1)
    if name.startswith("grpo_passk"):
        std, epsilon = arguments["norm_adv_by_std_in_grpo"], arguments["epsilon"]
        return by_group(rewards, index, lambda own, _: estimators.compute_passk(own, std, epsilon))
    if name.startswith("grpo"):
        return group_in_verl(rewards, index, arguments["norm_adv_by_std_in_grpo"], arguments["epsilon"])
    if name == "rloo_vectorized":
        return by_group(rewards, index, lambda own, _: estimators.compute_leave_one_out(own))
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "rloo": lambda own, _: estimators.compute_leave_one_out(own),
        "opo": lambda own, members: estimators.compute_opo(own, lengths[members]),
        "gpg": lambda own, _: estimators.compute_gpg(own, rewards),
        "reinforce_plus_plus_baseline": lambda own, _: estimators.normalize_group(own, False, 0.0),
    }
    factor = len(rewards) / int((rewards != 0).sum()) if name == "gpg" else 1.0

    def one(own: Tensor, members: Tensor) -> Tensor:
        return apply_verl_singleton_rule(own * factor if len(own) == 1 else own, functions[name](own, members))

    return by_group(rewards, index, one)


def of_tokens(name: str, columns: dict[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """An estimator of verl, [B, T]."""
    rewards, mask = columns["token_level_rewards"], columns["response_mask"]
    chosen = mask.bool()
    if name == "gae":
        return compute_gae(rewards, columns["values"], mask, arguments["gamma"], arguments["lam"])[0]
    if name in ("reinforce_plus_plus", "remax"):
        found = to_go(rewards, mask, arguments.get("gamma", 1.0))
        return found - columns["reward_baselines"][:, None] * mask if name == "remax" else whitened(found, chosen)
    advantages = of_rows(name, columns, arguments)[:, None] * mask
    return whitened(advantages, chosen) if name == "reinforce_plus_plus_baseline" else advantages


def to_go(rewards: Tensor, mask: Tensor, discount: float) -> Tensor:
    found = torch.zeros_like(rewards)
    for row, length in enumerate(mask.sum(1).int().tolist()):
        found[row, :length] = estimators.compute_returns(rewards[row, :length], discount)
    return found


def whitened(values: Tensor, chosen: Tensor) -> Tensor:
    return torch.zeros_like(values).masked_scatter(chosen, estimators.whiten(values[chosen]))


def test_recorded_whitening(shared: Path) -> None:
    vectors = np.load(shared / "vectors" / "verl_entropy_logprob.npz")
    values, mask = (torch.tensor(vectors[f"masked_whiten::in::{name}"]) for name in ("values", "mask"))
    found, expected = whitened(values, mask.bool()), torch.tensor(vectors["masked_whiten::out::out"])
    torch.testing.assert_close(found * mask, expected * mask, rtol=1e-7, atol=1e-7)


def test_every_advantage_of_verl(shared: Path) -> None:
    count = 0
    for name, (columns, arguments, expected, _) in cases(shared / "vectors" / "verl_advantages.npz"):
        found = of_tokens(arguments["estimator"], columns, arguments) * columns["response_mask"]
        single = expected["advantages"].dtype == torch.float32
        wanted = expected["advantages"].double() * columns["response_mask"]
        rtol, atol = (1e-4, 1e-5) if single else (1e-6, 1e-8)
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
        count += 1
    assert count == 36


def test_the_returns_of_verl(shared: Path) -> None:
    for _, (columns, arguments, expected, _) in cases(shared / "vectors" / "verl_advantages.npz"):
        if "returns" not in expected:
            continue
        mask, rewards = columns["response_mask"], columns["token_level_rewards"]
        if arguments["estimator"] == "gae":
            found = compute_gae(rewards, columns["values"], mask, arguments["gamma"], arguments["lam"])[1]
        else:
            found = to_go(rewards, mask, arguments.get("gamma", 1.0))
        torch.testing.assert_close(found * mask, expected["returns"] * mask, rtol=1e-6, atol=1e-8)


def test_the_plain_advantages_of_luffy(shared: Path) -> None:
    names = []
    for name, (columns, arguments, expected, _) in cases(shared / "vectors" / "luffy_advantages.npz"):
        rewards, mask = columns["token_level_rewards"], columns["eos_mask"].double()
        if name.startswith("grpo_"):
            found = group_in_verl(rewards.sum(1), columns["index"], arguments["use_std"], arguments["epsilon"])[:, None]
        elif name == "reinforce":
            found = rewards.sum(1)[:, None]
        elif name.startswith("reinforce_pp"):
            found = whitened(to_go(rewards, mask, arguments["gamma"]), mask.bool())
        else:
            continue
        names.append(name)
        torch.testing.assert_close(found * mask, expected["advantages"].double() * mask, rtol=1e-4, atol=1e-5)
    assert len(names) == 9


# The same cases through `credit`, which is what a run calls; its groups of one get 0, so those cases are left out.
METHODS = {
    "grpo": {},
    "grpo_vectorized": {},
    "grpo_passk": {"estimator": "passk"},
    "rloo": {"estimator": "leave_one_out"},
    "opo": {"estimator": "opo"},
    "gpg": {"estimator": "gpg"},
    "reinforce_plus_plus_baseline": {"normalize_std": False, "whiten": True},
    "reinforce_plus_plus": {"estimator": "returns", "whiten": True},
}


def test_crediting_a_step_gives_what_verl_gives(shared: Path) -> None:
    for name, (columns, arguments, expected, _) in cases(shared / "vectors" / "verl_advantages.npz"):
        if "singleton" in name or arguments["estimator"] not in METHODS:
            continue
        settings: dict[str, Any] = {"discount": arguments.get("gamma", 1.0), **METHODS[arguments["estimator"]]}
        if "norm_adv_by_std_in_grpo" in arguments:
            settings["normalize_std"] = arguments["norm_adv_by_std_in_grpo"]
        mask, rewards = columns["response_mask"].bool(), columns["token_level_rewards"]
        if settings.get("estimator") == "returns":
            rewards = rewards_on_the_last_token(rewards, mask)
            expected = {"advantages": whitened(to_go(rewards, mask, arguments["gamma"]), mask)}
        index = columns.get("index", torch.zeros(len(mask)))
        groups = [[answer(rewards[row], mask[row]) for row in (index == number).nonzero()] for number in index.unique()]
        assign_advantages(groups, PolicyGradient(**settings))
        for number, group in zip(index.unique(), groups, strict=True):
            for row, rollout in zip((index == number).nonzero().flatten(), group, strict=True):
                own = torch.tensor(rollout.advantage, dtype=torch.float64).expand(int(mask[row].sum()))
                wanted = expected["advantages"][row][mask[row]].double()
                torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-6)


def rewards_on_the_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """Without a KL in the reward only the last token has one."""
    found = torch.zeros_like(rewards)
    last = mask.sum(1) - 1
    found[torch.arange(len(rewards)), last] = (rewards * mask).sum(1)
    return found


def answer(rewards: Tensor, mask: Tensor) -> Rollout:
    rollout = Rollout(Problem("p", "?", "1"), (0,), (2,) * int(mask.sum()), (), "", "stop")
    rollout.grade = Grade(float(rewards.sum()), False, True, None)
    return rollout


def test_every_kl_of_verl_with_its_gradient(shared: Path) -> None:
    count = 0
    for _, (columns, arguments, expected, _) in cases(shared / "vectors" / "verl_kl.npz"):
        logps = columns["logprob"].requires_grad_()
        found = estimate_kl_as_verl(arguments["kl_penalty"], logps, columns["ref_logprob"])
        (gradient,) = torch.autograd.grad(found.sum(), logps)
        torch.testing.assert_close(found, expected["kld"], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(gradient, expected["grad"], rtol=1e-6, atol=1e-9)
        count += 1
    assert count == 7


@pytest.mark.parametrize("name", ["k1", "k3", "abs"])
def test_a_plus_has_the_value_of_its_estimator_and_the_gradient_of_k2(name: str) -> None:
    difference = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    for function in (
        lambda d: estimate_kl(f"{name}+", d),
        lambda d: estimate_kl_as_verl(f"{name}+", d, torch.zeros_like(d)),
    ):
        found = function(difference)
        (gradient,) = torch.autograd.grad(found.sum(), difference)
        torch.testing.assert_close(found, estimate_kl(name, difference))
        torch.testing.assert_close(gradient, difference.detach())


AVERAGES: dict[str, Average] = {
    "token-mean": "token",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum-norm": "constant",
}


def test_every_average_of_verl(shared: Path) -> None:
    """Ours up to constants. verl counts only rows with a token, multiplies by the ranks, and takes global counts where
    they are given; its `-norm` divides by no number of rows at all."""
    count = 0
    for _, (columns, arguments, _, expected) in cases(shared / "vectors" / "verl_agg_loss.npz"):
        losses, mask = columns["loss_mat"], columns["loss_mask"]
        mode, width = arguments["loss_agg_mode"], mask.shape[1]
        length = arguments.get("loss_scale_factor", width)
        rows = arguments.get("global_batch_size") or int(mask.any(1).sum())
        tokens = arguments.get("batch_num_tokens") or float(mask.sum())
        ranks = arguments.get("dp_size", 1)
        factor = {
            "token-mean": ranks * float(mask.sum()) / tokens,
            "seq-mean-token-sum": ranks * len(mask) / rows,
            "seq-mean-token-mean": ranks * len(mask) / rows,
            "seq-mean-token-sum-norm": len(mask),
        }[mode]
        found = factor * (compute_token_weights(mask, AVERAGES[mode], length) * losses).sum()
        assert float(found) == pytest.approx(expected["loss"], rel=1e-6), arguments
        count += 1
    assert count == 8
