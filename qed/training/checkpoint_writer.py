"""Writes atomic checkpoints: to a temporary folder with a manifest of checksums, which is then renamed.

A checkpoint is written in phases, between which many ranks agree that all of them have succeeded: rank 0 makes the
folder, every rank writes its slices while the model is gathered for rank 0, and rank 0 writes the rest and renames.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from qed.errors import QedError
from qed.guards import faults
from qed.models import lora
from qed.models.save import ModelFiles, list_exact_weights
from qed.runs import disk, manifest
from qed.runs.run import Row, Run
from qed.training import folders
from qed.training.checkpoint_size import checkpoint_bytes, count_bytes
from qed.training.checkpoints import EXACT, STATE, set_pointer
from qed.training.parallel import Parallel
from qed.training.slices import Part, write_slices


def run_alone(phase: Callable[[], None]) -> None:
    """Run a phase of a single process."""
    phase()


@dataclass(frozen=True)
class Ranks:
    """The processes that write a checkpoint together.

    Args:
        rank: of this process, from 0.
        world: their number.
        token: in the name of the temporary folder, the same on all ranks.
        agree: runs a phase on every rank, waits for all of them, and raises on all if one has raised.
    """

    rank: int = 0
    world: int = 1
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    agree: Callable[[Callable[[], None]], None] = run_alone


def build_ranks(parallel: Parallel) -> Ranks:
    """Return the ranks that write the next checkpoint of a run; all of them call this together."""
    if parallel.world == 1:
        return Ranks()

    def agree(phase: Callable[[], None]) -> None:
        parallel.exchange(phase)

    token = parallel.run_on_first(lambda: secrets.token_hex(4))
    return Ranks(parallel.rank, parallel.world, token, agree)


@dataclass(frozen=True)
class Content:
    """What a checkpoint has besides the model.

    Args:
        tensors: the optimizer's state, sharded or not.
        state: other small values, as JSON.
        rows: completions that the run holds for later steps, one per line.
        dtype: of the weights in `hf/`. Below that of the model the exact weights are saved too, to resume from; with
            adapters, `adapter/` has what is trained.
    """

    tensors: Mapping[str, Part]
    state: Mapping[str, Any]
    rows: Sequence[Row] = ()
    dtype: str = "float32"


class CheckpointWriter:
    """Writes the checkpoint of a step, or a model alone, in phases: `prepare`, `write`, `commit`; always `discard`.

    Every rank calls every phase, and starts one after all ranks have finished the one before.

    Args:
        run: the run.
        step: of the run.
        model: its adapters are merged in `hf/`, and also saved separately.
        tokenizer: saved with the model.
        target: the folder to write.
        content: of a checkpoint; None writes the model alone, into the folder itself.
        ranks: that write it together.
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
        dtype = content.dtype if content else ""
        self.files = ModelFiles(model, dtype)
        self.has_adapters = content is not None and lora.has_adapters(model)
        self.adapters: dict[str, Tensor] | None = None
        self.slices: dict[str, Mapping[str, Part]] = {}
        if content is not None:
            if _rounds(model, dtype) and not self.has_adapters:
                self.slices[EXACT] = list_exact_weights(model)
            self.slices[STATE] = content.tensors
        self.answers = "".join(json.dumps(row) + "\n" for row in content.rows) if content else ""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes all that is not sliced."""
        return self.ranks.rank == 0

    def run_phases(self) -> None:
        """Write everything and rename the folder, or leave no trace of it.

        Raises:
            QedError: the disk is full or cannot be written, on any rank; the old folder, if any, is unchanged.
        """
        try:
            for phase in (self.prepare, self.write, self.commit):
                self.ranks.agree(phase)
        finally:
            self.discard()

    def prepare(self) -> None:
        """Check the disk space and make the temporary folder, on rank 0.

        Raises:
            QedError: there is no space, or the folder cannot be made.
        """
        if self.is_first:
            with self._explain_disk_errors():
                self.run.sync()
                others = sum(map(count_bytes, self.content.tensors.values())) if self.content else 0
                needed = checkpoint_bytes(self.model, others + len(self.answers), copies=int(EXACT in self.slices))
                disk.require_space(self.run, needed)
                self.temporary.mkdir(parents=True)
                faults.hit("save")

    def write(self) -> None:
        """Write the model on rank 0, and the slices of this rank.

        Raises:
            QedError: the disk is full or cannot be written. The ranks that gather have finished all the same.
        """
        with self._explain_disk_errors():
            # Everything that the ranks do together comes before what may fail on one of them.
            adapters = self._gather_adapters()
            hf = self.temporary / "hf" if self.content is not None else self.temporary
            self.files.write(hf, self.tokenizer, self.ranks.rank)
            faults.hit("save")
            if adapters is not None and self.is_first:
                lora.save_adapters(self.model, self.temporary / "adapter", adapters)
                self.tokenizer.save_pretrained(self.temporary / "adapter")  # the adapter is a model too
            for name, tensors in self.slices.items():
                for file in write_slices(self.temporary, name, tensors, self.ranks.rank, self.ranks.world):
                    manifest.fsync(file)  # here, because rank 0 may be on another machine
            faults.hit("save")

    def commit(self) -> None:
        """Write the rest with the manifest, and rename the folder, on rank 0.

        Raises:
            QedError: the disk is full or cannot be written.
        """
        if not self.is_first:
            return
        with self._explain_disk_errors():
            if self.content is not None:
                state = json.dumps({"step": self.step, **self.content.state}, indent=1)
                (self.temporary / "state.json").write_text(state, encoding="utf-8")
                (self.temporary / "answers.jsonl").write_text(self.answers, encoding="utf-8")
                faults.hit("save")
            manifest.write_manifest(self.temporary, self.step, self.run.folder / "settings.yaml", self.ranks.world)
            folders.commit(self.temporary, self.target)

    def discard(self) -> None:
        """Remove what is left of the temporary folder, on rank 0."""
        if self.is_first:
            folders.discard(self.temporary, self.target)

    def _gather_adapters(self) -> dict[str, Tensor] | None:
        if not self.has_adapters:
            return None
        return self.adapters if self.adapters is not None else lora.gather_adapters(self.model)

    @contextlib.contextmanager
    def _explain_disk_errors(self) -> Iterator[None]:
        """Turn an error while writing into a QedError about the disk."""
        try:
            yield
        except Exception as error:
            # A full disk raises an OSError, a SafetensorError, or a bare Exception from tokenizers.
            if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
                raise
            raise QedError(
                f"Cannot write {self.target}: {error}. Earlier checkpoints are complete. Free some space, or fix "
                f"the folder, and continue with --resume --out {self.run.home}."
            ) from error


def _rounds(model: Any, dtype: str) -> bool:
    """Whether a precision is not enough for all weights of a model."""
    kind: torch.dtype = getattr(torch, dtype)
    return any(torch.promote_types(weight.dtype, kind) != kind for weight in model.parameters())


def save_checkpoint(
    run: Run, step: int, model: Any, tokenizer: Any, content: Content, ranks: Ranks | None = None
) -> Path:
    """Write the checkpoint of a step with a manifest, and point LATEST to it; see `CheckpointWriter`.

    Raises:
        QedError: the disk is full or cannot be written; earlier checkpoints are unchanged.
    """
    target = run.folder / "checkpoints" / f"step_{step:06d}"
    writer = CheckpointWriter(run, step, model, tokenizer, target, content, ranks)
    writer.run_phases()
    if writer.is_first:
        set_pointer(run, "LATEST", step)
    return target


def save_reference(run: Run, step: int, model: Any, tokenizer: Any, target: Path, ranks: Ranks | None = None) -> None:
    """Write the current model alone, with a manifest.

    Raises:
        QedError: the disk is full or cannot be written.
    """
    CheckpointWriter(run, step, model, tokenizer, target, None, ranks).run_phases()
