"""A reference that follows the policy stands where the closed form says, and moves once for each step that is due."""

from __future__ import annotations

import pytest
import torch
from making import make_model
from torch import nn

from qed.config.plugins import load_algorithm
from qed.config.settings import ModelSettings
from qed.errors import UsageError
from qed.loops.ema_reference import EMAReference
from qed.models import lora


def changed(network: nn.Module) -> nn.Module:
    """The model with weights that a step may have left."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return network


@pytest.mark.parametrize("mix", [1.0, 0.6, 0.1])
def test_it_goes_a_part_of_the_way(mix: float) -> None:
    reference, policy = make_model(), changed(make_model())
    begun = {name: weight.clone() for name, weight in reference.named_parameters()}
    EMAReference(reference, policy, 1, mix).update_if_due(2)
    new = dict(policy.named_parameters())
    assert "lm_head.weight" not in new, "two layers are tied, whose one weight must not move twice"
    for name, weight in reference.named_parameters():
        torch.testing.assert_close(weight, (1 - mix) * begun[name] + mix * new[name], rtol=1e-12, atol=1e-12)
        assert mix < 1 or weight.equal(new[name])


def test_adapters_are_merged_into_what_it_becomes() -> None:
    reference, policy = make_model(), changed(lora.add_adapters(make_model(), ModelSettings(lora_rank=2), 0))
    EMAReference(reference, policy, 1, 1.0).update_if_due(2)
    ids = torch.arange(7)[None]
    torch.testing.assert_close(reference(ids).logits, policy(ids).logits)


def test_it_moves_once_for_each_step_that_is_due() -> None:
    reference, policy = make_model(), make_model()
    moving = EMAReference(reference, policy, 3, 0.5)
    told = []
    for step in range(1, 9):
        moving.update_if_due(step)
        moving.update_if_due(step)  # as when a step is begun again after a signal
        told.append(moving.moves)
    assert told == [0, 0, 0, 1, 1, 1, 2, 2]


def test_its_state_is_whole() -> None:
    reference, policy = make_model(), changed(make_model())
    moving = EMAReference(reference, policy, 1, 0.5)
    assert moving.state() == {}, "what stands as the phase began is kept elsewhere"
    moving.update_if_due(2)
    again = EMAReference(make_model(), policy, 1, 0.5)
    saved = {name: weight.clone() for name, weight in moving.state().items()}
    other = {"layer/exp_avg": torch.zeros(1)}
    assert again.load({**saved, **other}, 1) == other
    for one in (moving, again):
        one.update_if_due(3)
    for name, weight in moving.state().items():
        assert weight.equal(again.state()[name])


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("grpo", {"reference_every": 1}, "with algorithm.kl=0 there is none"),
        ("grpo", {"kl": 0.1, "reference_every": -1}, "must not be negative"),
        ("grpo", {"kl": 0.1, "reference_mix": 0.0}, r"\(0, 1\]"),
        ("dpo", {"reference_every": 1, "precompute_reference": True}, "uses it only once"),
        ("dpo", {"reference_every": 1, "losses": ("sft",)}, "needs none"),
        ("online_dpo", {"reference_mix": 1.5}, r"\(0, 1\]"),
    ],
)
def test_what_has_no_reference_to_move_is_refused(method: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_algorithm(method)(**settings)
