"""Tensors in a checkpoint, complete or in slices: each rank writes its own rows; any number of ranks can read them.

A sharded tensor is a `DTensor` whose first dimension is split over the ranks as by `torch.chunk` and FSDP2. Every rank
can compute which rank holds which rows, so neither writing nor reading needs communication.

    state.safetensors                                         one process, or nothing is sharded
    state-00001-of-00002.safetensors …                        one file per rank
    state.safetensors.index.json                              where the rows of each tensor are
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from qed.errors import DataError, QedError
from qed.models.weights import identify
from qed.runs.run import read_json

INDEX_SUFFIX = ".safetensors.index.json"


@dataclass(frozen=True)
class Layout:
    """Which rows (first dimension) of a tensor each rank holds.

    Args:
        shape: shape of the complete tensor.
        parts: writing rank, first row and number of rows of each slice, in order of rows.
        own: first row and number of rows of this rank.
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[int, int, int], ...]
    own: tuple[int, int]


@dataclass(frozen=True)
class Slice:
    """The rows of a sharded tensor that this rank holds, on any device."""

    rows: Tensor
    layout: Layout


Part = Tensor | Slice  # a complete tensor, a DTensor, or this rank's rows of a sharded one


def split_range(length: int, world: int) -> list[tuple[int, int]]:
    """Return the first row and number of rows of each of `world` ranks, split as by `torch.chunk` and FSDP2."""
    size = -(-length // world)
    firsts = [min(rank * size, length) for rank in range(world)]
    return [(first, min(size, length - first)) for first in firsts]


def find_layout(part: Part) -> Layout | None:
    """Return how a tensor is sharded; None if every rank holds all of it.

    Raises:
        QedError: it is sharded in any other way than over its first dimension.
    """
    if isinstance(part, Slice):
        return part.layout
    if not isinstance(part, DTensor):
        return None
    sharded = [axis for axis, placement in enumerate(part.placements) if not placement.is_replicate()]
    if not sharded:
        return None
    (axis, *others), mesh = sharded, part.device_mesh
    placement = part.placements[axis]
    if others or type(placement) is not Shard or placement.dim != 0:
        raise QedError(
            f"A tensor of shape {tuple(part.shape)} is sharded as {part.placements}, but a checkpoint holds only "
            "tensors that are sharded once, over their first dimension."
        )
    # In hybrid sharding, the first rank that holds a slice writes it.
    writers = mesh.mesh.movedim(axis, 0).reshape(mesh.size(axis), -1)[:, 0].tolist()
    ranges = split_range(part.shape[0], mesh.size(axis))
    parts = tuple((writer, *rows) for writer, rows in zip(writers, ranges, strict=True))
    return Layout(tuple(part.shape), parts, ranges[mesh.get_local_rank(axis)])


def get_local(part: Part) -> Tensor:
    """Return what this rank holds of a tensor, without communication: its rows if sharded, otherwise all of it."""
    if isinstance(part, Slice):
        return part.rows
    return part.to_local() if isinstance(part, DTensor) else part


def slice_like(value: Tensor, like: Tensor) -> Part:
    """Return an optimizer state entry as a slice if it belongs to rows of a sharded parameter, otherwise unchanged.

    Args:
        value: the entry: a DTensor, a count, or a tensor in the shape of this rank's rows.
        like: the parameter.
    """
    layout = find_layout(like)
    if layout is None or isinstance(value, DTensor) or value.shape != get_local(like).shape:
        return value
    return Slice(value, layout)


def take_rows(value: Part, like: Tensor) -> Tensor:
    """Return the rows of a tensor that this rank holds of `like`; the tensor may already be only those rows."""
    rows, layout = get_local(value), find_layout(like)
    if layout is None or rows.shape != layout.shape:
        return rows
    return rows.narrow(0, *layout.own)


def copy_sharded(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy the tensors named in `like`, sharded in the same way; copy tied ones only once."""
    copies: dict[int, Tensor] = {}
    copied = {}
    for name, own in like.items():
        if (number := identify(tensors[name])) not in copies:
            value = tensors[name].detach()
            copies[number] = (value if isinstance(value, DTensor) else wrap_rows(take_rows(value, own), own)).clone()
        copied[name] = copies[number]
    return copied


def wrap_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Return this rank's rows as a DTensor sharded like `like`, on its device; unchanged if the shape differs."""
    if not isinstance(like, DTensor) or rows.shape != like.to_local().shape:
        return rows
    return DTensor.from_local(
        rows.to(like.device), like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def copy_to_host(tensors: Mapping[str, Part]) -> dict[str, Part]:
    """Copy what this rank holds of tensors to host memory, independent of later changes."""
    copied: dict[str, Part] = {}
    for name, part in tensors.items():
        layout = find_layout(part)
        rows = torch.empty_like(get_local(part), device="cpu").copy_(get_local(part).detach())
        copied[name] = rows if layout is None else Slice(rows, layout)
    return copied


def write_slices(folder: Path, name: str, tensors: Mapping[str, Part], rank: int = 0, world: int = 1) -> list[Path]:
    """Write what this rank holds of tensors; rank 0 also writes unsharded tensors and the index.

    Args:
        folder: existing folder, shared by all ranks.
        name: name of the files, without a suffix.
        tensors: tensors with the same names on every rank, in the same order.
        rank: rank of this process, from 0.
        world: number of processes.

    Returns:
        The files that this rank has written; none if nothing is sharded and the rank is not 0.
    """
    layouts = {key: find_layout(part) for key, part in tensors.items()}
    own = {
        key: get_local(part).detach().cpu().contiguous()
        for key, part in tensors.items()
        if any(writer == rank for writer, _, _ in _list_parts(get_local(part).shape, layouts[key]))
    }
    if not any(layouts.values()):
        written = [folder / f"{name}.safetensors"] if rank == 0 else []
    else:
        written = [folder / _name_file(name, rank, world)]
    for file in written:
        save_file(own, file)
    if rank == 0 and any(layouts.values()):
        entries = {key: _describe(part, layouts[key], name, world) for key, part in tensors.items()}
        written.append(folder / f"{name}{INDEX_SUFFIX}")
        written[-1].write_text(json.dumps({"world_size": world, "tensors": entries}, indent=1), encoding="utf-8")
    return written


def has_slices(folder: Path, name: str) -> bool:
    """Return whether a folder has tensors written by `write_slices` under a name, sharded or not."""
    return (folder / f"{name}.safetensors").is_file() or (folder / f"{name}{INDEX_SUFFIX}").is_file()


def read_slices(folder: Path, name: str, like: Mapping[str, Part] | None = None) -> dict[str, Tensor]:
    """Read tensors written by any number of ranks into host memory; of each, only what this rank needs.

    Args:
        folder: folder of the checkpoint.
        name: name of the files, without a suffix.
        like: tensors by name. If a tensor has the name and shape of a sharded one, or its name followed by `/` and an
            entry of the optimizer's state, only this rank's rows are read; `wrap_rows` makes a DTensor of them. All
            others are read completely.

    Raises:
        DataError: a file or rows are missing.
    """
    index = folder / f"{name}{INDEX_SUFFIX}"
    with ExitStack() as stack:
        files = _Files(folder, stack)
        if index.is_file():
            entries: dict[str, dict[str, Any]] = read_json(index, {})["tensors"]
        else:
            entries = files.list_entries(f"{name}.safetensors")
        return {key: _read(files, key, entry, _find_own(key, entry, like or {})) for key, entry in entries.items()}


class _Files:
    """The open safetensors files of a folder, each mapped once.

    Args:
        folder: folder of the files.
        stack: closes them.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.opened: dict[str, Any] = {}

    def open(self, file: str) -> Any:
        """Return an open file.

        Raises:
            DataError: it is missing.
        """
        if file not in self.opened:
            path = self.folder / file
            if not path.is_file():
                raise DataError(f"{path} is missing. Restore it from a copy, or resume from another checkpoint.")
            self.opened[file] = self.stack.enter_context(safe_open(path, "pt"))
        return self.opened[file]

    def list_entries(self, file: str) -> dict[str, dict[str, Any]]:
        """Return the index entries for a file of complete tensors."""
        shapes = {key: self.open(file).get_slice(key).get_shape() for key in self.open(file).keys()}  # noqa: SIM118
        return {key: {"shape": shape, "slices": {file: [0, _count_rows(shape)]}} for key, shape in shapes.items()}


def _read(files: _Files, key: str, entry: Mapping[str, Any], own: tuple[int, int] | None) -> Tensor:
    """Read rows of a tensor, or all of it, from its files."""
    shape, slices = entry["shape"], entry["slices"]
    if own is None and len(slices) == 1:
        whole: Tensor = files.open(next(iter(slices))).get_tensor(key)
        return whole
    first, rows = own if own is not None else (0, _count_rows(shape))
    pieces: list[Tensor] = []
    for file, (start, length) in sorted(slices.items(), key=lambda item: item[1][0]):
        begin, end = max(first, start), min(first + rows, start + length)
        if begin < end:
            pieces.append(files.open(file).get_slice(key)[begin - start : end - start])
    if sum(map(len, pieces)) != rows:
        raise DataError(f"{files.folder} lacks rows of {key}: its index does not fit. Resume from another checkpoint.")
    if not pieces:  # more ranks than rows
        return files.open(next(iter(slices))).get_slice(key)[:0]  # type: ignore[no-any-return]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _find_own(key: str, entry: Mapping[str, Any], like: Mapping[str, Part]) -> tuple[int, int] | None:
    """Return the rows of a tensor that this rank needs; None for all of it."""
    for name in (key, key.rpartition("/")[0]):
        layout = find_layout(like[name]) if name in like else None
        if layout is not None and list(layout.shape) == entry["shape"]:
            return layout.own
    return None


def _list_parts(shape: Sequence[int], layout: Layout | None) -> list[tuple[int, int, int]]:
    """Return the writer, first row and number of rows of each slice; complete tensors are written by rank 0."""
    if layout is None:
        return [(0, 0, _count_rows(shape))]
    return [part for part in layout.parts if part[2]] or [layout.parts[0]]


def _describe(part: Part, layout: Layout | None, name: str, world: int) -> dict[str, Any]:
    """Return a tensor's entry in the index: its shape and dtype, and the first row and number of rows in each file."""
    local = get_local(part)
    shape = list(local.shape if layout is None else layout.shape)
    slices = {_name_file(name, writer, world): [first, rows] for writer, first, rows in _list_parts(shape, layout)}
    return {"shape": shape, "dtype": str(local.dtype).removeprefix("torch."), "slices": slices}


def _name_file(name: str, rank: int, world: int) -> str:
    return f"{name}-{rank + 1:05d}-of-{world:05d}.safetensors"


def _count_rows(shape: Sequence[int]) -> int:
    """Return the length of the first dimension; 1 for a scalar."""
    return shape[0] if shape else 1
