"""Each optimizer against torch's AdamW, and its state through a checkpoint's tensors."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from making import make_model, make_rollout
from torch import Tensor, nn

from qed.algorithms.grpo import Grpo
from qed.algorithms.sft import Sft
from qed.config.changes import list_changes
from qed.config.phases import PhaseSettings, PipelineSettings
from qed.config.settings import LearnerSettings
from qed.config.values import dump_settings
from qed.errors import UsageError
from qed.training import optim
from qed.training.learner import Learner
from qed.training.optim import (
    OffloadedAdamW,
    compute_learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    read_optimizer_tensors,
)

CASES = [(1e-2, (0.9, 0.999), 0.0), (1e-3, (0.9, 0.95), 0.1), (0.3, (0.5, 0.8), 0.3), (1e-4, (0.0, 0.0), 0.01)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that parameters fall into several chunks, the last of them uneven."""
    monkeypatch.setattr(optim, "CHUNK", 7)


def network(dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(9, 11), nn.LayerNorm(11), nn.Linear(11, 5)).to(device, dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, settings: LearnerSettings, steps: range) -> None:
    """Steps with random gradients of very different sizes, the same for every optimizer."""
    for step in steps:
        source = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            size = 10.0 ** (step % 5 - 3)
            parameter.grad = (size * torch.randn(parameter.shape, generator=source)).to(parameter)
        for group in optimizer.param_groups:
            group["lr"] = compute_learning_rate(settings, step)
        optimizer.step()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().double().cpu().flatten() for parameter in model.parameters()])


def by_torch(settings: LearnerSettings, dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """Twenty steps of torch's AdamW in its plainest form, matrices with weight decay and the rest without."""
    model = network(dtype, device)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, foreach=False)
    train(model, plain, settings, range(20))
    return model


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_offload"])
@pytest.mark.parametrize(("lr", "betas", "decay"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_twenty_steps_are_those_of_torch(
    optimizer: str, lr: float, betas: tuple[float, float], decay: float, dtype: torch.dtype
) -> None:
    settings = LearnerSettings(
        steps=20, optimizer=optimizer, lr=lr, betas=betas, weight_decay=decay, schedule="cosine", warmup_steps=4
    )
    model = network(dtype)
    train(model, make_optimizer(model, settings), settings, range(20))
    expected = weights(by_torch(settings, dtype))
    assert not torch.allclose(expected, weights(network(dtype)), atol=lr / 10)
    torch.testing.assert_close(weights(model), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("first", "then"), [("adamw", "adamw_offload"), ("adamw_offload", "adamw")])
def test_one_goes_on_where_the_other_stopped(first: str, then: str) -> None:
    settings = LearnerSettings(steps=20, lr=1e-2, weight_decay=0.1)
    model = network()
    before = make_optimizer(model, LearnerSettings(optimizer=first, lr=1e-2, weight_decay=0.1))
    train(model, before, settings, range(8))
    tensors = read_optimizer_tensors(before, model)
    assert set(tensors) == {
        f"{name}/{entry}" for name, _ in model.named_parameters() for entry in ("step", "exp_avg", "exp_avg_sq")
    }
    after = make_optimizer(model, LearnerSettings(optimizer=then, lr=1e-2, weight_decay=0.1))
    load_optimizer_tensors(after, model, tensors)
    train(model, after, settings, range(8, 20))
    torch.testing.assert_close(weights(model), weights(by_torch(settings)), rtol=1e-6, atol=1e-6)
    assert all(float(value) == 8 for name, value in tensors.items() if name.endswith("/step"))


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [("adamw", "adamw_offload", False), ("adamw_offload", "adamw", False), ("adamw", "adamw8bit", True)],
)
def test_a_run_is_resumed_with_an_optimizer_of_the_same_updates(
    before: str, after: str, refused: bool, tmp_path: Path
) -> None:
    pipelines = [
        PipelineSettings(PhaseSettings(Sft()), PhaseSettings(Grpo(), learner=LearnerSettings(optimizer=optimizer)))
        for optimizer in (before, after)
    ]
    saved = tmp_path / "settings.yaml"
    saved.write_text(dump_settings(pipelines[0]), encoding="utf-8")
    told, wrong = list_changes(saved, pipelines[1])
    assert told == [f"rl.learner.optimizer: {before} -> {after}"]
    assert wrong == (told if refused else [])


def test_the_first_step_by_hand() -> None:
    """The bias corrections cancel the decay rates: a weight decays, then goes lr against its gradient's sign."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
    model.weight.grad = torch.tensor([[0.5, -3.0]])
    make_optimizer(model, LearnerSettings(optimizer="adamw_offload", lr=0.1, weight_decay=0.5)).step()
    assert model.weight.flatten().tolist() == pytest.approx([0.95 - 0.1, -1.9 + 0.1], abs=1e-6)


def test_what_has_no_gradient_stays() -> None:
    model = network()
    before = weights(model)
    optimizer = make_optimizer(model, LearnerSettings(optimizer="adamw_offload", lr=1.0, weight_decay=1.0))
    optimizer.step()
    assert torch.equal(weights(model), before)
    assert not optimizer.state


def test_the_learner_trains_the_same_and_restarts() -> None:
    """Schedule, clip, and the return to the phase's beginning, with tied embeddings."""
    ends = []
    for optimizer in ("adamw", "adamw_offload"):
        source = random.Random(0)
        rollouts = [make_rollout(source, advantage) for advantage in (1.0, -1.0, 0.5)]
        model = make_model()
        settings = LearnerSettings(
            steps=6, optimizer=optimizer, lr=1e-2, weight_decay=0.1, clip_norm=0.1, schedule="linear"
        )
        learner = Learner(model, Grpo(), settings, length=9)
        learner.set_initial_weights(model.state_dict())
        storages = {weight.untyped_storage().data_ptr() for weight in learner.initial_weights.values()}
        assert len(storages) == len(list(model.parameters()))  # the tied weight is copied once
        for step in range(3):
            learner.update(rollouts, step)
        first = weights(model)
        learner.restore_initial_weights()
        assert torch.equal(weights(model), weights(make_model()))
        for step in range(3):
            learner.update(rollouts, step)
        assert torch.equal(weights(model), first)
        ends.append(first)
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


def test_eight_bits_without_the_package_or_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LearnerSettings(optimizer="adamw8bit")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UsageError, match=r"needs the package bitsandbytes.* pip install 'qed\[8bit\]'"):
        make_optimizer(network(), settings)
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    with pytest.raises(UsageError, match=r"needs a CUDA device, but the model is on cpu.* pip install 'qed\[8bit\]'"):
        make_optimizer(network(), settings)


