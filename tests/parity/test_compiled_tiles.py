"""The functions in C++ for an output layer's tiles compute what torch's operations do, as exactly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qed.kernels import output
from qed.kernels.functions import has_kernels
from qed.kernels.weight_gradient import split_slopes
from qed.models import fast_float32
from qed.models.families import IDENTITY, LogitTransform
from qed.training import compiled_tiles, fused_logps, output_tiles
from qed.training.compiled_tiles import can_compile_tiles
from qed.training.fused_logps import compute_linear_scores
from qed.training.support import LabelSupport

pytestmark = pytest.mark.skipif(not has_kernels(), reason="there is no C++ compiler")

PRECISIONS = [torch.float32, torch.bfloat16]
INFINITY, NAN = float("inf"), float("nan")


def make_logits(dtype: torch.dtype, rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)


def reduce(logits: Tensor, labels: Tensor, first: int = 0, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """The sums, in a part of a tensor, and the logits of the labels."""
    sums, chosen = torch.full((4, 3, len(logits)), NAN), torch.zeros(len(logits))
    output.reduce_logits(logits, labels, first, factor, chosen, sums[:, 1])
    assert bool(sums[:, ::2].isnan().all()), "it writes outside its part"
    return sums[:, 1], chosen


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("width", [1, 7, 16, 17, 2048, 5001])
def test_sums_are_those_of_float64(dtype: torch.dtype, width: int) -> None:
    """Of rows that rise and fall, and far below 0; labels are in the tile or not."""
    logits = make_logits(dtype, 6, width)
    logits[1] = logits[1].sort().values
    logits[2] = logits[2].sort(descending=True).values
    logits[3] = -300
    labels = torch.tensor([100, 100 + width // 2, 99 + width, 99, 100 + width, 0])
    z = logits.double() / 0.7
    below = z - z.amax(-1, keepdim=True)
    wanted = torch.stack([z.amax(-1), below.exp().sum(-1), (below.exp() * below).sum(-1), (2 * below).exp().sum(-1)])
    sums, chosen = reduce(logits, labels, 100, 1 / 0.7)
    torch.testing.assert_close(sums.double(), wanted, rtol=3e-6, atol=3e-6)
    logit = [float(z[row, column]) for row, column in enumerate((0, width // 2, width - 1))]
    assert chosen.tolist() == pytest.approx([*logit, 0, 0, 0], rel=1e-6)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("width", [24, 5001])
def test_sums_without_meaning_are_those_of_torch(dtype: torch.dtype, width: int) -> None:
    """Of infinite logits and of NaN; other rows do not change."""
    plain, labels = make_logits(dtype, 6, width), torch.zeros(6, dtype=torch.int64)
    for wrong, places in [(NAN, 7), (NAN, width - 1), (INFINITY, 7), (NAN, slice(None)), (-INFINITY, slice(None))]:
        logits = plain.clone()
        logits[2, places] = wrong
        sums, _ = reduce(logits, labels)
        expected = fused_logps._sum_tile(logits.float(), torch.empty(logits.shape), True)
        assert bool(sums[1:, 2].isnan().all())
        assert bool(expected[1:, 2].isnan().all())
        others = torch.arange(6) != 2
        torch.testing.assert_close(sums[:, others], expected[:, others], rtol=3e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (6, 17), (63, 65), (129, 40), (300, 64), (70, 1100)])
@pytest.mark.parametrize("given", [False, True])
def test_gradients_are_those_of_float64(dtype: torch.dtype, rows: int, width: int, given: bool) -> None:
    """Of the logits, which may be overwritten, and transposed; where a probability is 0 so is its gradient."""
    source = torch.Generator().manual_seed(1)
    logits = make_logits(dtype, rows, width)
    if width > 1:
        logits[0, 0] = -INFINITY
    z = logits.double() / 0.7
    log_probs = z.log_softmax(-1)
    finite = torch.where(log_probs == -INFINITY, 0, log_probs)
    entropy = -(finite.exp() * finite).sum(-1)
    labels = torch.randint(width, (rows,), generator=source)
    of_logps, of_entropy = torch.randn(2, rows, generator=source)
    slope = of_logps.double()[:, None] + given * (finite + entropy[:, None]) * of_entropy[:, None]
    wanted = -log_probs.exp() * slope
    wanted[torch.arange(rows), labels] += of_logps
    slopes = z.logsumexp(-1).float(), entropy.float(), of_logps, of_entropy if given else None
    for place in (torch.full_like(logits, NAN), logits):
        transposed = torch.full((width, rows), NAN)
        output.reverse_logits(logits, labels + 40, 40, 1 / 0.7, slopes, (place, None, transposed))
        torch.testing.assert_close(transposed.T.double(), wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(place, transposed.T.to(dtype)), "the same numbers, rounded once"


@pytest.mark.parametrize("rows_and_width", [(1, 1), (6, 17), (70, 1100)])
def test_what_slopes_lose_by_rounding(rows_and_width: tuple[int, int]) -> None:
    logits = make_logits(torch.bfloat16, *rows_and_width)
    rows, width = rows_and_width
    slopes = logits.float().logsumexp(-1), torch.zeros(rows), torch.ones(rows), None
    transposed, out, lost = torch.empty(width, rows), torch.empty_like(logits), torch.empty_like(logits)
    labels = torch.arange(rows) % width
    output.reverse_logits(logits, labels, 0, 1.0, slopes, (out, None, transposed))
    wanted = split_slopes(transposed.T)
    for place in (out, logits):
        output.reverse_logits(logits, labels, 0, 1.0, slopes, (place, lost, None))
        assert torch.equal(place, wanted[0])
        assert torch.equal(lost, wanted[1])


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_nan_stays(dtype: torch.dtype) -> None:
    logits = make_logits(dtype, 3, 40)
    logits[1, 5] = NAN
    out, zeros = torch.empty_like(logits), torch.zeros(3)
    slopes = torch.tensor([5.0, NAN, 5.0]), zeros, zeros + 1, None
    output.reverse_logits(logits, torch.zeros(3, dtype=torch.int64), 0, 1.0, slopes, (out, None, None))
    assert out.isnan().all(-1).tolist() == [False, True, False]
    assert out.isfinite().all(-1).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    logits, labels = make_logits(dtype, 300, 700), torch.arange(300)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out, transposed = torch.empty_like(logits), torch.empty(700, 300)
            sums, chosen = reduce(logits, labels)
            slopes = sums[0] + sums[1].log(), -sums[2], sums[3], sums[1]
            output.reverse_logits(logits, labels, 0, 1.0, slopes, (out, None, transposed))
            rounded, lost = torch.empty_like(out), torch.empty(logits.shape, dtype=dtype)
            output.reverse_logits(logits, labels, 0, 1.0, slopes, (rounded, lost, None))
            found.append((sums, chosen, out, transposed, rounded, lost))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def compute(hidden: Tensor, weight: Tensor, labels: Tensor, factors: Tensor, into_grad: bool = False) -> list[Tensor]:
    """The scores, and the gradients of states and weight, which a second backward pass repeats."""
    one, other = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    before = float(into_grad)
    other.grad = torch.full_like(other, before) if into_grad else None
    found = compute_linear_scores(one, other, labels, 0.7, squares=True, into_grad=into_grad)
    (found[0] * factors[0] + found[1] * factors[1]).sum().backward(retain_graph=True)
    assert one.grad is not None
    assert other.grad is not None
    first = [one.grad, other.grad - before]
    one.grad, other.grad = None, torch.full_like(other, before) if into_grad else None
    (found[0] * factors[0] + found[1] * factors[1]).sum().backward()
    assert one.grad is not None
    assert other.grad is not None
    assert torch.equal(one.grad, first[0])
    assert torch.equal(other.grad - before, first[1])
    return [*(each.detach() for each in found), *first]


def cut(patch: pytest.MonkeyPatch, fast: bool, kept: bool) -> None:
    """Several blocks of several tiles, and the library of products."""
    if fast and not (torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        pytest.skip("this build of torch has no oneDNN")
    for module in (fast_float32, compiled_tiles, output_tiles):
        patch.setattr(module, "is_faster", lambda: fast)
    patch.setattr(fused_logps, "KEPT_BYTES", 10**9 if kept else 0)
    patch.setitem(output_tiles.TILE_ELEMENTS, "cpu", 1 << 15)
    patch.setattr(output_tiles, "TILE_ROWS", 200)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("entropy", [0.0, 0.3])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("width", [16, 128])
def test_a_layer_is_that_of_torch(
    dtype: torch.dtype, kept: bool, entropy: float, fast: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As near to float64 as torch's operations are, in tiles of several blocks, by each library of products."""
    cut(monkeypatch, fast, kept)
    source = torch.Generator().manual_seed(2)
    hidden = torch.randn(300, width, generator=source).to(dtype)
    weight = torch.randn(1003, width, generator=source).div_(4)
    labels, factors = torch.randint(1003, (300,), generator=source), torch.randn(2, 300, generator=source)
    factors[1] *= entropy
    arguments = labels, factors
    exact = compute(hidden.double(), weight.to(dtype).double(), *arguments)
    with monkeypatch.context() as patch:
        patch.setattr(compiled_tiles, "can_compile_tiles", lambda *_: False)
        plain = compute(hidden, weight, *arguments)
    for found in (compute(hidden, weight, *arguments), compute(hidden, weight, *arguments, into_grad=True)):
        for one, two, right in zip(found, plain, exact, strict=True):
            assert one.dtype == two.dtype
            error, usual, size = (float(each.double().norm()) for each in (one - right, two - right, right))
            assert usual <= (2e-2 if dtype == torch.bfloat16 else 2e-6) * size
            assert error <= 1.2 * usual + 1e-6 * size


