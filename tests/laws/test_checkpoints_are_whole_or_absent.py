"""A checkpoint is whole or absent, whatever happens while it is written and whatever happens to it afterwards."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from making import make_model
from safetensors import SafetensorError

from qed.errors import DataError, ModelError, QedError
from qed.runs import disk, manifest
from qed.runs.choose import choose_checkpoint
from qed.runs.run import Run, read_lines
from qed.training import checkpoint_size, checkpoints, folders
from qed.training.checkpoint_writer import CheckpointWriter, Content, save_checkpoint

MODEL = make_model()
FILES = ["hf/model.safetensors", "hf/config.json", "hf/tokenizer.json", "state.safetensors", "state.json"]
FILES += ["answers.jsonl", manifest.NAME]
Usage = namedtuple("Usage", "total used free")


class Words:
    """Stands in for a tokenizer."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


class Killed(BaseException):
    """Ends a save as a kill does, but for what is cleaned up on the way, which the tests put back."""


def save(run: Run, step: int, **state: Any) -> Path:
    tensors = {"weight/exp_avg": torch.full((3,), float(step))}
    target = checkpoints.name_folder(run.folder, step)
    writer = CheckpointWriter(run, step, MODEL, Words(), target, Content(tensors, state, [{"kept": step}]))
    save_checkpoint(writer, lambda: checkpoints.set_pointer(run, "LATEST", step))
    return target


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with checkpoints of steps 2 and 4."""
    made = Run(tmp_path)
    (tmp_path / "settings.yaml").write_text("method: grpo\n", encoding="utf-8")
    for step in (2, 4):
        save(made, step)
    return made


def names(run: Run) -> list[str]:
    return sorted(path.name for path in (run.folder / "checkpoints").iterdir())


def newest(run: Run) -> tuple[int | None, list[str]]:
    """The step of the newest whole checkpoint, as a resumed run finds it, and what was said of others."""
    said: list[str] = []
    checkpoints.remove_leftovers(run)
    found = checkpoints.find_newest_complete(run, said.append)
    return found and manifest.parse_step(found.name), said


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def foreign(file: Path) -> None:
    other = file.parents[1 if file.parent.name == "hf" else 0].parent / "step_000002"
    relative = file.relative_to(other.with_name("step_000004"))
    changed = (other / relative).read_bytes()
    file.write_bytes(changed if changed != file.read_bytes() else changed + b"\n")


def linked(file: Path) -> None:
    elsewhere = file.parents[3] / "elsewhere"
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)


def unreadable(file: Path) -> None:
    """A folder in its place, because the superuser may read whatever the mode of a file says."""
    file.unlink()
    file.mkdir()


DAMAGES: list[Callable[[Path], object]] = [Path.unlink, half, flip, foreign, linked, unreadable]
DAMAGES.append(lambda file: file.write_bytes(b""))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_the_file_named(run: Run, name: str, damage: Callable[[Path], object]) -> None:
    damage(run.folder / "checkpoints" / "step_000004" / name)
    step, said = newest(run)
    assert step == 2
    assert len(said) == 1
    assert f"step_000004/{name}" in said[0]
    (rejected,) = read_lines(run.folder / "events.jsonl")
    assert rejected["event"] == "checkpoint_rejected"
    assert manifest.read_pointer(run.folder, "LATEST") == 2


def test_a_file_that_cannot_be_read_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def failing(self: Path, *arguments: Any, **more: Any) -> Any:
        if self.name == "state.safetensors" and "step_000004" in str(self):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(self, *arguments, **more)

    monkeypatch.setattr(Path, "open", failing)
    step, said = newest(run)
    assert step == 2
    assert "state.safetensors cannot be read (Permission denied)" in said[0]


def test_every_bit_of_a_manifest_counts(run: Run) -> None:
    """Whichever bit is turned: the manifest still says the same, or is refused."""
    folder = run.folder / "checkpoints" / "step_000004"
    whole = (folder / manifest.NAME).read_bytes()
    told = json.loads(whole)
    assert told["world_size"] == 1
    assert len(told["settings"]) == len(told["sha256"]) == 64
    for place in range(0, len(whole) * 8, 7):
        broken = bytearray(whole)
        broken[place // 8] ^= 1 << place % 8
        (folder / manifest.NAME).write_bytes(broken)
        assert manifest.list_damage(folder), place


def test_what_is_no_checkpoint_of_this_run(run: Run) -> None:
    """A copy under another number, an older schema, a link, an empty folder; other names are passed by."""
    home = run.folder / "checkpoints"
    shutil.copytree(home / "step_000002", home / "step_000009")
    shutil.copytree(home / "step_000002", home / "step_000008")
    told = json.loads((home / "step_000008" / manifest.NAME).read_text())
    (home / "step_000008" / manifest.NAME).write_text(json.dumps({**told, "schema": 1}))
    shutil.copytree(home / "step_000002", home / "step_000010")
    (home / "step_000010" / manifest.NAME).write_text(json.dumps({**told, "world_size": 2}))
    (home / "step_000007").symlink_to(home / "step_000002")
    (home / "step_000006").mkdir()
    (home / "step_final").mkdir()
    (home / "step_000005").write_text("a file")
    step, said = newest(run)
    assert step == 4
    expected = [
        "MANIFEST.json is damaged",
        "is of step 2",
        "schema 1",
        "is a link",
        f"{manifest.NAME} is missing",
        manifest.NAME,
    ]
    for line, words in zip(said, expected, strict=True):
        assert words in line


def test_none_whole_is_an_error_that_names_the_file(run: Run) -> None:
    for step in (2, 4):
        flip(run.folder / "checkpoints" / f"step_{step:06d}" / "state.json")
    with pytest.raises(DataError, match=r"step_000004/state\.json is damaged"):
        newest(run)


def test_many_steps_are_counted_as_numbers(run: Run) -> None:
    save(run, 999_999)
    save(run, 1_000_000)
    assert newest(run)[0] == 1_000_000


@pytest.mark.parametrize("content", [b"", b"step_0000", b"../../etc\n", b"\xff\xfe", b"step_000099\n", None])
def test_pointers_are_mended(run: Run, content: bytes | None) -> None:
    """LATEST and BEST do not decide what a run goes on from, and say again what the checkpoint knows."""
    save(run, 6, best=4)
    for pointer in ("LATEST", "BEST"):
        place = run.folder / "checkpoints" / pointer
        place.write_bytes(content) if content is not None else place.unlink(missing_ok=True)
    assert newest(run) == (6, [])
    assert manifest.read_pointer(run.folder, "LATEST") == 6
    assert manifest.read_pointer(run.folder, "BEST") == 4
    assert names(run)[-3:] == ["step_000002", "step_000004", "step_000006"]


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "a step that is there"])
@pytest.mark.parametrize("point", range(33))
def test_a_save_may_be_killed_anywhere(run: Run, monkeypatch: pytest.MonkeyPatch, point: int, again: bool) -> None:
    """Whatever was last done to the disk, the run finds a whole checkpoint, and one no older than before."""
    calls = iter(range(1000))
    for owner, name in ((manifest, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "write_text")):
        _dies_at(monkeypatch, owner, name, calls, point)
    # A killed process cleans nothing up.
    with monkeypatch.context() as patch:
        patch.setattr(folders, "remove", lambda *_: None)
        patch.setattr(folders, "restore_replaced", lambda *_: None)
        try:
            save(run, 4 if again else 6)
        except Killed:
            pass
        else:
            assert point >= 31, "every step of a save is tried"
    monkeypatch.undo()
    step, said = newest(run)
    assert step in ((4,) if again else (4, 6))
    assert said == []
    assert manifest.read_pointer(run.folder, "LATEST") == step
    assert not [name for name in names(run) if name.startswith(".")]
    save(run, 6)
    assert newest(run) == (6, [])


def _dies_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: Any, point: int) -> None:
    original = getattr(owner, name)

    def dying(*arguments: Any, **more: Any) -> Any:
        if next(calls) == point:
            raise Killed
        return original(*arguments, **more)

    monkeypatch.setattr(owner, name, dying)


@pytest.mark.parametrize("name", ["hf/tokenizer.json", "state.json", "answers.jsonl", manifest.NAME, ".tmp-LATEST"])
@pytest.mark.parametrize("step", [4, 6])
def test_a_full_disk_leaves_what_was_there(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, step: int) -> None:
    write = Path.write_text

    def filling(self: Path, text: str, **more: Any) -> int:
        if self.as_posix().endswith(name):
            write(self, text[: len(text) // 2], **more)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, text, **more)

    monkeypatch.setattr(Path, "write_text", filling)
    with pytest.raises(QedError, match=r"No space left on device.*complete.*--resume") as raised:
        save(run, step)
    assert raised.value.exit_code == 1
    monkeypatch.undo()
    assert newest(run)[0] == (6 if step == 6 and "LATEST" in name else 4)
    assert not [left for left in names(run) if left.startswith(".")]


@pytest.mark.parametrize(
    "error", [OSError(errno.EFBIG, "File too large"), SafetensorError("File too large (os error 27)")]
)
def test_a_limit_on_the_size_of_files_is_told(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Words, "save_pretrained", refuse)
    advice = r"Raise the limit on the size of files \(ulimit -f\), or fix the folder, and resume with --resume"
    with pytest.raises(QedError, match=rf"too large.*\. Earlier checkpoints are complete\. {advice}"):
        save(run, 6)
    for earlier in (run.folder / "checkpoints").glob("step_*"):
        shutil.rmtree(earlier)
    with pytest.raises(QedError, match=rf"too large[^.]*\. {advice}"):
        save(run, 6)


def test_a_tokenizer_reports_a_full_disk_in_its_own_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise Exception("No space left on device (os error 28)")

    monkeypatch.setattr(Words, "save_pretrained", full)
    with pytest.raises(QedError, match="os error 28"):
        save(run, 6)
    assert newest(run) == (4, [])


@pytest.mark.parametrize("which", [1, 2])
def test_a_rename_that_fails_leaves_what_was_there(run: Run, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    rename, calls = Path.rename, iter(range(1, 100))

    def failing(self: Path, target: Path) -> Path:
        if next(calls) == which:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(QedError, match="Input/output error"):
        save(run, 4)
    assert newest(run) == (4, [])


def test_a_folder_that_is_gone_is_not_made_again(run: Run) -> None:
    shutil.rmtree(run.folder)
    with pytest.raises(QedError, match=r"Cannot write .*step_0"):
        save(run, 6)
    assert not run.folder.exists()


def test_nothing_is_written_where_there_is_no_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, checkpoint_size.MARGIN))
    with pytest.raises(QedError, match=r"needs 0\.03 GiB.*run\.keep_last.*--out"):
        save(run, 6)
    assert names(run) == before
    weights = sum(parameter.nbytes for parameter in MODEL.parameters())  # tied ones once
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, 3 * weights + checkpoint_size.MARGIN))
    disk.require_space(run, checkpoint_size.checkpoint_bytes(MODEL))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, 3 * weights + checkpoint_size.MARGIN - 1))
    with pytest.raises(QedError):
        disk.require_space(run, checkpoint_size.checkpoint_bytes(MODEL))


def test_retention_spares_what_is_named(run: Run) -> None:
    for step in (6, 8, 10, 12):
        save(run, step)
    checkpoints.delete_old(run, 0, {2})
    assert len(manifest.list_checkpoints(run.folder)) == 6
    checkpoints.set_pointer(run, "BEST", 6)
    (run.folder / "final").symlink_to(Path("checkpoints") / "step_000004")
    checkpoints.delete_old(run, 2, {2})
    assert list(manifest.list_checkpoints(run.folder)) == [12, 10, 6, 4, 2]
    (run.folder / "final").unlink()
    checkpoints.delete_old(run, 1, ())
    assert list(manifest.list_checkpoints(run.folder)) == [12, 6]
    assert newest(run) == (12, [])
    assert names(run) == ["LATEST", "step_000006", "step_000012"]


def write_model(run: Run, step: int) -> str:
    hf = run.folder / "checkpoints" / f"step_{step:06d}" / "hf"
    hf.mkdir(parents=True)
    (hf / "weights").write_text(str(step), encoding="utf-8")
    return hf.parent.name


@pytest.mark.parametrize("copied", [False, True])
def test_final_is_the_last_model_also_where_it_was_copied(run: Run, copied: bool) -> None:
    """`cp -L` and archives make a folder of the link, which then would keep the old model."""
    link = folders.link_checkpoint(run.folder, "final", write_model(run, 20))
    if copied:
        shutil.copytree(link, run.folder / "copy")
        link.unlink()
        (run.folder / "copy").rename(link)
    assert folders.link_checkpoint(run.folder, "final", write_model(run, 30)) == link
    assert (link / "hf" / "weights").read_text(encoding="utf-8") == "30"
    assert link.resolve().name == "step_000030"
    assert not [path for path in run.folder.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_without_a_model_is_not_chosen(run: Run) -> None:
    whole = run.folder / "checkpoints" / write_model(run, 10)
    (run.folder / "checkpoints" / "step_000020").mkdir()
    (run.folder / "checkpoints" / "BEST").write_text("step_000020\n")
    assert choose_checkpoint(run.folder, "last") == choose_checkpoint(run.folder, "10") == (whole, 10)
    for which, missing in (
        ("best", "no checkpoint of step 20, the best on its validation split"),
        ("20", "no checkpoint of step 20"),
        ("final", "no final model: it has not finished"),
    ):
        with pytest.raises(ModelError, match=rf"{missing}\. Its checkpoints are of step 2, 4, 10;"):
            choose_checkpoint(run.folder, which)


def test_final_is_a_copy_on_a_disk_without_links(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(self))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    for step in (20, 30):
        link = folders.link_checkpoint(run.folder, "final", write_model(run, step))
        assert (link / "hf" / "weights").read_text(encoding="utf-8") == str(step)
        assert not link.is_symlink()
    assert choose_checkpoint(run.folder, "final") == (link, 30)
    assert not [path for path in run.folder.iterdir() if path.name.startswith(".")]


def test_a_folder_of_the_users_own_named_final_stays(run: Run) -> None:
    (run.folder / "final").mkdir()
    (run.folder / "final" / "notes.txt").write_text("mine", encoding="utf-8")
    checkpoint = write_model(run, 20)
    assert folders.link_checkpoint(run.folder, "final", checkpoint) == run.folder / "checkpoints" / checkpoint
    assert (run.folder / "final" / "notes.txt").exists()


def test_retention_deletes_nothing_before_a_new_one_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later checkpoints than LATEST's are not reckoned with, and without LATEST nothing is deleted."""
    save(run, 6)
    checkpoints.set_pointer(run, "LATEST", 4)
    checkpoints.delete_old(run, 1, ())
    assert list(manifest.list_checkpoints(run.folder)) == [6, 4]
    (run.folder / "checkpoints" / "LATEST").write_text("step")
    checkpoints.delete_old(run, 1, ())
    assert list(manifest.list_checkpoints(run.folder)) == [6, 4]
    checkpoints.set_pointer(run, "LATEST", 6)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed between the name and the files
    checkpoints.delete_old(run, 1, ())
    monkeypatch.undo()
    assert list(manifest.list_checkpoints(run.folder)) == [6]
    assert newest(run) == (6, [])
    assert names(run) == ["LATEST", "step_000006"]
