"""Where a matrix lies in memory does not change the bits of a product, so a resumed run equals an uninterrupted one.

`MKL_CBWR` sees to it (`qed.host.make_products_reproducible`); without it the same products differ on AMD's
processors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from qed import host
from qed.models import alignment
from qed.models.fast_float32 import compute_batches_in
from qed.sampling.native.projection import Projections

pytestmark = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="torch computes without MKL here: MKL_CBWR says nothing"
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
SHIFTS = range(16)  # elements: 64 bytes of float32
# Rows, inner and outer sizes: a decoded token, a few rows, layers of small models, sizes that fit no vector.
SHAPES = [
    (1, 64, 256),
    (1, 1000, 1),
    (2, 64, 64),
    (3, 5, 7),
    (7, 33, 65),
    (32, 64, 512),
    (64, 64, 64),
    (5, 1000, 3),
    (70, 64, 96),
]
BATCH = 3

Product = Callable[[Tensor, Tensor], Tensor]


def compute_fast_layer(rows: Tensor, weight: Tensor) -> Tensor:
    """A layer of an update with its gradients, by oneDNN where that is faster."""
    given, kept = rows[0].detach().requires_grad_(), weight[0].detach().requires_grad_()
    with compute_batches_in("cpu", torch.float32):
        output = linear(given, kept)
    gradients = torch.autograd.grad(output.sum(), (given, kept))
    return torch.cat([each.detach().flatten() for each in (output, *gradients)])


def compute_packed_layer(rows: Tensor, weight: Tensor) -> Tensor:
    """A layer of a decoding step, packed where that is faster."""
    layer = nn.Linear(weight.shape[2], weight.shape[1], bias=False, dtype=weight.dtype)
    layer.weight.data = weight[0]
    layer.device = torch.device("cpu")  # type: ignore[assignment]
    with torch.no_grad():
        return Projections(layer).take(layer)(rows[0])


# Each takes what a layer takes: rows [B, m, k] and weights [B, n, k].
PRODUCTS: dict[str, Product] = {
    "a layer": lambda rows, weight: linear(rows[0], weight[0]),
    "a layer of a batch": lambda rows, weight: linear(rows, weight[0]),
    "the gradient of its input": lambda rows, weight: (rows[0] @ weight[0].T) @ weight[0],
    "the gradient of its weight": lambda rows, weight: rows[0].T @ (rows[0] @ weight[0].T),
    "a batch of products": lambda rows, weight: rows @ weight.transpose(1, 2),
    "a matrix and a vector": lambda rows, weight: rows[0] @ weight[0, 0],
    "two vectors": lambda rows, weight: rows[0, 0] @ weight[0, 0],
    "a layer of an update": compute_fast_layer,
    "a layer of a decoding step": compute_packed_layer,
    "attention": lambda rows, weight: scaled_dot_product_attention(rows[None], weight[None], weight[None]),
}


def shifted(values: Tensor, by: int) -> Tensor:
    """The same values, so many elements behind an address that 64 divides."""
    memory = torch.empty(values.numel() + 2 * len(SHIFTS), dtype=values.dtype)
    start = (-memory.data_ptr() % 64) // memory.element_size() + by
    return memory[start : start + values.numel()].view(values.shape).copy_(values)


def operands(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows, inner, outer = shape
    draw = torch.Generator().manual_seed(rows * inner * outer)
    left = torch.randn(BATCH, rows, inner, generator=draw, dtype=torch.float64)
    right = torch.randn(BATCH, outer, inner, generator=draw, dtype=torch.float64)
    return left.to(dtype), right.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_product_has_the_same_bits_at_every_alignment(kind: str, dtype: torch.dtype) -> None:
    """Of either operand and of both; the sizes are those at which MKL's own choice was seen to change bits."""
    multiply = PRODUCTS[kind]
    shifts = [*product(SHIFTS, (0,)), *product((0,), SHIFTS), *((shift, shift) for shift in SHIFTS)]
    for shape in SHAPES:
        left, right = operands(shape, dtype)
        expected = multiply(shifted(left, 0), shifted(right, 0))
        for first, second in shifts:
            found = multiply(shifted(left, first), shifted(right, second))
            assert torch.equal(found, expected), (shape, first, second)


@settings(max_examples=200)
@given(
    kind=some.sampled_from(sorted(PRODUCTS)),
    dtype=some.sampled_from(DTYPES),
    shape=some.tuples(some.integers(1, 130), some.integers(1, 300), some.integers(1, 130)),
    shifts=some.tuples(some.sampled_from(SHIFTS), some.sampled_from(SHIFTS)),
)
def test_products_of_any_size_ignore_alignment(
    kind: str, dtype: torch.dtype, shape: tuple[int, int, int], shifts: tuple[int, int]
) -> None:
    left, right = operands(shape, dtype)
    expected = PRODUCTS[kind](shifted(left, 0), shifted(right, 0))
    assert torch.equal(PRODUCTS[kind](shifted(left, shifts[0]), shifted(right, shifts[1])), expected)


def test_torch_may_be_loaded_before_qed_as_long_as_it_has_computed_nothing() -> None:
    """A Python program that imports torch first needs no variable in its environment."""
    code = (
        "import os, torch\nfrom qed import host\nfrom qed.models import alignment\nhost.make_products_reproducible()\n"
        "print(alignment.depends_on_alignment(), os.environ['MKL_CBWR'])"
    )
    kept = {name: value for name, value in os.environ.items() if name != host.MKL_MODE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept)
    assert done.stdout.split() == ["False", host.REPRODUCIBLE]


def test_here_alignment_does_not_matter() -> None:
    """What a run looks at when it begins."""
    assert not alignment.depends_on_alignment()
