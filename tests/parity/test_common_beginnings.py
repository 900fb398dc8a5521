"""Prompts with a common beginning are answered as if each were computed by itself."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from families import forward_logps, make_family
from making import make_model

from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native import prefill, prefiller
from qed.sampling.native.prefill import can_pack, count_common
from qed.sampling.native.sampler import NativeSampler
from qed.types import Completion

BEGINNING = tuple(2 + place * place % 17 for place in range(30))
PROMPTS = [BEGINNING, (*BEGINNING, 5, 6), (*BEGINNING, 5, 7, 8), (*BEGINNING[:25], 9)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shared", [1, 999])
def test_answers_are_those_of_the_reference(shared: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With prompts that are shared by their answers, and with prompts that are copied for each."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    monkeypatch.setattr(prefill, "COMMON_FROM", 1)
    model = make_model(initializer_range=0.5, hidden_size=32, dtype=torch.float32 if compiled else torch.float64)
    if compiled and not can_pack(model, 99):
        pytest.skip("There are no functions in C++ here.")
    seeds = [[derive_seed(which, place) for place in range(3)] for which in range(len(PROMPTS))]
    expected = HFSampler(model, None, ends=(1,)).generate(PROMPTS, seeds, Sampling(1.0, 20))
    found = NativeSampler(model, None, ends=(1,), rows_per_batch=7).generate(PROMPTS, seeds, Sampling(1.0, 20))
    tolerance = 1e-4 if compiled else 1e-5
    for own, other in zip(found, expected, strict=True):
        assert [one.tokens for one in own] == [two.tokens for two in other]
        assert [one.logps for one in own] == [pytest.approx(two.logps, abs=tolerance) for two in other]


@pytest.fixture
def beginnings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that each batch shares."""
    monkeypatch.setattr(prefill, "COMMON_FROM", 1)
    found: list[int] = []
    real = prefiller.Prefiller.__init__

    def watch(self: prefiller.Prefiller, model: Any, shares_prompts: bool, beginning: int, kept: Any) -> None:
        found.append(beginning)
        real(self, model, shares_prompts, beginning, kept)

    monkeypatch.setattr(prefiller.Prefiller, "__init__", watch)
    return found


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_beginning_that_all_sequences_read_changes_nothing(
    family: str, compiled: bool, precision: torch.dtype, beginnings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come and go, and none has a copy of what all prompts begin with; steps are in C++, or those of torch."""
    model = make_family(family)
    if not can_pack(model, 99):
        pytest.skip("There are no functions in C++ here.")
    if not compiled:
        monkeypatch.setattr("qed.sampling.native.decoders.can_compile", lambda _: False)
    prompts = [(*BEGINNING, *range(2, 2 + number % 5), 7 + number) for number in range(9)]
    seeds, sampling = [[number] * (1 + number % 2) for number in range(9)], Sampling(1.0, 20)

    def generate() -> list[list[Completion]]:
        sampler = NativeSampler(model, None, ends=(1, 2, 3, 4, 5), rows_per_batch=4, precision=precision)
        return sampler.generate(prompts, seeds, sampling)

    found = generate()
    assert beginnings.pop() == len(BEGINNING)
    monkeypatch.setattr("qed.sampling.native.batch.can_share_beginning", lambda *_: False)
    expected = generate()
    assert beginnings.pop() == 0
    assert len({len(one.tokens) for own in expected for one in own}) > 2
    for prompt, own, other in zip(prompts, found, expected, strict=True):
        for one, two in zip(own, other, strict=True):
            gaps = (torch.tensor(one.logps) - forward_logps(model, prompt, one.tokens)).abs()
            assert gaps.max() <= 1e-4 if precision == torch.float32 else gaps.mean() <= 0.05
            assert one.tokens == two.tokens or precision == torch.bfloat16  # in which a draw may fall on another side


@pytest.mark.parametrize("why", ["window", "kept"])
def test_who_shares_no_beginning(why: str, beginnings: list[int]) -> None:
    """A sliding window may leave out parts of it, and what is kept for another turn is known already."""
    model = make_family("mistral", 9 if why == "window" else None)
    sampler = NativeSampler(model, None, ends=(1,), rows_per_batch=4)
    with sampler.keep_prefixes() if why == "kept" else nullcontext():
        sampler.generate(PROMPTS, [[1]] * len(PROMPTS), Sampling(1.0, 5))
    assert beginnings == [0]


def test_only_a_beginning_that_saves_much_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_common([]) == 0
    assert count_common(PROMPTS) == 0
    assert count_common(PROMPTS * 20) == 25
    monkeypatch.setattr(prefill, "COMMON_FROM", 1)
    assert count_common(PROMPTS[:3]) == len(BEGINNING) - 1
    assert count_common(PROMPTS[:1]) == 0
    assert count_common([(3, 4), (4, 4)]) == 0
