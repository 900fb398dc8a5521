"""The kernels of an output layer's tiles compute what torch's operations do.

Without a device they run in Triton's interpreter, in a process of its own: functions that begin with `interpreted`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from qed.models.families import LogitTransform
from qed.training import device_tiles, fused_logps, output_tiles
from qed.training.device_tiles import find_fault, has_tile_kernels
from qed.training.fused_logps import compute_linear_scores
from qed.training.output_tiles import OutputLayer
from qed.training.support import LabelSupport

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
HALF = [torch.bfloat16, torch.float16]
INFINITY, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("kernel", ["_reduce", "_differentiate"])
def test_kernels_compile(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an H100, wherever Triton is, with loads of 16 bytes where rows are aligned."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 -- Triton is not everywhere
    from triton.compiler import ASTSource  # noqa: PLC0415

    from qed.kernels.cuda import output_tiles as kernels  # noqa: PLC0415

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    function: Any = getattr(kernels, kernel)
    types = {"logits": "*bf16", "labels": "*i64", "factor": "fp32", "width": "i32", "stride": "i32", "first": "i32"}
    types |= {"step": "i64", "BLOCK": "constexpr", "SQUARES": "constexpr", "ENTROPY": "constexpr"}
    signature = {name: types.get(name, "*fp32") for name in function.arg_names}
    constants = {"BLOCK": kernels.BLOCK, "SQUARES": True, "ENTROPY": True}
    places = [function.arg_names.index(name) for name in ("logits", "width", "stride")]
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={name: value for name, value in constants.items() if name in signature},
        attrs={(place,): [["tt.divisibility", 16]] for place in places},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "ld.global.v4.b32" in made.asm["ptx"]


def make_logits(dtype: torch.dtype, rows: int = 6, width: int = 5001) -> Tensor:
    """Logits in rows that are further apart than they are wide, of several blocks."""
    source = torch.Generator().manual_seed(0)
    return torch.randn(rows, width + 15, generator=source).mul(4).to(dtype)[:, :width]


def reduce_by_kernel(logits: Tensor, labels: Tensor, first: int, divisor: float, squares: bool) -> tuple[Tensor, ...]:
    from qed.kernels.cuda.output_tiles import reduce_tile  # noqa: PLC0415

    sums = torch.full((4, 3, len(logits)), NAN, device=logits.device)
    chosen = torch.zeros(len(logits), device=logits.device)
    reduce_tile(logits, labels, first, divisor, sums[:, 1], chosen, squares)
    return sums[:, 1], chosen


def check_sums(device: str, dtype: torch.dtype) -> None:
    """Of one block and of several, whose maxima rise and fall, where labels are in the tile and where not."""
    for width in (1, 2048, 5001):
        logits = make_logits(dtype, width=width).to(device)
        logits[1] = logits[1].sort().values
        logits[2] = logits[2].sort(descending=True).values
        logits[3] = -300
        labels = torch.tensor([100, 100 + width // 2, 99 + width, 99, 100 + width, 0], device=device)
        z = logits.double() / 0.7
        shifted = z - z.amax(-1, keepdim=True)
        wanted = [z.amax(-1), shifted.exp().sum(-1), (shifted.exp() * shifted).sum(-1), (2 * shifted).exp().sum(-1)]
        logit = [float(z[row, column]) for row, column in enumerate((0, width // 2, width - 1))]
        for squares in (False, True):
            sums, chosen = reduce_by_kernel(logits, labels, 100, 0.7, squares)
            expected = torch.stack(wanted) if squares else torch.stack([*wanted[:3], torch.ones_like(wanted[0])])
            torch.testing.assert_close(sums.double(), expected, rtol=3e-5, atol=1e-5)
            assert chosen.tolist() == pytest.approx([*logit, 0, 0, 0], rel=1e-6)


def check_sums_without_meaning(device: str) -> None:
    """What torch's operations make of infinite logits and of NaN."""
    plain = make_logits(torch.bfloat16).to(device)
    for wrong, places in [(NAN, slice(7, 8)), (INFINITY, slice(7, 8)), (NAN, slice(None)), (-INFINITY, slice(None))]:
        logits = plain.clone()
        logits[2, places] = wrong
        sums, _ = reduce_by_kernel(logits, torch.zeros(6, dtype=torch.int64, device=device), 0, 1.0, True)
        expected = fused_logps._sum_tile(logits.float(), torch.empty(logits.shape, device=device), True)
        assert bool(expected[1:, 2].isnan().all())
        assert bool(sums[1:, 2].isnan().all())
        others = torch.arange(len(logits), device=device) != 2
        torch.testing.assert_close(sums[:, others], expected[:, others], rtol=3e-5, atol=1e-5)
    # Some that are -inf have no probability, but their product with its log is NaN.
    plain[2, :3000] = -INFINITY
    sums, _ = reduce_by_kernel(plain, torch.zeros(6, dtype=torch.int64, device=device), 0, 1.0, True)
    expected = fused_logps._sum_tile(plain.float(), torch.empty(plain.shape, device=device), True)
    torch.testing.assert_close(sums, expected, rtol=3e-5, atol=1e-5, equal_nan=True)


