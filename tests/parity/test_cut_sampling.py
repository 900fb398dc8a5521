"""top-k, top-p and min-p: which tokens are left, that only these are drawn, and whose log-probs are kept."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_model

from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.draw import draw_tokens, shape_logits
from qed.sampling.hf import HFSampler

PROBABILITIES = torch.tensor([[0.05, 0.5, 0.2, 0.15, 0.1]])


def left(**cut: float) -> list[int]:
    found = shape_logits(PROBABILITIES.log(), Sampling(1.0, 1, **cut))  # type: ignore[arg-type]
    return found[0].isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.5}, [1]),
        ({"top_p": 0.51}, [1, 2]),
        ({"top_p": 1e-9}, [1]),
        ({"top_p": 0.86}, [1, 2, 3, 4]),
        ({"min_p": 0.35}, [1, 2]),
        ({"top_k": 3, "top_p": 0.8}, [1, 2]),
    ],
)
def test_what_is_left(cut: dict[str, float], expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert left(**cut) == expected
    monkeypatch.setattr("qed.sampling.draw._has_kernel", lambda logits: False)  # as on CUDA
    assert left(**cut) == expected


@pytest.mark.parametrize("compiled", [True, False])
def test_a_sum_that_is_reached_exactly_takes_no_further_token(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr("qed.sampling.draw._has_kernel", lambda logits: False)
    assert shape_logits(torch.zeros(1, 4), Sampling(1.0, 1, top_p=0.5)).isfinite().tolist() == [
        [True, True, False, False]
    ]


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=12), st.floats(0.01, 0.999))
def test_the_fewest_tokens_that_reach_the_sum(logits: list[float], top_p: float) -> None:
    scores = torch.tensor([logits], dtype=torch.float64)
    probabilities = scores.softmax(-1)[0]
    stay = shape_logits(scores, Sampling(1.0, 1, top_p=top_p))[0].isfinite()
    assert float(probabilities[stay].sum()) >= top_p - 1e-9
    least = float(probabilities[stay].min())
    assert int(stay.sum()) == 1 or float(probabilities[stay].sum()) - least < top_p + 1e-9
    assert bool((probabilities[~stay] <= least + 1e-12).all())


def cut_sorted(logits: torch.Tensor, cut: Sampling) -> torch.Tensor:
    """Return which tokens are left, from the sorted probabilities in float64."""
    left = logits.double().clone()
    if cut.top_k:
        left[left < left.topk(min(cut.top_k, left.shape[-1])).values[:, -1:]] = -torch.inf
    if cut.top_p < 1:
        ordered, places = left.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        beyond = probabilities.cumsum(-1) - probabilities >= cut.top_p
        beyond[:, 0] = False
        left[torch.zeros_like(beyond).scatter(-1, places, beyond)] = -torch.inf
    if cut.min_p:
        left[left < left.amax(-1, keepdim=True) + math.log(cut.min_p)] = -torch.inf
    return left > -torch.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(data=st.data())
def test_what_is_left_of_many_tokens(dtype: torch.dtype, data: st.DataObject) -> None:
    """However many tokens are equal or cannot be drawn; a sum may reach its share or not where rounding decides."""
    size, spread = data.draw(st.sampled_from([1, 2, 37, 256, 300, 5000])), data.draw(st.sampled_from([0.3, 3.0, 30.0]))
    top_p, top_k = data.draw(st.sampled_from([1.0, 0.999, 0.9, 0.3, 1e-9])), data.draw(st.sampled_from([0, 1, 20, 400]))
    temperature, min_p = data.draw(st.sampled_from([0.6, 1.0, 2.0])), data.draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    cut = Sampling(temperature, 1, top_p=top_p, top_k=top_k, min_p=min_p)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    scores = spread * torch.randn(20, size + 3)[:, :size]
    if data.draw(st.booleans()):
        scores = scores.round()
    if data.draw(st.booleans()):
        scores[:, 1:][torch.rand(20, size - 1) < 0.5] = -torch.inf
    found = shape_logits(scores.to(dtype), cut)
    logits = scores.to(dtype).to(found.dtype) / temperature
    left, wanted = found > -torch.inf, cut_sorted(logits, cut)
    assert torch.equal(found, logits.where(left, -torch.inf))
    for row in (left != wanted).any(1).nonzero().flatten().tolist():
        assert top_p < 1
        allowed = logits[row] >= (logits[row].topk(min(top_k, size)).values[-1] if top_k else -torch.inf)
        probabilities = logits[row].double().where(allowed, -torch.inf).softmax(0)
        fewer = min(probabilities[one].sum().item() for one in (left[row], wanted[row]))
        assert math.isclose(fewer, top_p, rel_tol=1e-6)


LINE = torch.linspace(0, 9, 40_000)


@pytest.mark.parametrize(
    "row", [LINE, LINE.flip(0), LINE.roll(1), LINE.flip(0).roll(1), -1.1 * (1 + LINE).log(), LINE + 1e4]
)
@pytest.mark.parametrize("top_p", [0.5, 0.95])
def test_rows_in_order_are_cut_as_others(row: torch.Tensor, top_p: float) -> None:
    """In as little time, though a place in such a row tells where its token is among the others."""
    cut = Sampling(1.0, 1, top_p=top_p, top_k=39_000)
    left = shape_logits(row[None], cut) > -torch.inf
    assert int((left != cut_sorted(row[None], cut)).sum()) <= 1


def test_numbers_far_from_zero_are_cut_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no kernel, whose sums are in float64."""
    monkeypatch.setattr("qed.sampling.draw.has_kernels", lambda: False)
    logits = (256 * torch.randn(8, 5000, generator=torch.manual_seed(0))).round() / 64  # exact at each offset
    counts = [int((shape_logits(logits + far, Sampling(1.0, 1, top_p=0.9999)) > -torch.inf).sum()) for far in (0, 8192)]
    assert abs(counts[0] - counts[1]) <= 8


