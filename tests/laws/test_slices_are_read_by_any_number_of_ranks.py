"""Tensors that some ranks write in slices are read whole, or in the slices of any other number of ranks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from qed.errors import DataError
from qed.training.optim import load_optimizer_tensors, read_optimizer_tensors
from qed.training.slices import Layout, Part, Slice, copy_to_host, get_local, read_slices, split_range, write_slices

WORLDS = st.integers(1, 4)
SHAPES = st.dictionaries(
    st.sampled_from(["a.weight", "b.weight", "c.bias", "d"]),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    min_size=1,
)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


def cut(tensor: Tensor, rank: int, world: int) -> Slice:
    """What a rank holds of a sharded tensor."""
    ranges = split_range(len(tensor), world)
    layout = Layout(tuple(tensor.shape), tuple((n, *rows) for n, rows in enumerate(ranges)), ranges[rank])
    return Slice(tensor.narrow(0, *ranges[rank]), layout)


def write(folder: Path, tensors: dict[str, Tensor], world: int, sharded: bool = True) -> None:
    """Let every rank write its slices; a scalar, which all of them have, stands beside them."""
    for rank in reversed(range(world)):
        parts: dict[str, Part] = {name: cut(each, rank, world) if sharded else each for name, each in tensors.items()}
        write_slices(folder, "state", {**parts, "step": torch.tensor(3.0)}, rank, world)


@given(length=st.integers(0, 50), world=st.integers(1, 9))
def test_rows_are_split_as_torch_does(length: int, world: int) -> None:
    ranges = split_range(length, world)
    chunks = torch.arange(length).chunk(world) if length else ()
    expected = [chunk.tolist() for chunk in chunks] + [[]] * (world - len(chunks))
    assert [list(range(first, first + rows)) for first, rows in ranges] == expected


@settings(max_examples=60, deadline=None)
@given(shapes=SHAPES, dtype=DTYPES, world=WORLDS, readers=WORLDS)
def test_what_ranks_write_others_read(
    shapes: dict[str, list[int]], dtype: torch.dtype, world: int, readers: int
) -> None:
    tensors = {name: torch.randint(0, 100, shape).to(dtype) for name, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder, tensors, world)
        whole = read_slices(folder, "state")
        assert whole.keys() == {*tensors, "step"}
        assert whole["step"] == 3
        for name, tensor in tensors.items():
            assert whole[name].dtype == dtype
            assert torch.equal(whole[name], tensor)
        for rank in range(readers):
            like = {name: cut(tensor, rank, readers) for name, tensor in tensors.items()}
            own = read_slices(folder, "state", like)
            assert own["step"] == 3
            for name, part in like.items():
                assert own[name].shape == part.rows.shape
                assert torch.equal(own[name], part.rows)


@settings(max_examples=20, deadline=None)
@given(shapes=SHAPES, readers=WORLDS)
def test_a_file_of_one_process_is_read_by_many(shapes: dict[str, list[int]], readers: int) -> None:
    """The file has the bytes of `save_file`; a moment is sliced as its parameter; other shapes are read whole."""
    tensors = {f"{name}/exp_avg": torch.rand(shape) for name, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder, tensors, world=2, sharded=False)
        save_file({**tensors, "step": torch.tensor(3.0)}, folder / "expected.safetensors")
        assert (folder / "state.safetensors").read_bytes() == (folder / "expected.safetensors").read_bytes()
        assert len(list(folder.iterdir())) == 2
        for rank in range(readers):
            parameters = {name: cut(torch.zeros(shape), rank, readers) for name, shape in shapes.items()}
            own = read_slices(folder, "state", parameters)
            for name, part in parameters.items():
                assert torch.equal(own[f"{name}/exp_avg"], tensors[f"{name}/exp_avg"].narrow(0, *part.layout.own))
            other = {name: cut(torch.zeros(9, *shape), rank, readers) for name, shape in shapes.items()}
            assert all(
                torch.equal(each, tensors[key])
                for key, each in read_slices(folder, "state", other).items()
                if "/" in key
            )


def test_the_index_names_the_rows_of_each_file(tmp_path: Path) -> None:
    write(tmp_path, {"weight": torch.arange(10.0).view(5, 2)}, world=3)
    index = json.loads((tmp_path / "state.safetensors.index.json").read_text())
    assert index["world_size"] == 3
    files = [f"state-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert index["tensors"]["weight"] == {
        "shape": [5, 2],
        "dtype": "float32",
        "slices": {files[0]: [0, 2], files[1]: [2, 2], files[2]: [4, 1]},
    }
    assert index["tensors"]["step"] == {"shape": [], "dtype": "float32", "slices": {files[0]: [0, 1]}}
    (tmp_path / files[1]).unlink()
    with pytest.raises(DataError, match=r"00002-of-00003.*missing"):
        read_slices(tmp_path, "state")
    index["tensors"]["weight"]["slices"].pop(files[1])
    (tmp_path / "state.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="lacks rows of weight"):
        read_slices(tmp_path, "state")


def test_a_copy_on_the_host_stays_as_it_was() -> None:
    tensor = torch.ones(4, 2)
    part = cut(tensor, 1, 2)
    copied = copy_to_host({"whole": tensor, "part": part})
    tensor.zero_()
    assert torch.equal(copied["whole"], torch.ones(4, 2))  # type: ignore[arg-type]
    assert isinstance(copied["part"], Slice)
    assert torch.equal(copied["part"].rows, torch.ones(2, 2))
    assert copied["part"].layout == part.layout


def test_an_optimizer_reads_its_own_state_back() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    first, second = (torch.optim.AdamW(each.parameters()) for each in (model, other))
    model(torch.ones(3)).sum().backward()
    first.step()
    expected = read_optimizer_tensors(first, model)
    load_optimizer_tensors(second, other, expected)
    loaded = read_optimizer_tensors(second, other)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(get_local(loaded[name]), get_local(part)) for name, part in expected.items())
