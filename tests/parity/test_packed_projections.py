"""Packed layers of a decoding step compute what torch's linear layers compute."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from making import make_model
from torch import nn

from qed.kernels.functions import has_tile_products
from qed.models.precision import compute_in
from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native import projection
from qed.sampling.native.projection import Projections, can_pack
from qed.sampling.native.sampler import NativeSampler

PRECISIONS = [torch.float32, *([torch.bfloat16] if can_pack(torch.bfloat16) else [])]
HAS_PACKING = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
pytestmark = pytest.mark.skipif(not HAS_PACKING, reason="This torch has no oneDNN products of packed weights.")


@pytest.fixture(params=[False, True], ids=["oneDNN", "tiles"])
def _packed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack on processors where it is not faster, too; in bfloat16 by each library."""
    if request.param and not has_tile_products():
        pytest.skip("the processor has no AMX, or there is no compiler")
    monkeypatch.setattr(projection, "has_tile_products", lambda: request.param)
    monkeypatch.setattr(projection, "can_pack", lambda dtype: dtype in (torch.bfloat16, torch.float32))
    monkeypatch.setattr(projection, "has_product", lambda _: False)
    monkeypatch.setattr(projection, "lacks_bfloat16", lambda: False)


@pytest.mark.usefixtures("_packed")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("few", [0, 32], ids=["always packed", "few rows plain"])
@pytest.mark.parametrize("rows", [1, 7, 129])
def test_packed_layers_compute_linear_layers(
    rows: int, few: int, precision: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "FEW_ROWS", few)
    torch.manual_seed(0)
    model, states = make_model(dtype=torch.float32), torch.randn(rows, 24)
    first, second = nn.Linear(24, 40, bias=bias), nn.Linear(24, 9, bias=bias)
    with compute_in("cpu", precision), torch.no_grad():
        projections = Projections(model)
        assert projections.packs
        expected = first(states), second(states)
        assert (projections.take(first)(states).dtype, expected[0].dtype) == (precision, precision)
        found = projections.take(first)(states), *projections.join(first, second)(states)
        if precision == torch.bfloat16:
            assert projections.take(first.half())(states).dtype == precision
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if precision == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    for own, other in zip(found, (expected[0], *expected), strict=True):
        torch.testing.assert_close(own, other, **tolerance)


@pytest.mark.usefixtures("_packed")
def test_hooks_and_large_copies_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layer, states = make_model(dtype=torch.float32), nn.Linear(24, 5), torch.ones(3, 24)
    layer.register_forward_hook(lambda *_: torch.zeros(3, 5))
    assert not Projections(model).take(layer)(states).any()
    numbers = sum(one.numel() for one in model.parameters())
    assert Projections(model).copied_bytes == 4 * numbers
    monkeypatch.setattr("qed.host.total_memory", lambda: 30 * numbers)
    assert not Projections(model).packs
    with compute_in("cpu", torch.bfloat16):
        assert Projections(model).copied_bytes == 2 * numbers


@pytest.mark.parametrize("shared", [1, 999])
def test_fused_attention_computes_the_same(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, with prompts that are shared and with prompts that are copied."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    model, prompts = make_model(dtype=torch.float32), [tuple(2 + place % 9 for place in range(38)), (5, 6, 7)]
    sampler = NativeSampler(model, None, ends=(1,), precision=torch.bfloat16)
    found = []
    for size in (1 << 40, 1):
        monkeypatch.setattr("qed.sampling.native.decoder.FUSED_FROM", size)
        found.append(sampler.generate(prompts, [[1, 2, 3], [4, 5]], Sampling(0.0, 24)))
    for own, other in zip(*map(chain.from_iterable, found), strict=True):
        assert own.tokens == other.tokens
        assert own.logps == pytest.approx(other.logps, abs=0.05)  # as far as bfloat16 is exact


@pytest.mark.usefixtures("_packed")
def test_answers_are_those_of_the_reference() -> None:
    model, prompts = make_model(dtype=torch.float32, initializer_range=0.5), [(3, 4, 5), (6,), (7, 8)]
    seeds = [[derive_seed(which, place) for place in range(4)] for which in range(3)]
    expected = HFSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 30))
    found = NativeSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 30))
    for own, other in zip(found, expected, strict=True):
        assert [one.tokens for one in own] == [two.tokens for two in other]
        assert [one.logps for one in own] == [pytest.approx(two.logps, abs=1e-4) for two in other]