def check_gradients(device: str, dtype: torch.dtype) -> None:
    """In place, but for rounding to half precision; where a probability is 0 so is its gradient, and NaN stays."""
    from qed.kernels.cuda.output_tiles import differentiate_tile  # noqa: PLC0415

    source = torch.Generator().manual_seed(1)
    whole = make_logits(dtype).to(device)
    whole[1, 3], whole[2, 5] = -INFINITY, NAN
    z = whole.double() / 0.7
    log_probs = z.log_softmax(-1)
    finite = torch.where(log_probs == -INFINITY, 0, log_probs)
    labels = torch.tensor([40, 2000, 5000, 5001, 100, 39], device=device)
    hot = torch.zeros_like(z)
    hot[[0, 1, 2, 4], [0, 1960, 4960, 60]] = 1
    hot[3, 4961] = 1
    entropy = -(finite.exp() * finite).sum(-1)
    of_logps, of_entropy = torch.randn(2, 6, generator=source).to(device)
    for given in (None, of_entropy):
        slope = of_logps.double()[:, None] + (0 if given is None else (finite + entropy[:, None]) * given[:, None])
        wanted = hot * of_logps[:, None] - log_probs.exp() * slope
        memory = torch.full((6, whole.shape[1] + 15), 3.0, device=device, dtype=dtype)
        logits = memory[:, : whole.shape[1]].copy_(whole)
        normaliser = z.logsumexp(-1).float()
        differentiate_tile(logits, labels, 40, 0.7, normaliser, entropy.float(), of_logps, given)
        assert bool((memory[:, whole.shape[1] :] == 3).all()), "it writes outside the tile"
        assert float(logits[1, 3]) == 0
        assert bool(logits[2].isnan().all())
        # The interpreter rounds to bfloat16 by cutting digits off.
        digits = 11 if dtype == torch.float16 else 7 if device == "cpu" else 8
        torch.testing.assert_close(logits.double(), wanted, equal_nan=True, rtol=2.0**-digits + 1e-4, atol=1e-6)


def check_layer(device: str, dtype: torch.dtype, vocabulary: int, patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Log-probs and gradients are as near to those of float64 as the plain way's, and as near to these."""
    source = torch.Generator().manual_seed(2)
    count, width = changes.get("count", 300), 64
    hidden = torch.randn(count, width, generator=source).to(device, dtype)
    weight = torch.randn(vocabulary, width, generator=source).div_(4).to(device, changes.get("kept", torch.float32))
    labels = torch.randint(vocabulary, (count,), generator=source).to(device)
    factors = torch.randn(2, count, generator=source).to(device)
    factors[1] *= changes["entropy"]

    def compute(*leaves: Tensor, into_grad: bool = False) -> list[Tensor]:
        one, other = (leaf.clone().requires_grad_() for leaf in leaves)
        before = float(into_grad and other.dtype == torch.float32)  # which half precision would lose
        other.grad = torch.full_like(other, before) if before else None
        found = compute_linear_scores(one, other, labels, 0.7, squares=True, into_grad=into_grad)
        (found[0] * factors[0] + found[1] * factors[1]).sum().backward()
        assert one.grad is not None
        assert other.grad is not None
        return [*(each.detach() for each in found), one.grad, other.grad - before]

    exact = compute(hidden.double(), weight.to(dtype).double())
    with patch.context() as patched:
        patched.setattr(device_tiles, "has_tile_kernels", lambda *_: False)
        plain = compute(hidden, weight)
    with patch.context() as patched:
        if device == "cpu":
            patched.setattr(device_tiles, "has_tile_kernels", lambda *_: True)
        else:
            assert has_tile_kernels(hidden, None, LogitTransform(), None)
        ways = [compute(hidden, weight), compute(hidden, weight, into_grad=True)]
    for found in ways:
        for one, two, right in zip(found, plain, exact, strict=True):
            assert one.dtype == two.dtype
            size = float(right.norm())
            assert float((one.double() - right).norm()) <= 1.2 * float((two.double() - right).norm()) + 1e-3 * size
            assert float((one.double() - two.double()).norm()) <= 1e-2 * size
    # On a device the products of both ways may be rounded to other neighbours in half precision.
    for one, two in zip(ways[0][:3], plain, strict=False):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=3e-5 if device == "cpu" else 0.05)


@pytest.mark.parametrize("dtype", HALF)
def interpreted_sums_are_those_of_float64(dtype: torch.dtype) -> None:
    check_sums("cpu", dtype)


def interpreted_sums_without_meaning_are_those_of_torch() -> None:
    check_sums_without_meaning("cpu")


@pytest.mark.parametrize("dtype", HALF)
def interpreted_gradients_are_those_of_float64(dtype: torch.dtype) -> None:
    check_gradients("cpu", dtype)


