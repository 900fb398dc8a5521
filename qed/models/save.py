"""Writes a model for `from_pretrained`, tensor by tensor: at most one complete weight is held besides the model.

Each weight in turn is gathered from the ranks that hold its slices, merged with its adapter, dequantized and rounded.
The files are those of `save_pretrained`, byte for byte unless they are split into several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from qed.models import lora, qlora
from qed.models.weights import Source, identify

SHARD_BYTES = 5 * 10**9  # the usual maximum size of a weights file on the hub
ALIGNMENT = 8  # alignment of a safetensors file's header, in bytes
# Names of dtypes in a safetensors file.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def is_disk_error(error: Exception) -> bool:
    """Return whether an error may be a full disk: an OSError, or what safetensors and tokenizers raise instead."""
    return isinstance(error, OSError | SafetensorError) or type(error) is Exception


@dataclass(frozen=True)
class Weight:
    """A tensor in the file: name, shape, dtype, and a function that returns it; a collective operation if sharded."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]
    sharded: bool

    @staticmethod
    def of(name: str, source: Source, dtype: str) -> Weight:
        """Return a source under its name in the file, with a dtype for floats; an empty one keeps the source's."""
        kind: torch.dtype = getattr(torch, dtype) if dtype and source.dtype.is_floating_point else source.dtype
        return Weight(name, source.shape, kind, source.read, source.sharded)

    @property
    def nbytes(self) -> int:
        """The number of bytes in the file."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def load(self) -> Tensor:
        """Return the complete tensor in host memory and in the file's dtype; if sharded, every rank must call this."""
        return self.read().detach().to("cpu", self.dtype).contiguous()

    def copy_to_host(self) -> Weight:
        """Return the weight with a copy in host memory, independent of later changes of the model."""
        whole = self.read().detach()
        copied = torch.empty(whole.shape, dtype=self.dtype).copy_(whole)
        return replace(self, read=lambda: copied, sharded=False)


