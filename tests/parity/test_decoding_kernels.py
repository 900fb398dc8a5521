"""The functions in C++ compute what torch computes, and for a row the same bits whatever else they compute with it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qed.kernels import decoding
from qed.kernels.build import load_library
from qed.kernels.functions import KINDS, has_kernels, has_tile_products
from qed.kernels.structures import Attention, Rows

pytestmark = pytest.mark.skipif(not has_kernels(), reason=f"no functions in C++: {load_library().reason}")

TOLERANCE = {torch.float32: {"rtol": 2e-6, "atol": 2e-6}, torch.bfloat16: {"rtol": 8e-3, "atol": 1e-3}}


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (24, 9), (24, 16), (7, 40), (300, 523)])
def test_products(inputs: int, outputs: int, bias: bool) -> None:
    """Of all numbers of rows up to two tiles and some, contiguous or not, in float32 as exactly as its sums allow."""
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias)
    function = decoding.Linear(layer.weight, layer.bias)
    for rows in (*range(14), 600):
        states = torch.randn(rows, inputs + 3)[:, :inputs]
        found = function(states)
        torch.testing.assert_close(found.double(), layer.double()(states.double()), rtol=1e-5, atol=1e-5)
        assert all(torch.equal(function(states[row : row + 1])[0], found[row]) for row in range(min(rows, 14)))
        layer.float()


@pytest.mark.skipif(not has_tile_products(), reason="the processor has no AMX")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("outputs", [(1,), (9, 24), (16, 7, 40), (523,), (32, 64)])
@pytest.mark.parametrize("inputs", [1, 24, 64, 300])
def test_products_of_tiles(inputs: int, outputs: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of layers that are joined, each sum rounded once; a row beside one that is no number has its own bits."""
    torch.manual_seed(0)
    weights, bias = [torch.randn(count, inputs).to(dtype) for count in outputs], torch.randn(sum(outputs))
    exact = torch.cat(weights).to(torch.bfloat16).double()
    for added in (bias, None):
        function = decoding.TileLinear(weights, added)
        assert function(torch.randn(0, inputs)).shape == (0, sum(outputs))
        for rows in (*range(3), 15, 16, 17, 33, 70, 600):
            states = torch.randn(rows + 1, inputs + 3).to(torch.bfloat16)[:, :inputs]
            states[-1] = math.nan
            found = function(states)
            assert found[-1].isnan().all()
            wanted = states[:-1].double() @ exact.T + (0 if added is None else bias.double())
            torch.testing.assert_close(found[:-1].double(), wanted, rtol=4.1e-3, atol=1e-4)
            assert all(torch.equal(function(states[row : row + 1])[0], found[row]) for row in range(min(rows, 20)))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 21), (5, 16), (300, 128)])
def test_norms(rows: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    states, change = torch.randn(rows, width), torch.randn(rows, width).to(dtype)
    norm = nn.RMSNorm(width, eps=1e-3)
    nn.init.normal_(norm.weight)
    function = decoding.Norm(norm.weight, 1e-3, dtype)
    for added in (None, change):
        summed = states.clone()
        found = function(summed, added)
        expected = states if added is None else states + added
        assert torch.equal(summed, expected)
        torch.testing.assert_close(found, norm(expected).to(dtype), **TOLERANCE[dtype])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 21), (300, 128)])
