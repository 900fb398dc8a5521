"""Writes atomic checkpoints: to a temporary folder with a manifest of checksums, which is then renamed.

A checkpoint is written in phases; between them, all ranks agree that every one has succeeded: rank 0 creates the
folder, every rank writes its slices while the model is gathered for rank 0, and rank 0 writes the rest and renames.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from qed.errors import QedError, advise_space
from qed.guards import faults
from qed.models import lora
from qed.models.save import ModelFiles, is_disk_error, list_exact_weights, rounds
from qed.runs import disk, manifest
from qed.runs.run import Row, Run
from qed.training import folders
from qed.training.background import BackgroundSaver
from qed.training.checkpoint_size import checkpoint_bytes, count_bytes
from qed.training.checkpoints import EXACT, STATE
from qed.training.parallel import Parallel
from qed.training.slices import Part, copy_to_host, write_slices

FAILED = "failed"  # file left by a rank that failed to write in the background
DEADLINE = 1800.0  # seconds for the other ranks to write their slices after rank 0 has written its own


def run_alone(phase: Callable[[], None]) -> None:
    """Run a phase of a single process."""
    phase()


@dataclass(frozen=True)
class Ranks:
    """The processes that write a checkpoint together.

    Args:
        rank: rank of this process, from 0.
        world: number of ranks.
        token: part of the temporary folder's name, the same on all ranks.
        agree: runs a phase on every rank, waits for all, and raises on all if any has raised.
    """

    rank: int = 0
    world: int = 1
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    agree: Callable[[Callable[[], None]], None] = run_alone


def build_ranks(parallel: Parallel) -> Ranks:
    """Return the ranks that write a run's next checkpoint; all of them must call this together."""
    if parallel.world == 1:
        return Ranks()

    def agree(phase: Callable[[], None]) -> None:
        parallel.exchange(phase)

    token = parallel.run_on_first(lambda: secrets.token_hex(4))
    return Ranks(parallel.rank, parallel.world, token, agree)


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint besides the model.

    Args:
        tensors: optimizer state, sharded or not.
        state: other small values, as JSON.
        rows: completions kept for later steps, one per line.
        dtype: dtype of the weights in `hf/`. If it is less precise than the model's, the exact weights are saved too,
        to
            resume from; with adapters, `adapter/` has what is trained.
        critic: model saved in `critic/` for other programs, in the same precision.
    """

    tensors: Mapping[str, Part]
    state: Mapping[str, Any]
    rows: Sequence[Row] = ()
    dtype: str = "float32"
    critic: Any = None


class CheckpointWriter:
    """Writes a step's checkpoint, or only a model, in phases: `prepare`, `write`, `commit`, and always `discard`.

    Every rank calls every phase, and starts one only after all ranks have finished the previous one.

    Args:
        run: the run.
        step: step number within the run.
        model: the model; its adapters are merged in `hf/`, and also saved separately.
        tokenizer: saved with the model.
        target: folder to write.
        content: content of a checkpoint; None writes only the model, directly into the folder.
        ranks: ranks that write it together.
    """

    def __init__(
        self,
        run: Run,
        step: int,
        model: Any,
        tokenizer: Any,
        target: Path,
        content: Content | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.run, self.step, self.model, self.tokenizer = run, step, model, tokenizer
        self.ranks = ranks or Ranks()
        self.target, self.temporary = target, folders.name_temporary(target, self.ranks.token)
        self.content = content
        self.hf = self.temporary / "hf" if content is not None else self.temporary
        self.state = self.answers = ""
        dtype = content.dtype if content else ""
        # Files of each model, by the folder that they are written to.
        self.files = {self.hf: ModelFiles(model, dtype)}
        if content is not None and content.critic is not None:
            self.files[self.temporary / "critic"] = ModelFiles(content.critic, dtype)
        self.slices: dict[str, Mapping[str, Part]] = {}
        if content is not None:
            if rounds((weight.dtype for weight in model.parameters()), dtype) and not lora.has_adapters(model):
                self.slices[EXACT] = list_exact_weights(model)
            self.slices[STATE] = content.tensors
            self.state = json.dumps({"step": step, **content.state}, indent=1)
            self.answers = "".join(json.dumps(row) + "\n" for row in content.rows)
        self.detached = False

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes everything that is not sliced."""
        return self.ranks.rank == 0

    def run_phases(self) -> None:
        """Write everything and rename the folder, or leave nothing behind.

        Raises:
            QedError: the disk is full or not writable, on any rank; the old folder, if any, is unchanged.
        """
        try:
            for phase in (self.prepare, self.write, self.commit):
                self.ranks.agree(phase)
        finally:
            self.discard()

    def detach(self) -> None:
        """Copy what this rank writes to host memory and write the small files; `finish` writes the rest in a thread.

        Raises:
            QedError: the disk is full or not writable.
        """
        adapters = self._gather_adapters()
        for files in self.files.values():
            files.copy_to_host(keep=self.is_first)
        self.slices = {name: copy_to_host(tensors) for name, tensors in self.slices.items()}
        self.detached = True
        if self.is_first:
            with self._explain_disk_errors():
                for folder, files in self.files.items():
                    files.write_config(folder, self.tokenizer)
                self._save_adapters(adapters)

    def finish(self) -> None:
        """Write and commit after `detach`, without communication; each rank leaves a file for rank 0 when done.

        Raises:
            QedError: the disk is full or not writable on this rank; on rank 0, on any rank.
        """
        done = [self.temporary / f"rank-{rank}.done" for rank in range(self.ranks.world)]
        try:
            self.write()
            with self._explain_disk_errors():
                done[self.ranks.rank].touch()
                if self.is_first:
                    _wait_for_files(done)
                    for file in done:
                        file.unlink()
            self.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                (self.temporary / FAILED).touch()  # tells rank 0 not to wait
            raise
        finally:
            self.discard()

    def prepare(self) -> None:
        """Check the disk space and create the temporary folder, on rank 0.

        Raises:
            QedError: there is not enough space, or the folder cannot be created.
        """
        if self.is_first:
            with self._explain_disk_errors():
                self.run.sync()
                others = sum(map(count_bytes, self.content.tensors.values())) if self.content else 0
                others += sum(weight.nbytes for files in [*self.files.values()][1:] for weight in files.weights)
                needed = checkpoint_bytes(self.model, others + len(self.answers), copies=int(EXACT in self.slices))
                disk.require_space(self.run, needed)
                self.temporary.mkdir(parents=True)
                faults.hit("save")

    def write(self) -> None:
        """Write the model on rank 0, and the slices of this rank.

        Raises:
            QedError: the disk is full or not writable. Collective operations have still completed.
        """
        with self._explain_disk_errors():
            # Collective operations come before anything that may fail on a single rank.
            adapters = None if self.detached else self._gather_adapters()
            self._write_models()
            faults.hit("save")
            if self.is_first:
                self._save_adapters(adapters)
            for name, tensors in self.slices.items():
                for file in write_slices(self.temporary, name, tensors, self.ranks.rank, self.ranks.world):
                    manifest.fsync(file)  # on this rank, because rank 0 may be on another machine
            faults.hit("save")

    def commit(self) -> None:
        """Write the rest with the manifest, and rename the folder, on rank 0.

        Raises:
            QedError: the disk is full or not writable.
        """
        if not self.is_first:
            return
        with self._explain_disk_errors():
            if self.content is not None:
                (self.temporary / "state.json").write_text(self.state, encoding="utf-8")
                (self.temporary / "answers.jsonl").write_text(self.answers, encoding="utf-8")
                faults.hit("save")
            manifest.write_manifest(self.temporary, self.step, self.run.folder / "settings.yaml", self.ranks.world)
            folders.commit(self.temporary, self.target)

    def discard(self) -> None:
        """Remove any remains of the temporary folder, on rank 0."""
        if self.is_first:
            folders.discard(self.temporary, self.target)

    def _write_models(self) -> None:
        """Write the model and the critic; raise errors only after the ranks have gathered both."""
        failed: list[Exception] = []
        for folder, files in self.files.items():
            try:
                if not self.detached:
                    files.write(folder, self.tokenizer, self.ranks.rank)
                elif self.is_first:
                    files.write_weights(folder)
            except Exception as error:  # noqa: BLE001 -- raised below
                failed.append(error)
        if failed:
            raise failed[0]

    def _gather_adapters(self) -> dict[str, Tensor] | None:
        """Return the model's complete adapters; None if it has none, or if only the model is written."""
        return lora.gather_adapters(self.model) if self.content is not None and lora.has_adapters(self.model) else None

    def _save_adapters(self, adapters: Mapping[str, Tensor] | None) -> None:
        if adapters is not None:
            lora.save_adapters(self.model, self.temporary / "adapter", adapters)
            self.tokenizer.save_pretrained(self.temporary / "adapter")  # makes the adapter usable alone

    @contextlib.contextmanager
    def _explain_disk_errors(self) -> Iterator[None]:
        """Convert disk errors while writing into a QedError."""
        try:
            yield
        except Exception as error:
            if not is_disk_error(error):
                raise
            earlier = "Earlier checkpoints are complete. " if manifest.list_checkpoints(self.run.folder) else ""
            raise QedError(
                f"Cannot write {self.target}: {error}. {earlier}{advise_space(error) or 'Free some space'}, or fix the "
                f"folder, and resume with --resume --out {self.run.home}."
            ) from error


