"""What moves to the host comes back as it was, and the device has its memory in the meantime."""

from __future__ import annotations

import copy
import random
from itertools import chain

import pytest
import torch
from making import make_model, make_rollout
from torch import Tensor

from qed.algorithms.grpo import Grpo
from qed.config.settings import LearnerSettings
from qed.models.precision import cast_weights
from qed.training.learner import Learner
from qed.training.offload import lend_device
from qed.training.optim import list_state_tensors

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])]


def make_learner(device: str, offload: bool, dtype: torch.dtype = torch.bfloat16) -> Learner:
    model = make_model(dtype=torch.float32, hidden_size=32).to(device)
    cast_weights(model, dtype)
    settings = LearnerSettings(steps=6, lr=1e-2, weight_decay=0.1, offload_for_sampling=offload)
    return Learner(model, Grpo(), settings, length=9, precision=torch.bfloat16)


def end(device: str, offload: bool) -> list[Tensor]:
    """The weights and the optimizer's state after six steps, with sampling between them if `offload`."""
    source = random.Random(0)
    rollouts = [make_rollout(source, advantage) for advantage in (1.0, -1.0, 0.5)]
    learner = make_learner(device, offload)
    learner.set_initial_weights(learner.model.state_dict())
    for step in range(6):
        if step == 3:
            learner.restore_initial_weights()
        learner.update(rollouts, step)
        assert all(parameter.grad is None for parameter in learner.parameters)  # freed before the sampler runs
        learner.weights()
    return [tensor.cpu() for tensor in chain(learner.model.parameters(), learner.state().values())]


@pytest.mark.parametrize("device", DEVICES)
def test_steps_with_sleep_between_them_are_those_without(device: str) -> None:
    for found, wanted in zip(end(device, offload=True), end(device, offload=False), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.gpu
@CUDA
def test_sleep_leaves_the_weights_alone_on_the_device() -> None:
    learner = make_learner("cuda", offload=False)
    before = torch.cuda.memory_allocated()
    learner.update([make_rollout(random.Random(0), 1.0)], 0)
    assert torch.cuda.memory_allocated() > before
    learner.sleep()
    state = list_state_tensors(learner.optimizer)
    assert {tensor.device.type for tensor in state} == {"cpu"}
    weights = sum(parameter.nbytes for parameter in learner.parameters)
    assert torch.cuda.memory_allocated() < before - weights  # the masters have left too
    learner.wake()
    assert {tensor.device.type for tensor in state} == {"cuda"}


@pytest.mark.parametrize("device", DEVICES)
def test_a_reference_model_is_lent_the_device(device: str) -> None:
    model = make_model(dtype=torch.float32)
    before = copy.deepcopy(model.state_dict())
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with lend_device(model, torch.device(device)):
        assert {parameter.device.type for parameter in model.parameters()} == {device}
        assert model.lm_head.weight is model.model.embed_tokens.weight
    assert places == [parameter.data_ptr() for parameter in model.parameters()]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
