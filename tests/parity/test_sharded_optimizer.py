"""The optimizers on weights that are sharded over processes take the steps of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from qed.config.settings import LearnerSettings
from qed.models.precision import cast_weights
from qed.training import optim
from qed.training.optim import load_optimizer_tensors, make_optimizer, read_optimizer_tensors

SHAPES = {"wide": (5, 3), "flat": (1, 4), "short": (3,)}  # of two processes the second has nothing of `flat`
CASES = [(kind, dtype) for kind in ("adamw", "adamw_offload") for dtype in (torch.float32, torch.bfloat16)]


def network(dtype: torch.dtype, mesh: object = None) -> nn.ParameterDict:
    source = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=source).to(dtype) for name, shape in SHAPES.items()}
    if mesh is not None:
        weights = {name: distribute_tensor(weight, mesh, [Shard(0)]) for name, weight in weights.items()}
    return nn.ParameterDict({name: nn.Parameter(weight) for name, weight in weights.items()})


def train(kind: str, dtype: torch.dtype, mesh: object = None) -> list[Tensor]:
    """Six steps, in their middle from a saved state; the weights."""
    model = network(dtype, mesh)
    settings = LearnerSettings(optimizer=kind, lr=1e-2, weight_decay=0.1)
    optimizer = make_optimizer(model, settings)
    for step in range(6):
        if step == 3:
            saved = read_optimizer_tensors(optimizer, model)
            optimizer = make_optimizer(model, settings)
            load_optimizer_tensors(optimizer, model, saved)
        source = torch.Generator().manual_seed(step + 1)
        for parameter in model.values():
            # FSDP gives the gradient of a sharded weight in the weight's dtype.
            gradient = torch.randn(parameter.shape, generator=source).to(dtype).to(parameter.grad_dtype)
            parameter.grad = gradient if mesh is None else distribute_tensor(gradient, mesh, [Shard(0)])
        optimizer.step()
    return [weight.detach().full_tensor() if mesh is not None else weight.detach() for weight in model.values()]


def work(rank: int, world: int, folder: str) -> None:
    """One process: the result of every case, compared with that of a process alone."""
    torch.set_num_threads(1)
    optim.CHUNK = 4
    store = dist.FileStore(f"{folder}/store-{world}", world)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=store)
    try:
        mesh = init_device_mesh("cpu", (world,))
        for kind, dtype in CASES:
            for found, wanted in zip(train(kind, dtype, mesh), train(kind, dtype), strict=True):
                torch.testing.assert_close(found, wanted, rtol=0 if dtype == torch.float32 else 1e-2, atol=1e-7)
        Path(folder, f"done-{world}-{rank}").touch()
    finally:
        dist.destroy_process_group()


def test_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "CHUNK", 4)
    threads = torch.get_num_threads()
    work(0, 1, str(tmp_path))
    torch.set_num_threads(threads)
    assert (tmp_path / "done-1-0").exists()


@pytest.mark.slow
def test_of_two_processes(tmp_path: Path) -> None:
    mp.spawn(work, (2, str(tmp_path)), nprocs=2)
    assert len(list(tmp_path.glob("done-2-*"))) == 2


def test_weights_are_cast_and_buffers_are_not() -> None:
    layer = nn.BatchNorm1d(3)
    cast_weights(layer, torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert layer.running_mean is not None
    assert layer.running_mean.dtype == torch.float32
