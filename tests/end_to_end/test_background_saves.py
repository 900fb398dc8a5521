"""With run.save_async checkpoints are written while training goes on: the same ones, whole or absent."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import ONLINE, assert_same, forked
from making import make_model

from qed.errors import QedError
from qed.models.save import ModelFiles
from qed.runs import manifest
from qed.runs.run import Run
from qed.training.background import BackgroundSaver
from qed.training.checkpoint_writer import CheckpointWriter, Content, Ranks, save_checkpoint
from qed.training.checkpoints import load_exact_weights, name_folder, read_tensors

GRPO = ("grpo", *ONLINE, "--learner.batch_size", 10, "--algorithm.entropy", 0.01)
MOVING = (*GRPO, "--algorithm.kl", 0.1, "--algorithm.reference_every", 1)
ASYNC = ("--run.save_async", "true")
SAVES = 8  # stages of a save without retention


class Words:
    """Stands in for a tokenizer."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


def make_writer(run: Run, model: Any, moments: torch.Tensor, ranks: Ranks | None = None) -> CheckpointWriter:
    content = Content({"weight/exp_avg": moments}, {}, [], "bfloat16")
    return CheckpointWriter(run, 3, model, Words(), name_folder(run.folder, 3), content, ranks)


def test_a_run_saves_the_same_in_the_background(
    command: Callable[..., list[Any]], uncut: Callable[[list[Any]], Path], tmp_path: Path
) -> None:
    """Every checkpoint of a run whose reference moves, with retention, and of the run that goes on from the second."""
    arguments, run, log = [*command(*MOVING), "--run.save_every", 1], tmp_path / "run", tmp_path / "log"
    expected = uncut(arguments)
    code, said = forked([*arguments, *ASYNC, "--out", run], log)
    assert code == 0, said
    assert_same(expected, run)
    steps = manifest.list_checkpoints(run)
    assert len(steps) > 2
    for step, folder in manifest.list_checkpoints(expected).items():
        names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        for name in names:
            if name.name != manifest.NAME:
                assert (steps[step] / name).read_bytes() == (folder / name).read_bytes(), name
    for pointer in ("LATEST", "BEST"):
        assert manifest.read_pointer(run, pointer) == manifest.read_pointer(expected, pointer)


@pytest.mark.parametrize("fault", ["kill", "enospc", "sigterm"])
@pytest.mark.parametrize("stage", [3])
def test_a_fault_in_the_background_leaves_whole_checkpoints(
    command: Callable[..., list[Any]], uncut: Callable[[list[Any]], Path], tmp_path: Path, fault: str, stage: int
) -> None:
    """The run ends with the code that it ends with otherwise, and goes on to the same end."""
    arguments, run, log = command(*GRPO), tmp_path / "run", tmp_path / "log"
    expected = uncut(arguments)
    # The first checkpoint is complete, unless a signal lets it become so.
    passing = stage + 1 if fault == "sigterm" else SAVES + stage + 1
    code, said = forked([*arguments, *ASYNC, "--out", run], log, f"save:{fault}:{passing}")
    assert code == {"kill": -9, "enospc": 1, "sigterm": 143}[fault], said
    assert "Traceback" not in said
    assert ("No space left on device" in said) == (fault == "enospc")
    found = manifest.list_checkpoints(run)
    assert found
    assert not any(map(manifest.list_damage, found.values()))
    claimed = re.search(r"step (\d+), the last complete one, is saved", said)
    assert (claimed is not None) == (fault == "enospc"), said
    assert claimed is None or int(claimed[1]) == max(found), "what is said to be saved is saved"
    if fault != "kill":
        assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
    gone_on, then = forked([*arguments, *ASYNC, "--out", run, "--resume"], log)
    assert gone_on == 0, then
    assert_same(expected, run)


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["kill", "enospc", "sigterm"])
@pytest.mark.parametrize("stage", range(SAVES))
def test_a_fault_at_any_stage_in_the_background(
    command: Callable[..., list[Any]], uncut: Callable[[list[Any]], Path], tmp_path: Path, fault: str, stage: int
) -> None:
    test_a_fault_in_the_background_leaves_whole_checkpoints(command, uncut, tmp_path, fault, stage)


def test_training_goes_on_while_a_copy_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is the state when the save began, though weights and moments change before it is written."""
    go_on, write = threading.Event(), ModelFiles.write_weights

    def wait_and_write(self: ModelFiles, *arguments: Any) -> None:
        assert go_on.wait(20)
        write(self, *arguments)

    monkeypatch.setattr(ModelFiles, "write_weights", wait_and_write)
    run, saver, model, moments = Run(tmp_path), BackgroundSaver(), make_model(dtype=torch.float32), torch.ones(4)
    pointed: list[str] = []
    save_checkpoint(make_writer(run, model, moments), lambda: pointed.append("LATEST"), saver)
    with torch.no_grad():
        for tensor in (*model.parameters(), moments):
            tensor.zero_()
    saver.check()
    assert not pointed
    assert not manifest.list_checkpoints(tmp_path)
    go_on.set()
    saver.wait()
    assert pointed == ["LATEST"]
    folder = manifest.list_checkpoints(tmp_path)[3]
    assert manifest.list_damage(folder) == []
    assert torch.equal(read_tensors(folder)["weight/exp_avg"], torch.ones(4))
    load_exact_weights(model, folder)
    for name, weight in make_model(dtype=torch.float32).state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)


def test_an_error_is_raised_at_the_next_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ModelFiles, "write_weights", fill)
    run, saver, model = Run(tmp_path), BackgroundSaver(), make_model(dtype=torch.float32)
    save_checkpoint(make_writer(run, model, torch.ones(4)), lambda: None, saver)
    with pytest.raises(QedError, match="No space left on device"):
        saver.wait()
    saver.check()
    saver.wait()
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("fails", [False, True])
def test_ranks_wait_for_each_other_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Two writers of one folder, as two ranks are: the first commits when the second has written, or not at all."""
    model, pointed = make_model(dtype=torch.float32), list[str]()
    runs = [Run(tmp_path), Run(tmp_path)]
    writers = [make_writer(run, model, torch.ones(4), Ranks(rank, 2, "same")) for rank, run in enumerate(runs)]
    savers = [BackgroundSaver(), BackgroundSaver()]
    save_checkpoint(writers[0], lambda: pointed.append("LATEST"), savers[0])
    assert not manifest.list_checkpoints(tmp_path)
    if fails:
        monkeypatch.setattr(writers[1], "write", lambda: (_ for _ in ()).throw(QedError("full")))
    save_checkpoint(writers[1], lambda: pointed.append("never"), savers[1])
    if not fails:
        for saver in savers:
            saver.wait()
        folder = manifest.list_checkpoints(tmp_path)[3]
        assert manifest.list_damage(folder) == manifest.list_extra_files(folder) == []
        assert pointed == ["LATEST"]
        return
    with pytest.raises(QedError, match="full"):
        savers[1].wait()
    with pytest.raises(QedError, match="another rank could not write"):
        savers[0].wait()
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert not pointed


def test_a_rank_whose_folder_is_removed_by_another_one_says_what_it_cannot_write(tmp_path: Path) -> None:
    """As rank 0 does where it fails itself."""
    writer = make_writer(Run(tmp_path), make_model(dtype=torch.float32), torch.ones(4), Ranks(1, 2, "same"))
    saver = BackgroundSaver()
    save_checkpoint(writer, lambda: None, saver)
    with pytest.raises(QedError, match=r"Cannot write .*step_000003"):
        saver.wait()