def test_gates(rows: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    both = (20 * torch.randn(rows, 2 * width)).to(dtype)
    gates, ups = both.split(width, 1)
    expected = (nn.functional.silu(gates.double()) * ups.double()).to(dtype)
    torch.testing.assert_close(decoding.gate(gates, ups), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", KINDS)
def test_gates_of_any_size(dtype: torch.dtype) -> None:
    """Where an exponential is beyond float32 a gate is closed, or wholly open."""
    gates = torch.cat([torch.linspace(-140, 140, 2801), torch.tensor([-1e30, -1e4, 1e4, 1e30])]).to(dtype)[None]
    ups = torch.full_like(gates, 3)
    expected = (nn.functional.silu(gates.double()) * 3).to(dtype)
    torch.testing.assert_close(decoding.gate(gates, ups), expected, **TOLERANCE[dtype])
    assert decoding.gate(torch.full_like(ups, torch.nan), ups).isnan().all()
    assert decoding.gate(torch.full_like(ups, torch.inf), ups).isinf().all()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [1, 5, 23, 256, 300, 5000])
def test_draws_invert_the_cumulative_distribution(size: int) -> None:
    """Of logits with tokens that cannot be, beside an exact search; a number may be as near to a token's edge as sums
    of float32 exponentials are exact."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(200, size + 5)[:, :size]
    logits[:, 1:][torch.rand(200, size - 1) < 0.3] = -torch.inf
    uniform = torch.rand(200, dtype=torch.float64)
    tokens, logps = decoding.draw(logits, uniform)
    exact = logits.double().log_softmax(-1)
    torch.testing.assert_close(logps.double(), exact.gather(1, tokens[:, None])[:, 0], rtol=1e-6, atol=1e-6)
    edges = exact.exp().cumsum(-1)
    upper = edges.gather(1, tokens[:, None])[:, 0]
    lower = upper - exact.gather(1, tokens[:, None])[:, 0].exp()
    assert (lower - 1e-6 <= uniform).all()
    assert (uniform <= upper + 1e-6).all()
    assert (logits.gather(1, tokens[:, None]) > -torch.inf).all()
    greedy, logps = decoding.draw(logits, None)
    assert torch.equal(greedy, logits.argmax(-1))
    torch.testing.assert_close(logps.double(), exact.amax(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [1, 23, 300, 5000])
@pytest.mark.parametrize("greedy", [False, True])
def test_draws_from_bfloat16_are_those_of_the_same_numbers(size: int, greedy: bool) -> None:
    """Bit by bit, in rows that do not follow each other, of which some have numbers that cannot be drawn."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(200, size + 5)).bfloat16()[:, :size]
    logits[:, 1:][torch.rand(200, size - 1) < 0.3] = -torch.inf
    logits[7, size // 2], logits[8] = torch.nan, -torch.inf
    uniform = None if greedy else torch.rand(200, dtype=torch.float64)
    tokens, logps = decoding.draw(logits, uniform)
    expected = decoding.draw(logits.float(), uniform)
    assert torch.equal(tokens, expected[0])
    assert logps.dtype == torch.float32
    torch.testing.assert_close(logps, expected[1], rtol=0, atol=0, equal_nan=True)


def test_draws_at_the_edges() -> None:
    """The smallest and the largest number never draw a token that cannot be, and NaN is told by the log-prob."""
    nothing = -math.inf
    logits = torch.tensor([[nothing, 0.0, nothing, 1.0, nothing]] * 2 + [[math.nan, 0, 0, 0, 0]] + [[nothing] * 5])
    tokens, logps = decoding.draw(logits, torch.tensor([0.0, 1 - 2**-53, 0.5, 0.5], dtype=torch.float64))
    assert tokens[:2].tolist() == [1, 3]
    assert logps[:2].isfinite().all()
    assert logps[2:].isnan().all()
    assert (tokens < 5).all()
    assert decoding.draw(torch.zeros(1, 5), None)[0].tolist() == [0]
    far = torch.full((1, 600), nothing)
    far[0, 300] = -1e30
    assert decoding.draw(far, torch.tensor([1 - 2**-53], dtype=torch.float64))[0].tolist() == [300]


class Case:
    """Rows of several lengths with their KV cache, random; and what attention of the newest tokens should be."""

    def __init__(self, grouped: int, width: int, dtype: torch.dtype, shared: bool, normed: bool, window: int) -> None:
        torch.manual_seed(0)
        self.heads, self.grouped, self.width, self.dtype, self.window = 2, grouped, width, dtype, window
        self.prompts, self.outputs = torch.tensor([3, 5, 300, 1, 4]), torch.tensor([2, 300, 1, 7, 2])
        self.finished, self.owner = torch.tensor([False, False, False, False, True]), torch.tensor([2, 1, 0, 3, 3])
        if shared:
            self.prompts = torch.tensor([4, 5, 300, 6, 6])
        self.column, self.prefix_columns = 620, 310 if shared else 0
        # The shared tokens of each prefix, for some rows of their prompt only.
        self.prefix_lengths = torch.tensor([300, 2, 4, 5])
        self.cache = torch.randn(2, 5, self.heads, 640, width).to(dtype)
        self.prefix = torch.randn(2, 4, self.heads, 330, width).to(dtype) if shared else None
        self.states = torch.randn(5, (grouped + 2) * self.heads * width).to(dtype)
        angles = torch.rand(700, width // 2).repeat(1, 2)
        self.cos, self.sin = angles.cos(), torch.cat([-angles.sin()[:, : width // 2], angles.sin()[:, width // 2 :]], 1)
        self.norms = torch.randn(2, width) if normed else None

    def attend(self, rows: list[int]) -> Tensor:
        """Call the function with some of the rows."""
        prompts, outputs, finished, owner = (
            one[rows].contiguous() for one in (self.prompts, self.outputs, self.finished, self.owner)
        )
        self.written = [kind[rows].contiguous() for kind in self.cache]
        step = Rows(
            count=len(rows), column=self.column, prefix_columns=self.prefix_columns, prompts=prompts.data_ptr(),
            outputs=outputs.data_ptr(), owner=owner.data_ptr(), finished=finished.data_ptr(),
            prefix_lengths=self.prefix_lengths.data_ptr(),
        )  # fmt: skip
        call = Attention(
            heads=self.heads, grouped=self.grouped, width=self.width, window=self.window,
            threads=torch.get_num_threads(), scaling=0.3, cos=self.cos.data_ptr(), sin=self.sin.data_ptr(),
            keys=self.written[0].data_ptr(), values=self.written[1].data_ptr(),
            cache_row=self.written[0].stride(0), cache_head=self.written[0].stride(1),
        )  # fmt: skip
        if self.prefix is not None:
            call.prefix_keys, call.prefix_values = self.prefix[0].data_ptr(), self.prefix[1].data_ptr()
            call.prefix_row, call.prefix_head = self.prefix[0].stride()[:2]
        if self.norms is not None:
            call.query_norm, call.key_norm = self.norms[0].data_ptr(), self.norms[1].data_ptr()
            call.query_epsilon = call.key_epsilon = 1e-3
        sizes = [self.grouped * self.heads * self.width, self.heads * self.width, self.heads * self.width]
        return decoding.attend(step, call, *self.states[rows].split(sizes, 1))

    def expected(self, row: int) -> Tensor:
        """Compute one row by torch, in float64 but for the roundings of the cache's precision."""
        position = int(self.prompts[row] + self.outputs[row]) - 1
        heads = self.states[row].view(-1, self.width)
        query, key, value = heads.split([self.grouped * self.heads, self.heads, self.heads])
        query, key = (self.rotate(part, number, position) for number, part in enumerate((query, key)))
        keys, values = self.cache.double().clone()[:, row]
        keys[:, self.column], values[:, self.column] = key.to(self.dtype), value
        shared = int(self.prefix_lengths[self.owner[row]]) if self.prefix is not None else 0
        own = position + 1 - shared
        first = self.column + 1 - min(own, self.window or own)
        keys, values = keys[:, first : self.column + 1], values[:, first : self.column + 1]
        if self.prefix is not None:
            before = self.prefix[:, self.owner[row], :, self.prefix_columns - shared : self.prefix_columns].double()
            keys, values = torch.cat([before[0], keys], 1), torch.cat([before[1], values], 1)
        query = query.to(self.dtype).double().view(self.heads, self.grouped, self.width)
        return ((query @ keys.mT * 0.3).softmax(-1) @ values).flatten()

    def rotate(self, states: Tensor, number: int, position: int) -> Tensor:
        states = states.double()
        if self.norms is not None:
            scale = (states.square().mean(-1, keepdim=True) + 1e-3).rsqrt()
            states = (states * scale).to(self.dtype).double() * self.norms[number]
        half = self.width // 2
        return states * self.cos[position] + states.roll(half, -1) * self.sin[position]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("grouped", "width"), list(product([1, 2, 3, 7], [8, 24, 64])))
@pytest.mark.parametrize(("shared", "normed", "window"), [(False, False, 0), (True, False, 0), (False, True, 4)])
def test_attention(grouped: int, width: int, dtype: torch.dtype, shared: bool, normed: bool, window: int) -> None:
    """With prompts of a row's own, shared as a whole or in part, windows, norms, and a row that has finished."""
    case = Case(grouped, width, dtype, shared, normed, window)
    found = case.attend([0, 1, 2, 3, 4])
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    for row in range(4):
        torch.testing.assert_close(found[row].double(), case.expected(row), **tolerance)
    assert not found[4].any()
    new = case.written[1][:4, :, case.column]
    assert torch.equal(new.flatten(), case.states[:4, -2 * width :].flatten())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shared", [False, True])
def test_attention_of_a_row_is_the_same_alone(shared: bool) -> None:
    case = Case(3, 16, torch.float32, shared, False, 0)
    together = case.attend([0, 1, 2, 3, 4])
    for rows in ([0], [1], [2], [3], [3, 1, 0]):
        assert torch.equal(case.attend(rows), together[rows])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("grouped", [1, 2, 3, 4, 7])
def test_a_shared_beginning_changes_no_bit(grouped: int, dtype: torch.dtype) -> None:
    shared, copied = (Case(grouped, 16, dtype, True, False, 0) for _ in range(2))
    assert shared.prefix is not None
    for row, owner in enumerate(shared.owner.tolist()):
        begin = copied.column - int(copied.prompts[row] + copied.outputs[row] - 1)
        length = int(shared.prefix_lengths[owner])
        columns = slice(shared.prefix_columns - length, shared.prefix_columns)
        copied.cache[:, row, :, begin : begin + length] = shared.prefix[:, owner, :, columns]
    copied.prefix, copied.prefix_columns = None, 0
    rows = [0, 1, 2, 3, 4]
    assert torch.equal(shared.attend(rows), copied.attend(rows))


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 20), size=st.integers(1, 40))
def test_rows_do_not_depend_on_each_other(seed: int, rows: int, size: int) -> None:
    """Bit by bit, in norms, gates and draws, however many rows are computed together."""
    torch.manual_seed(seed)
    states, uniform = torch.randn(rows, size), torch.rand(rows, dtype=torch.float64)
    norm = decoding.Norm(torch.ones(size), 1e-6, torch.float32)
    functions: list[Callable[[slice], Tensor]] = [
        lambda part: norm(states[part].clone(), None),
        lambda part: decoding.gate(states[part], states[part]),
        lambda part: decoding.draw(states[part], uniform[part])[0],
        lambda part: decoding.draw(states[part], uniform[part])[1],
    ]
    row = random.Random(seed).randrange(rows)
    for function in functions:
        assert torch.equal(function(slice(row, row + 1))[0], function(slice(None))[row])