def save_checkpoint(writer: CheckpointWriter, then: Callable[[], None], saver: BackgroundSaver | None = None) -> None:
    """Write the checkpoint of a step with a manifest.

    Args:
        writer: writer of the checkpoint, on every rank.
        then: called on rank 0 once the checkpoint is complete, to set pointers to it.
        saver: writes in the background; the state is copied to host memory first.

    Raises:
        QedError: the disk is full or not writable; earlier checkpoints are unchanged. With a `saver`, later failures
        are
            raised by the saver.
    """
    finish = then if writer.is_first else (lambda: None)
    if saver is None:
        writer.run_phases()
        writer.ranks.agree(finish)
        return
    try:
        for phase in (saver.wait, writer.prepare, writer.detach):
            writer.ranks.agree(phase)
    except BaseException:
        writer.discard()
        raise
    saver.start(writer.finish, finish)


def save_reference(run: Run, step: int, model: Any, tokenizer: Any, target: Path, ranks: Ranks | None = None) -> None:
    """Write only the current model, with a manifest.

    Raises:
        QedError: the disk is full or not writable.
    """
    CheckpointWriter(run, step, model, tokenizer, target, ranks=ranks).run_phases()


def _wait_for_files(files: Sequence[Path]) -> None:
    """Wait until other ranks have created all of these files.

    Raises:
        OSError: a rank has failed, or is too slow.
    """
    end = time.monotonic() + DEADLINE
    while missing := [file.name for file in files if not file.exists()]:
        if (files[0].parent / FAILED).exists():
            raise OSError("another rank could not write its slices; its log says why")
        if time.monotonic() > end:
            raise OSError(f"after {DEADLINE:.0f} s another rank has still not written {missing[0]}")
        time.sleep(0.05)
