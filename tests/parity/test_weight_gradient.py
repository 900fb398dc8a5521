"""The gradient of a weight by tiles of AMX is that of float64, and its last bits follow from the number of inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qed.kernels.functions import has_tile_products
from qed.kernels.weight_gradient import add_weight_gradient, compute_weight_gradient, split_slopes
from qed.models import fast_float32
from qed.models.fast_float32 import reverse_weight
from qed.training import output_tiles
from qed.training.output_tiles import add_product, keeps_states

NEEDS_TILES = pytest.mark.skipif(not has_tile_products(), reason="the processor has no AMX, or there is no compiler")
# Inputs, outputs and columns: fewer and more than tiles, blocks, groups and what is added up at once have.
SIZES = [(1, 1, 1), (2, 17, 16), (31, 32, 33), (70, 33, 35), (512, 128, 1024), (513, 129, 1025), (1100, 161, 48)]
NAN = float("nan")


def make(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def turn(matrix: Tensor) -> Tensor:
    """The same matrix, column by column in memory."""
    return matrix.T.contiguous().T


def measure_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@NEEDS_TILES
@pytest.mark.parametrize("sizes", SIZES)
def test_a_gradient_is_that_of_float64(sizes: tuple[int, int, int]) -> None:
    """Its sums are not rounded to bfloat16, of which two to the power of -9 would tell."""
    inputs, outputs, columns = sizes
    slopes, states = make(0, inputs, outputs), make(1, inputs, columns)
    wanted = slopes.double().T @ states.double()
    for found in (
        compute_weight_gradient(slopes, states),
        compute_weight_gradient(turn(slopes), states),
        compute_weight_gradient(slopes, turn(states)),
    ):
        assert found.dtype == torch.float32
        assert measure_error(found, wanted) < 1e-6


@NEEDS_TILES
@pytest.mark.parametrize("sizes", SIZES)
def test_slopes_in_float32_keep_sixteen_binary_digits(sizes: tuple[int, int, int]) -> None:
    """Rounded once they would have eight, and an error of 2e-3."""
    inputs, outputs, columns = sizes
    slopes, states = make(0, inputs, outputs, dtype=torch.float32), make(1, inputs, columns)
    total = make(2, outputs, columns, dtype=torch.float32)
    wanted = slopes.double().T @ states.double()
    for given in ((slopes, states), (turn(slopes), states), (slopes, turn(states))):
        found = total.clone()
        add_weight_gradient(found, *split_slopes(given[0]), given[1])
        assert measure_error(found - total.double(), wanted) < 5e-6


@NEEDS_TILES
def test_nothing_else_is_written_or_added() -> None:
    """A gradient between numbers that are none, and inputs beside others that are none."""
    inputs, outputs, columns = 45, 37, 50
    memory = torch.full((outputs + 2, columns), NAN)
    memory[1:-1] = 0
    around = [torch.full((inputs + 2, width), NAN, dtype=torch.bfloat16) for width in (outputs, outputs, columns)]
    for number, each in enumerate(around):
        each[1:-1] = make(number, inputs, each.shape[1])
    slopes, lost, states = (each[1:-1] for each in around)
    assert torch.isfinite(compute_weight_gradient(slopes, states)).all()
    add_weight_gradient(memory[1:-1], slopes, lost, states)
    assert torch.isfinite(memory[1:-1]).all()
    assert memory[[0, -1]].isnan().all()


@NEEDS_TILES
@pytest.mark.parametrize("wrong", [NAN, float("inf")])
def test_a_slope_that_is_no_number_reaches_its_own_output_only(wrong: float) -> None:
    slopes, states, others = make(0, 40, 36), make(1, 40, 20), torch.arange(36) != 3
    slopes[5, 3] = wrong
    total = torch.zeros(36, 20)
    add_weight_gradient(total, *split_slopes(slopes.float()), states)
    for found in (total, compute_weight_gradient(slopes, states)):
        assert not torch.isfinite(found[3]).any()
        assert torch.isfinite(found[others]).all()


@NEEDS_TILES
def test_bits_depend_neither_on_threads_nor_on_other_outputs_and_columns() -> None:
    slopes, states = make(0, 1300, 300), make(1, 1300, 1100)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(compute_weight_gradient(slopes, states))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)
    part = compute_weight_gradient(slopes[:, 250:281].contiguous(), states[:, 1000:1051].contiguous())
    assert torch.equal(part, found[0][250:281, 1000:1051])


@NEEDS_TILES
def test_no_input_gives_no_gradient() -> None:
    assert torch.equal(compute_weight_gradient(make(0, 0, 5), make(0, 0, 7)), torch.zeros(5, 7))
    total = make(2, 5, 7, dtype=torch.float32)
    add_weight_gradient(kept := total.clone(), make(0, 0, 5), make(0, 0, 5), make(0, 0, 7))
    assert torch.equal(kept, total)


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_gets_its_gradient_in_float32(tiles: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiles and without."""
    if tiles and not has_tile_products():
        pytest.skip("the processor has no AMX, or there is no compiler")
    monkeypatch.setattr(fast_float32, "has_tile_products", lambda: tiles)
    slopes, states = make(0, 90, 40, dtype=dtype), make(1, 90, 24, dtype=dtype)
    found = reverse_weight(slopes, states)
    assert found.dtype == torch.float32
    rounded = dtype == torch.bfloat16 and not tiles
    assert measure_error(found, slopes.double().T @ states.double()) < (4e-3 if rounded else 1e-6)


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_an_output_layer_adds_slopes_in_float32(tiles: bool, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a total in float32; states stay in bfloat16 where tiles multiply them."""
    if tiles and not has_tile_products():
        pytest.skip("the processor has no AMX, or there is no compiler")
    monkeypatch.setattr(output_tiles, "has_tile_products", lambda: tiles)
    slopes, states = make(0, 90, 40, dtype=torch.float32), make(1, 90, 24)
    total = torch.zeros(40, 24)
    assert keeps_states(total, states) == tiles
    assert not keeps_states(total.double(), states)
    assert not keeps_states(turn(total), states)
    given = slopes.T if transposed else slopes.T.contiguous()
    add_product(total, given, states)
    assert measure_error(total, slopes.double().T @ states.double()) < (5e-6 if tiles else 1e-6)
    if tiles:
        add_weight_gradient(wanted := torch.zeros(40, 24), *split_slopes(slopes), states)
        assert torch.equal(total, wanted)
