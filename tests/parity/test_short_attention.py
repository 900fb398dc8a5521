"""Attention of short rows has the values and gradients of torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from qed.models.segments import Segment
from qed.training import short_attention
from qed.training.short_attention import attend_short, is_short
from qed.training.spans import attend_spans, build_spans


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(dtype: torch.dtype, heads: int, kv_heads: int, scaling: float | None) -> None:
    source = torch.Generator().manual_seed(0)
    shapes = (5, heads, 7, 16), (5, kv_heads, 11, 16), (5, kv_heads, 11, 16), (5, heads, 7, 16)
    *inputs, slope = (torch.randn(shape, generator=source).to(dtype) for shape in shapes)
    seen = torch.ones(5, 1, 7, 11, dtype=torch.bool).tril(4)
    seen[2, :, :, :3] = False
    mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
    wide = [states.double().requires_grad_() for states in inputs]
    expected = scaled_dot_product_attention(*wide, attn_mask=mask.double(), scale=scaling, enable_gqa=True)
    given = [states.requires_grad_() for states in inputs]
    found = attend_short(given[0], given[1], given[2], mask, scaling, dtype)
    assert found.dtype == dtype
    pairs = zip(
        [found, *torch.autograd.grad(found, given, slope)],
        [expected, *torch.autograd.grad(expected, wide, slope.double())],
        strict=True,
    )
    tolerance = 1e-5 if dtype == torch.float32 else 0.02  # of the rounding of the results
    for own, other in pairs:
        torch.testing.assert_close(own.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 6])
def test_rows_of_a_packed_row(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind prompts of one and of several lengths, and behind none."""
    segments, start = [], 0
    for length, prompt, prompt_length in [(9, 0, 0), (5, 0, 9), (3, 0, 9), (4, 0, 0), (6, 17, 4), (8, 0, 0)]:
        segments.append(Segment(start, length, prompt, prompt_length))
        start += length
    source = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(start, heads, 16, generator=source, requires_grad=True) for heads in (4, 2, 2))
    spans, order = build_spans(segments, query.device)
    found = []
    for queries in (0, 99):
        monkeypatch.setitem(short_attention.QUERIES, torch.float32, queries)
        output = attend_spans(spans, query, key, value, None, window)[order]
        found.append((output, *torch.autograd.grad(output.sin().sum(), (query, key, value))))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_long_rows_and_other_precisions_are_left_to_torch() -> None:
    cpu = torch.device("cpu")
    assert is_short(9, 40, torch.float32, cpu)
    assert not is_short(9, 4000, torch.float32, cpu)
    assert not is_short(200, 250, torch.bfloat16, cpu)
    assert not is_short(9, 40, torch.float64, cpu)
    assert not is_short(9, 40, torch.float32, torch.device("meta"))
