"""Checkpoints of several processes over gloo: in slices, read by another number of processes, whole or absent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from making import make_model
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from qed.config.settings import ModelSettings
from qed.errors import QedError
from qed.models import lora
from qed.models.save import ModelFiles, save_model
from qed.runs import manifest
from qed.runs.run import Run
from qed.training import checkpoint_writer
from qed.training.background import BackgroundSaver
from qed.training.checkpoint_writer import CheckpointWriter, Content, Ranks, save_checkpoint
from qed.training.checkpoints import EXACT, load_exact_weights, name_folder, read_tensors, set_pointer
from qed.training.optim import load_optimizer_tensors, read_optimizer_tensors
from qed.training.slices import get_local, read_slices


class Words:
    """Stands in for a tokenizer."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


def make_policy(adapted: bool) -> Any:
    model: Any = make_model(dtype=torch.float32)
    if adapted:
        model = lora.add_adapters(model, ModelSettings(lora_rank=2), 0)
        for number, (name, weight) in enumerate(model.named_parameters()):
            if "lora_B" in name:
                nn.init.normal_(weight, generator=torch.Generator().manual_seed(number))
    return model


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.arange(8).view(2, 4)).logits.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def build_optimizer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)


def agree(phase: Callable[[], None]) -> None:
    """Run a phase on all ranks; all raise what one has raised."""
    error: QedError | None = None
    try:
        phase()
    except QedError as raised:
        error = raised
    errors: list[QedError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    for each in errors:
        if each is not None:
            raise each


def run_ranks(rank: int, folder: Path) -> None:
    """Write checkpoints on three ranks over gloo, and resume them on two."""
    torch.set_num_threads(1)
    for world, work in ((3, write_all), (2, resume)):
        if rank < world:
            meeting = f"file://{folder}/rendezvous-{world}"
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
            work(rank, world, folder)
            dist.barrier()
            dist.destroy_process_group()


def shard(model: Any) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # which averages the gradients of the ranks, and these have the same rows
    return model


def gathered(model: Any) -> dict[str, Tensor]:
    return {
        name: weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        for name, weight in model.state_dict().items()
    }


def save(run: Run, step: int, model: Any, content: Content, ranks: Ranks, saver: BackgroundSaver | None = None) -> None:
    target = name_folder(run.folder, step)
    writer = CheckpointWriter(run, step, model, Words(), target, content, ranks)
    save_checkpoint(writer, lambda: set_pointer(run, "LATEST", step), saver)


def fill(*_: object) -> None:
    raise OSError(28, "No space left on device")


def write_all(rank: int, world: int, folder: Path) -> None:
    """Write whole weights, rounded ones and merged adapters; then a save that fails on the last rank."""
    run = Run(folder / f"rank_{rank}")
    run.folder = folder
    saver = BackgroundSaver()
    for step, (adapted, dtype) in enumerate([(False, "float32"), (False, "bfloat16"), (True, "float32")], 1):
        model = shard(make_policy(adapted))
        optimizer = build_optimizer(model)
        train(model, optimizer, 2)
        content = Content(read_optimizer_tensors(optimizer, model), {"kind": step}, [{"row": 1}], dtype)
        save(run, step, model, content, Ranks(rank, world, "same", agree))
        save(run, step + 3, model, content, Ranks(rank, world, "same", agree), saver)
        train(model, optimizer, 1)
        state = {name: get_local(part) for name, part in read_optimizer_tensors(optimizer, model).items()}
        saver.wait()
        torch.save((gathered(model), state), folder / f"after_{step}_{rank}.pt")
    if rank == world - 1:
        checkpoint_writer.write_slices = fill  # type: ignore[assignment]
    with pytest.raises(QedError, match="No space left"):
        save(run, 9, model, content, Ranks(rank, world, "other", agree))
    dist.barrier()
    assert not list(folder.glob("checkpoints/.tmp*")), "the half checkpoint is removed"
    assert not (folder / "checkpoints" / "step_000009").exists()


def resume(rank: int, world: int, folder: Path) -> None:
    """Go on from each checkpoint, which another number of ranks wrote, to where its writers went."""
    for step, adapted in ((1, False), (2, False), (3, True)):
        checkpoint = folder / "checkpoints" / f"step_{step:06d}"
        model = shard(load_model(checkpoint, adapted)) if world > 1 else load_model(checkpoint, adapted)
        optimizer = build_optimizer(model)
        load_optimizer_tensors(optimizer, model, read_tensors(checkpoint, dict(model.named_parameters())))
        train(model, optimizer, 1)
        expected, _ = torch.load(folder / f"after_{step}_0.pt")
        for name, weight in gathered(model).items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-6)


def load_model(checkpoint: Path, adapted: bool) -> Any:
    model = make_policy(adapted)
    if adapted:
        lora.load_adapters(model, checkpoint / "adapter")
        return model
    saved = load_file(checkpoint / "hf" / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in saved.items()}, strict=False)
    load_exact_weights(model, checkpoint)
    return model


@pytest.mark.faults
def test_checkpoints_of_three_ranks_are_resumed_by_one_and_two(tmp_path: Path) -> None:
    mp.spawn(run_ranks, (tmp_path,), nprocs=3)
    for step in (1, 2, 3):
        checkpoint = tmp_path / "checkpoints" / f"step_{step:06d}"
        assert manifest.list_damage(checkpoint) == []
        assert manifest.list_extra_files(checkpoint) == []
        assert json.loads((checkpoint / manifest.NAME).read_text())["world_size"] == 3
        assert len(list(checkpoint.glob("state-*-of-00003.safetensors"))) == 3
        later = tmp_path / "checkpoints" / f"step_{step + 3:06d}"
        assert manifest.list_damage(later) == manifest.list_extra_files(later) == []
        files = [path for path in checkpoint.rglob("*") if path.is_file()]
        for path in files:
            if path.name not in (manifest.NAME, "state.json"):
                assert (later / path.relative_to(checkpoint)).read_bytes() == path.read_bytes(), path
    assert manifest.read_pointer(tmp_path, "LATEST") == 6
    resume(0, 1, tmp_path)
    # The files of the model are those that one process writes of the same weights.
    exact = read_slices(tmp_path / "checkpoints" / "step_000002", EXACT)
    model = make_policy(adapted=False)
    model.load_state_dict(exact, strict=False)
    ModelFiles(model, "bfloat16").write(tmp_path / "hf", Words())
    written = tmp_path / "checkpoints" / "step_000002" / "hf"
    assert {path.name: path.read_bytes() for path in written.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()
    }
    merged = load_model(tmp_path / "checkpoints" / "step_000003", adapted=True)
    save_model(merged, Words(), tmp_path / "merged")
    of_ranks = load_file(tmp_path / "checkpoints" / "step_000003" / "hf" / "model.safetensors")
    for name, weight in load_file(tmp_path / "merged" / "model.safetensors").items():
        torch.testing.assert_close(of_ranks[name], weight, rtol=0, atol=0)