@pytest.mark.parametrize(("width", "transposes"), [(16, False), (128, True)])
def test_each_tile_decides_how_its_product_is_added(
    width: int, transposes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a narrow layer's weight is a product of views, that of others one of a transpose."""
    cut(monkeypatch, fast=True, kept=False)
    layer = output_tiles.OutputLayer(torch.randn(300, width), torch.randn(900, width), None, 1.0, IDENTITY)
    labels, ones = torch.zeros(300, dtype=torch.int64), torch.ones(300)
    slopes = output_tiles.LogitSlopes(ones, ones, ones, None)
    for total in (torch.zeros(900, width), None):
        tiles = compiled_tiles.differentiate_tiles(layer, labels, slopes, [], total)
        assert {one.transposed.is_contiguous() for one in tiles} == {transposes and total is not None}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("kept", [False, True])
def test_a_frozen_layer_passes_a_gradient_on(dtype: torch.dtype, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under adapters: the same as that of a layer that is trained."""
    cut(monkeypatch, fast_float32.is_faster(), kept)
    hidden, weight, labels = torch.randn(300, 32).to(dtype), torch.randn(500, 32), torch.arange(300)
    gradients = []
    for trained in (False, True):
        own, layer = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trained)
        compute_linear_scores(own, layer, labels)[0].sum().backward()
        gradients.append(own.grad)
    assert torch.equal(*gradients)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", [False, True])
def test_tied_weights_in_several_micro_batches(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is added where that of the embedding lies; rows may be missing."""
    cut(monkeypatch, fast_float32.is_faster(), kept)
    weight = torch.randn(500, 32).requires_grad_()
    gradients = []
    for into_grad in (False, True):
        weight.grad = None
        for part in torch.arange(300).split(150):
            hidden = torch.nn.functional.embedding(part.flip(0), weight).sin()
            compute_linear_scores(hidden, weight, part, into_grad=into_grad)[0].sum().backward()
        gradients.append(weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
    nothing = compute_linear_scores(torch.zeros(0, 32).requires_grad_(), weight, torch.zeros(0, dtype=torch.int64))[0]
    nothing.sum().backward()
    torch.testing.assert_close(weight.grad, gradients[1])


def test_logits_are_kept_within_the_budget_and_in_no_other_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where autocast would compute float32 states in bfloat16."""
    hidden, weight, labels = torch.randn(300, 32).requires_grad_(), torch.randn(500, 32), torch.arange(300)

    def list_saved() -> list[tuple[int, torch.dtype]]:
        sizes: list[tuple[int, torch.dtype]] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append((t.numel(), t.dtype)) or t, lambda t: t):
            compute_linear_scores(hidden, weight, labels)
        return sizes

    assert (150_000, torch.float32) in list_saved()
    with torch.autocast("cpu", torch.bfloat16):
        assert (150_000, torch.float32) in list_saved()
        total = compute_linear_scores(hidden, weight, labels)[0].sum()
    total.backward()
    found, hidden.grad = hidden.grad, None
    compute_linear_scores(hidden, weight, labels)[0].sum().backward()
    torch.testing.assert_close(found, hidden.grad)
    monkeypatch.setattr(fused_logps, "KEPT_BYTES", 4 * 150_000 - 1)
    assert max(list_saved())[0] < 150_000


def test_a_probability_of_nothing_leaves_a_gradient() -> None:
    """Of log-probs alone; the entropy of logits with -inf among them has none, as torch computes it."""
    hidden, weight = torch.full((4, 16), 1e20).requires_grad_(), torch.randn(40, 16) * 1e-20
    weight[3] = -1e20
    compute_linear_scores(hidden, weight, torch.arange(4, 8))[0].sum().backward()
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


def test_only_what_they_compute_is_left_to_them() -> None:
    """No bias, cap, support or negative scale, and neither float64 nor float16."""
    hidden, weight, bias = torch.randn(4, 8), torch.randn(30, 8), torch.zeros(30)
    support = LabelSupport(*(torch.zeros(1) for _ in range(4)))
    assert can_compile_tiles(hidden, weight, None, LogitTransform(0.3), None)
    assert can_compile_tiles(hidden.bfloat16(), weight, None, IDENTITY, None)
    assert not can_compile_tiles(hidden, weight, bias, IDENTITY, None)
    assert not can_compile_tiles(hidden, weight, None, LogitTransform(1.0, 30.0), None)
    assert not can_compile_tiles(hidden, weight, None, LogitTransform(-0.3), None)
    assert not can_compile_tiles(hidden, weight, None, IDENTITY, support)
    for other in (hidden.double(), hidden.half(), hidden.to("meta")):
        assert not can_compile_tiles(other, weight, None, IDENTITY, None)
