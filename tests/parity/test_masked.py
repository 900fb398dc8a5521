"""Masked statistics against the recorded references, by hand, and with NaN where nobody looks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from qed.training.masked import masked_mean, masked_normalize, masked_sum, masked_variance, whiten


def test_by_hand() -> None:
    """1 and 3 are kept of the first row, 7 of the second, nothing of the third."""
    values = torch.tensor([[1.0, 100, 3], [7, 100, 100], [100, 100, 100]])
    mask = torch.tensor([[1, 0, 1], [1, 0, 0], [0, 0, 0]])
    assert masked_sum(values, mask, 1).tolist() == [4, 7, 0]
    assert masked_mean(values, mask, 1).tolist() == [2, 7, 0]
    assert masked_mean(values, mask, 1, empty=math.nan).isnan().tolist() == [False, False, True]
    assert float(masked_mean(values, mask)) == pytest.approx(11 / 3)
    assert masked_normalize(values, mask, 1, 2.0).tolist() == [2, 3.5, 0]
    assert masked_variance(values, mask, 1).tolist() == [2, 0, 0]
    assert masked_variance(values, mask, -1, empty=math.nan).isnan().tolist() == [False, True, True]
    # The kept are 1, 3, 7: mean 11/3, variance (64 + 4 + 100) / 9 / 2 = 28/3.
    assert float(masked_variance(values, mask)) == pytest.approx(28 / 3)
    expected = (torch.tensor([1.0, 3, 7]) - 11 / 3) / math.sqrt(28 / 3)
    torch.testing.assert_close(whiten(values, mask)[mask.bool()], expected)
    assert not whiten(values, mask)[mask == 0].any()


@pytest.mark.parametrize("kept", [0, 1])
def test_whitening_one_place_or_none_gives_zero(kept: int) -> None:
    mask = torch.zeros(2, 3)
    mask[0, :kept] = 1
    assert not whiten(torch.randn(2, 3), mask).any()


def test_a_mask_may_broadcast() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    assert float(masked_mean(values, torch.tensor([[1], [0]]))) == 1
    assert masked_mean(values, torch.tensor([1, 0, 1]), 1).tolist() == [1, 4]


FUNCTIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    masked_sum,
    masked_mean,
    masked_normalize,
    masked_variance,
    whiten,
    lambda values, mask: masked_mean(values, mask, 1, math.nan).nan_to_num(),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("hidden", [math.nan, math.inf, 1e30])
def test_nothing_leaks_from_masked_places(function: Callable[[Tensor, Tensor], Tensor], hidden: float) -> None:
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    clean = torch.tensor([[0.5, 0, 2], [0, 0, 0]], dtype=torch.float64, requires_grad=True)
    dirty = clean.detach().where(mask.bool(), hidden).requires_grad_()
    one, other = function(clean, mask), function(dirty, mask)
    torch.testing.assert_close(one, other)
    (one**2).sum().backward()
    (other**2).sum().backward()
    torch.testing.assert_close(clean.grad, dirty.grad)


@pytest.mark.parametrize("dim", ["0", "1", "last", "None"])
@pytest.mark.parametrize("name", ["mean", "normalize"])
def test_recorded_by_the_course(shared: Path, name: str, dim: str) -> None:
    vectors = np.load(shared / "vectors" / "cs336_a5.npz")
    case = f"masked_{name}_dim{dim}"
    values, mask = (torch.tensor(vectors[f"{case}::in::{column}"]) for column in ("tensor", "mask"))
    arguments = json.loads(str(vectors[f"{case}::args"]))
    if name == "mean":
        found = masked_mean(values, mask, arguments["dim"], empty=math.nan)
    else:
        found = masked_normalize(values, mask, arguments["dim"], arguments["normalize_constant"])
    out = f"{case}::out::out"
    expected = vectors[out] if out in vectors else json.loads(str(vectors[f"{case}::scalars"]))["out"]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("column", "shift"), [("out", True), ("out_keep_mean", False)])
def test_recorded_whitening(shared: Path, column: str, shift: bool) -> None:
    vectors = np.load(shared / "vectors" / "verl_entropy_logprob.npz")
    values, mask = (torch.tensor(vectors[f"masked_whiten::in::{name}"]) for name in ("values", "mask"))
    kept = mask.bool()
    expected = torch.tensor(vectors[f"masked_whiten::out::{column}"])[kept]
    torch.testing.assert_close(whiten(values, mask, shift)[kept], expected, rtol=1e-7, atol=1e-7)