class ModelFiles:
    """The files of a model: config and weights.

    Args:
        model: transformers model, with or without adapters, on one rank or sharded.
        dtype: dtype of weights in the files, if less precise than the model's; empty keeps the model's.
        merge: whether adapters are merged into the weights; otherwise they are left out.
    """

    def __init__(self, model: Any, dtype: str = "", merge: bool = True) -> None:
        adapted = lora.has_adapters(model)
        sources = lora.list_merged(model, merge) if adapted else _list_sources(model)
        self.shell = qlora.build_unquantized_shell(model) if adapted else model
        sources = _drop_tied(model, sources)
        # A dtype more precise than the weights' would only waste space.
        dtype = dtype if dtype and rounds((source.dtype for source in sources.values()), dtype) else ""
        kinds = {
            str(source.dtype).removeprefix("torch.") for source in sources.values() if source.dtype.is_floating_point
        }
        self.dtype = dtype or (kinds.pop() if len(kinds) == 1 else "")  # in config.json
        try:
            converted = _convert_sources(self.shell, sources)
        except Exception:  # noqa: BLE001 -- a conversion that needs numbers fails on tensors without data
            converted = None
        self.streamed = converted is not None
        weights = [Weight.of(name, source, dtype) for name, source in (converted or sources).items()]
        files = _cut_into_files(weights) if self.streamed else [("", weights)]
        self.cuts = [(file, len(each)) for file, each in files]  # names of the files, and the number of weights in each
        self.weights = [weight for _, each in files for weight in each]  # in the order in which ranks gather them

    def copy_to_host(self, keep: bool = True) -> None:
        """Copy the weights to host memory, so that training can continue before they are written.

        Args:
            keep: False on a rank that only takes part in gathering.
        """
        for place, weight in enumerate(self.weights):
            if keep:
                self.weights[place] = weight.copy_to_host()
            elif weight.sharded:
                weight.read()
        if not keep:
            self.weights = []

    def write(self, folder: Path, tokenizer: Any, rank: int = 0) -> None:
        """Write all files and the tokenizer on rank 0; the other ranks take part in gathering.

        Raises:
            OSError: rank 0 cannot write; all weights have still been gathered, so that no other rank waits.
        """
        turn = iter(self.weights)
        try:
            if rank == 0:
                self.write_config(folder, tokenizer)
                self.write_weights(folder, turn)
        finally:
            for weight in turn:
                if weight.sharded:
                    weight.read()

    def write_config(self, folder: Path, tokenizer: Any) -> None:
        """Write config.json and generation_config.json as `save_pretrained` does, and the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        shell = self.shell
        shell.config.dtype = str(shell.dtype).removeprefix("torch.")
        shell.config.architectures = [type(shell).__name__.removeprefix("FSDP")]
        shell.config.save_pretrained(folder)
        if shell.can_generate():
            shell.generation_config.save_pretrained(folder)
        self._write_dtype(folder)
        tokenizer.save_pretrained(folder)

    def write_weights(self, folder: Path, turn: Iterator[Weight] | None = None) -> None:
        """Write the weights, taking them in order from `turn`."""
        turn = turn or iter(self.weights)
        if not self.streamed:
            whole = {weight.name: weight.load() for weight in turn}
            self.shell.save_pretrained(folder, state_dict=whole, max_shard_size=SHARD_BYTES)
            self._write_dtype(folder)
            return
        first, files = 0, []
        for name, count in self.cuts:
            files.append((name, self.weights[first : first + count]))
            _write_file(folder / name, files[-1][1], turn)
            first += count
        if len(files) > 1:
            _write_index(folder, files)

    def _write_dtype(self, folder: Path) -> None:
        if self.dtype and self.dtype != str(self.shell.dtype).removeprefix("torch."):
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            (folder / "config.json").write_text(json.dumps(config | {"dtype": self.dtype}, indent=2), encoding="utf-8")


def rounds(dtypes: Iterable[torch.dtype], precision: str) -> bool:
    """Return whether a precision cannot hold weights of all these dtypes exactly."""
    dtype: torch.dtype = getattr(torch, precision)
    return any(torch.promote_types(kind, dtype) != dtype for kind in dtypes if kind.is_floating_point)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer for `from_pretrained`, with adapters merged into the weights."""
    ModelFiles(model).write(folder, tokenizer)


def list_exact_weights(model: Any) -> dict[str, Tensor]:
    """Return a model's weights by name, sharded ones unchanged; a weight shared by layers is listed once."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        unique.setdefault(identify(tensor), (name, tensor.detach()))
    return dict(unique.values())


def _list_sources(model: Any) -> dict[str, Source]:
    """Return the weights of a model without adapters by name."""
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    return {name: Source.of(tensor) for name, tensor in model.state_dict().items() if name not in ignored}


def _drop_tied(model: Any, sources: dict[str, Source]) -> dict[str, Source]:
    """Drop the duplicate names of tied weights, which `from_pretrained` ties again."""
    tensors = model.state_dict(keep_vars=True)
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    adapted = lora.has_adapters(model)

    def is_copy(target: str, source: str) -> bool:
        if target not in sources or source not in sources:
            return False
        # With adapters, an output layer may have its own copy of the embedding's weight, and is tied in the file.
        return adapted or identify(tensors[target]) == identify(tensors[source])

    copies = {target for target, source in tied.items() if is_copy(target, source)}
    return {name: source for name, source in sources.items() if name not in copies}


def _convert_sources(model: Any, sources: dict[str, Source]) -> dict[str, Source] | None:
    """Return the tensors of the file under their names there, in the order of `save_pretrained`.

    For some families, transformers saves other tensors than the model has, such as one for each expert of a stack. They
    are converted layer by layer.

    Returns:
        The tensors, or None if a tensor of the file cannot be made from a single layer.
    """
    if any(source.dtype not in DTYPES for source in sources.values()):
        return None
    empty = {name: torch.empty(source.shape, dtype=source.dtype, device="meta") for name, source in sources.items()}
    names = {id(tensor): name for name, tensor in empty.items()}
    reverted = revert_weight_conversion(model, dict(empty))
    same = {name: sources[names[id(tensor)]] for name, tensor in reverted.items() if id(tensor) in names}
    left = sources.keys() - {names[id(tensor)] for tensor in reverted.values() if id(tensor) in names}
    made: dict[str, Source] = {}
    for layer in sorted({_find_layer(name) for name in left}):
        inputs = {name: source for name, source in sources.items() if name in left and _find_layer(name) == layer}
        made |= _Conversion(model, inputs).list_outputs({name: empty[name] for name in inputs})
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in reverted.items() if name not in same}
    if {name: (source.shape, source.dtype) for name, source in made.items()} != expected:
        return None
    both = same | made
    return {name: both[name] for name in reverted}


def _find_layer(name: str) -> str:
    """Return a weight's name up to its first number."""
    return name[: found.end()] if (found := re.search(r"\.\d+\.", name)) else ""