def test_a_count_comes_back_as_a_number() -> None:
    """As bitsandbytes keeps its steps; moments of 8 bits stay bytes."""
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[model.weight] = {"step": 7, "state1": torch.arange(6, dtype=torch.uint8)}
    tensors = read_optimizer_tensors(optimizer, model)
    optimizer.state.clear()
    load_optimizer_tensors(optimizer, model, tensors)
    found = optimizer.state[model.weight]
    assert isinstance(found["step"], int)
    assert found["step"] == 7
    assert found["state1"].dtype == torch.uint8
    assert found["state1"].tolist() == list(range(6))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("chunk", [7, 64])
def test_on_a_device_the_moments_stay_in_pinned_memory(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "CHUNK", chunk)
    settings = LearnerSettings(steps=20, optimizer="adamw_offload", lr=1e-2, weight_decay=0.1)
    model = network(device="cuda")
    optimizer = make_optimizer(model, settings)
    assert isinstance(optimizer, OffloadedAdamW)
    train(model, optimizer, settings, range(10))
    again = make_optimizer(model, settings)
    load_optimizer_tensors(again, model, read_optimizer_tensors(optimizer, model))
    train(model, again, settings, range(10, 20))
    for state in again.state.values():
        assert state["exp_avg"].is_pinned()
        assert state["exp_avg_sq"].is_pinned()
    expected = weights(by_torch(settings, device="cuda"))
    torch.testing.assert_close(weights(model), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_eight_bits_go_on_from_a_checkpoint() -> None:
    """Uninterrupted or taken up again, the same weights; and near those of full moments."""
    pytest.importorskip("bitsandbytes")
    settings = LearnerSettings(steps=12, optimizer="adamw8bit", lr=1e-3)
    ends = []
    for stops in ([12], [5, 12]):
        torch.manual_seed(0)
        model, done = nn.Linear(128, 64).cuda(), 0
        tensors: dict[str, Tensor] = {}
        for stop in stops:
            optimizer = make_optimizer(model, settings)
            load_optimizer_tensors(optimizer, model, tensors)
            train(model, optimizer, settings, range(done, stop))
            tensors, done = read_optimizer_tensors(optimizer, model), stop
        ends.append(weights(model))
    assert torch.equal(*ends)
    assert math.isfinite(float(ends[0].sum()))