@pytest.mark.parametrize("top_k", [5000, 2**63, 2**64 - 10**8, 2**64 + 1])
def test_more_tokens_than_there_are_cut_nothing(top_k: int) -> None:
    logits = torch.randn(2, 5000)
    assert torch.equal(shape_logits(logits, Sampling(1.0, 1, top_k=top_k)), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "cut", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 2, "top_p": 0.5, "min_p": 0.5}]
)
def test_rows_without_a_distribution_do_not_get_one(cut: dict[str, float], dtype: torch.dtype) -> None:
    """A row with NaN keeps it, so that its log-probs show it; one without tokens stays as it is."""
    nothing = -math.inf
    rows = torch.tensor([[1.0, math.nan, 3, 0], [nothing] * 4, [math.nan] * 4, [0, 0, 0, nothing]], dtype=dtype)
    found = shape_logits(rows, Sampling(1.0, 1, **cut))  # type: ignore[arg-type]
    assert found.isnan().tolist() == rows.isnan().tolist()
    assert found[1].tolist() == rows[1].tolist()
    assert found[3].isfinite().sum() == (2 if "top_p" in cut else 3)


def test_only_what_is_left_is_drawn_with_its_log_probs() -> None:
    model = make_model(dtype=torch.float32)
    sampling = Sampling(temperature=1.5, max_tokens=1, top_p=0.6)
    seeds = [[derive_seed("cut", number) for number in range(400)]]
    (answers,) = HFSampler(model, None, ends=(1,)).generate([(4, 7)], seeds, sampling)
    with torch.no_grad():
        logits = shape_logits(model(torch.tensor([[4, 7]])).logits[:, -1].float(), sampling)
    logps = logits.log_softmax(-1)[0]
    assert int(logps.isfinite().sum()) < logps.numel()
    for answer in answers:
        assert math.isfinite(answer.logps[0])
        assert answer.logps[0] == pytest.approx(float(logps[answer.tokens[0]]), abs=1e-5)
    counted = torch.bincount(torch.tensor([answer.tokens[0] for answer in answers]), minlength=logps.numel()) / 400
    assert float((counted - logps.exp()).abs().max()) < 0.1


@given(seed=st.integers(0, 10**6), size=st.integers(4097, 9000), holes=st.booleans())
def test_a_large_vocabulary_is_searched_by_blocks(seed: int, size: int, holes: bool) -> None:
    """The token is the one at which the whole cumulative distribution passes the number, and never one of
    probability zero."""
    source = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(6, size, generator=source)
    if holes:
        scores[:, torch.rand(size, generator=source) < 0.9] = -torch.inf
    uniform = torch.rand(6, dtype=torch.float64, generator=source)
    uniform[0], uniform[1] = 0.0, 1 - 2**-53
    tokens, logps = draw_tokens(scores, uniform)
    assert bool(logps.isfinite().all())
    cumulative = scores.log_softmax(-1).exp().double().cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    before = cumulative.gather(1, (tokens[:, None] - 1).clamp(min=0)).where(tokens[:, None] > 0, 0.0)
    assert bool((before <= target + 1e-12).all())
    assert bool((cumulative.gather(1, tokens[:, None]) >= target - 1e-12).all())


def test_nothing_is_cut_by_default() -> None:
    sampler = HFSampler(make_model(dtype=torch.float32), None, ends=(1,))
    plain, same = Sampling(1.0, 8), Sampling(1.0, 8, top_p=1.0, top_k=0, min_p=0.0)
    assert plain == same
    assert plain.whole
    greedy = [sampler.generate([(4, 7)], [[3]], Sampling(0.0, 8, top_p=p)) for p in (1.0, 0.1)]
    assert greedy[0] == greedy[1], "greedy log-probs are those of the whole distribution"