class _Conversion:
    """A layer's weights as stored in the file; gathered and converted when the first of them is read.

    Args:
        model: transformers model, which defines the conversion.
        inputs: weights of the layer to convert.
    """

    def __init__(self, model: Any, inputs: dict[str, Source]) -> None:
        self.model, self.inputs = model, inputs
        self.sharded = any(source.sharded for source in inputs.values())
        self.outputs: dict[str, Tensor] = {}  # those that have not been read yet

    def list_outputs(self, empty: dict[str, Tensor]) -> dict[str, Source]:
        """Return the converted weights as sources, given the inputs as tensors without data."""
        return {
            name: Source(tuple(tensor.shape), tensor.dtype, partial(self._read, name), self.sharded)
            for name, tensor in revert_weight_conversion(self.model, empty).items()
        }

    def _read(self, name: str) -> Tensor:
        if name not in self.outputs:
            whole = {key: source.read().detach() for key, source in self.inputs.items()}
            self.outputs = revert_weight_conversion(self.model, whole)
        return self.outputs.pop(name)


def _cut_into_files(weights: Sequence[Weight]) -> list[tuple[str, list[Weight]]]:
    """Split weights, in order, into files of at most `SHARD_BYTES`; within a file, use safetensors' order."""
    groups: list[list[Weight]] = [[]]
    size = 0
    for weight in weights:
        if groups[-1] and size + weight.nbytes > SHARD_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(weight)
        size += weight.nbytes
    # Wide dtypes first, so that each tensor is aligned.
    ordered = [sorted(group, key=lambda weight: (-weight.dtype.itemsize, weight.name)) for group in groups]
    if len(ordered) == 1:
        return [("model.safetensors", ordered[0])]
    count = len(ordered)
    return [(f"model-{n + 1:05d}-of-{count:05d}.safetensors", group) for n, group in enumerate(ordered)]


def _write_file(path: Path, weights: Sequence[Weight], turn: Iterator[Weight]) -> None:
    """Write a safetensors file: the length of the header in 8 bytes, the header in JSON, then the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        header[weight.name] = {
            "dtype": DTYPES[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [end, end + weight.nbytes],
        }
        end += weight.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in weights:
            _write_tensor(file, next(turn).load())


def _write_tensor(file: IO[bytes], tensor: Tensor) -> None:
    if tensor.numel():
        file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _write_index(folder: Path, files: Sequence[tuple[str, Sequence[Weight]]]) -> None:
    """Write the index that maps weights to files."""
    all_weights = [weight for _, weights in files for weight in weights]
    totals = {
        "total_parameters": sum(torch.Size(weight.shape).numel() for weight in all_weights),
        "total_size": sum(weight.nbytes for weight in all_weights),
    }
    places = {weight.name: name for name, weights in files for weight in weights}
    index = json.dumps({"metadata": totals, "weight_map": places}, indent=2, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
