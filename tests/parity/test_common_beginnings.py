"""Prompts with a common beginning are answered as if each were computed by itself."""

from __future__ import annotations

import pytest
from making import make_model

from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native import prefill
from qed.sampling.native.prefill import can_pack, count_common
from qed.sampling.native.sampler import NativeSampler

BEGINNING = tuple(2 + place * place % 17 for place in range(30))
PROMPTS = [BEGINNING, (*BEGINNING, 5, 6), (*BEGINNING, 5, 7, 8), (*BEGINNING[:25], 9)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shared", [1, 999])
def test_answers_are_those_of_the_reference(shared: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With prompts that are shared by their answers, and with prompts that are copied for each."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    monkeypatch.setattr(prefill, "COMMON_FROM", 1)
    model = make_model(initializer_range=0.5)
    if compiled:
        model.float()
        if not can_pack(model, 99):
            pytest.skip("There are no functions in C++ here.")
    seeds = [[derive_seed(which, place) for place in range(3)] for which in range(len(PROMPTS))]
    expected = HFSampler(model, None, ends=(1,)).generate(PROMPTS, seeds, Sampling(1.0, 20))
    found = NativeSampler(model, None, ends=(1,), rows_per_batch=7).generate(PROMPTS, seeds, Sampling(1.0, 20))
    for own, other in zip(found, expected, strict=True):
        assert [one.tokens for one in own] == [two.tokens for two in other]
        assert [one.logps for one in own] == [pytest.approx(two.logps, abs=1e-5) for two in other]


def test_only_a_beginning_that_saves_much_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_common([]) == 0
    assert count_common(PROMPTS) == 0
    assert count_common(PROMPTS * 20) == 25
    monkeypatch.setattr(prefill, "COMMON_FROM", 1)
    assert count_common(PROMPTS[:3]) == len(BEGINNING) - 1
    assert count_common(PROMPTS[:1]) == 0
    assert count_common([(3, 4), (4, 4)]) == 0