@pytest.mark.parametrize(("entropy", "kept"), [(0, torch.float16), (0.1, torch.float32)])
def interpreted_layers_are_those_of_torch(entropy: float, kept: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several tiles of other widths than any multiple; in float16, as the interpreter cuts bfloat16's digits off."""
    monkeypatch.setitem(output_tiles.TILE_ELEMENTS, "cpu", 1 << 13)
    monkeypatch.setattr(output_tiles, "TILE_ROWS", 8)
    check_layer("cpu", torch.float16, 3000, monkeypatch, entropy=entropy, count=12, kept=kept)


def interpreted_kernels_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right ones have no fault; of wrong ones and of those that fail the reason is said."""
    place = torch.device("cpu"), torch.float16
    find_fault.cache_clear()
    assert find_fault(*place) == ""
    monkeypatch.setattr(device_tiles, "TRIAL", (20, 32, 300))  # the interpreter takes seconds for the whole one
    original = device_tiles.reduce_tiles

    def scale_sums(*factors: float) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            chosen, sums, kept = original(*args, **options)
            return chosen, sums * torch.tensor(factors)[:, None, None], kept

        return call

    def fail(message: str) -> Any:
        return lambda *_, **__: (_ for _ in ()).throw(RuntimeError(message))

    broken = [
        ("they are wrong by", scale_sums(1, 1.2, 1, 1)),
        ("they are wrong by", scale_sums(1, 1, 1, 2)),
        ("they are wrong by nan", scale_sums(1, math.nan, 1, 1)),
        ("RuntimeError: no compiler", fail("no compiler\nat all")),
    ]
    for reason, reduce_tiles in broken:
        find_fault.cache_clear()
        monkeypatch.setattr(device_tiles, "reduce_tiles", reduce_tiles)
        with pytest.warns(UserWarning, match=reason):
            assert reason in find_fault(*place)
    find_fault.cache_clear()
    monkeypatch.setattr(device_tiles, "reduce_tiles", fail("Triton Error [CUDA]: out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        find_fault(*place)
    monkeypatch.setattr(device_tiles, "reduce_tiles", original)
    assert find_fault(*place) == ""


def interpreted_layers_of_no_rows_have_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tiles, "has_tile_kernels", lambda *_: True)
    hidden = torch.zeros(0, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(30, 8, requires_grad=True)
    logps, entropy, squares = compute_linear_scores(hidden, weight, torch.zeros(0, dtype=torch.int64), squares=True)
    assert logps.shape == entropy.shape == squares.shape == (0,)
    (logps.sum() + entropy.sum()).backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_what_the_kernels_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision on a CUDA device alone, without a bias, a cap or a support; the tensors have no memory."""
    monkeypatch.setattr("qed.kernels.functions.has_cuda_kernels", lambda _: True)
    monkeypatch.setattr(device_tiles, "find_fault", lambda *_: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    scaled, capped = LogitTransform(2.0), LogitTransform(1.0, 30.0)
    support = LabelSupport(*(torch.zeros(1) for _ in range(4)))
    with FakeTensorMode():
        half, single = (torch.empty(2, 3, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
        assert has_tile_kernels(half, None, scaled, None)
        others = [(half.cpu(), None, scaled, None), (single, None, scaled, None), (half, half[0], scaled, None)]
        others += [(half, None, capped, None), (half, None, scaled, support)]
        assert not any(has_tile_kernels(*other) for other in others)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not has_tile_kernels(half, None, scaled, None)


@pytest.mark.parametrize(("elements", "width"), [(1, 128), (50 * 300, 256), (1 << 25, 700), (50 * 128, 128)])
def test_tiles_off_a_cpu_are_aligned(elements: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(output_tiles.TILE_ELEMENTS, "other", elements)
    hidden, weight = (torch.empty(rows, 4, device="meta") for rows in (50, 700))
    layer = OutputLayer(hidden, weight, None, 1.0, LogitTransform())
    assert (layer.height, layer.width, layer.largest) == (50, width, 50 * width)
    assert all(columns.start % width == 0 for columns in layer.columns)
    assert layer.columns[-1].stop == 700


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("dtype", HALF)
def test_kernels_on_a_device(dtype: torch.dtype) -> None:
    assert find_fault(torch.device("cuda", torch.cuda.current_device()), dtype) == ""
    check_sums("cuda", dtype)
    check_sums_without_meaning("cuda")
    check_gradients("cuda", dtype)


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("elements", [1 << 25, 1 << 16])
@pytest.mark.parametrize("vocabulary", [1000, 5000, 5003])
@pytest.mark.parametrize("entropy", [0, 0.1])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_layers_on_a_device(
    elements: int, vocabulary: int, entropy: float, kept: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(output_tiles.TILE_ELEMENTS, "other", elements)
    check_layer("cuda", torch.bfloat16, vocabulary, monkeypatch, entropy=entropy, kept=kept)
