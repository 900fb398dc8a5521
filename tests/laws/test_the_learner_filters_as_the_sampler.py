"""Top-k, top-p, min-p and min_tokens: the learner's log-probs are of the distribution that was sampled from."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from making import VOCABULARY, make_model
from torch import Tensor

from qed import host
from qed.algorithms.grpo import Grpo
from qed.algorithms.parts.regularizer import Regularizer
from qed.config.settings import LearnerSettings
from qed.errors import UsageError
from qed.randomness import derive_seed
from qed.rollout.append import append_tokens
from qed.rollout.replay import decode_rollout, encode_rollout
from qed.rollout.sampler_check import check_sampler
from qed.rollout.stages import sample
from qed.sampling.base import Sampling
from qed.sampling.draw import shape_logits
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.training.batch import collate
from qed.training.learner import Learner
from qed.training.logps import compute_scores
from qed.training.packing import pack_batch
from qed.training.scoring import score_with
from qed.types import Completion, Problem, Prompt, Request, Rollout, Support

ENDS = (1, 2)
PROMPTS = [(4, 7), (5,), tuple(range(3, 20))]
FLOAT32 = make_model(dtype=torch.float32)


class Letters:
    """A tokenizer of single letters, in which `]` is an added token."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(chr(97 + int(token)) for token in tokens)

    def batch_decode(self, rows: Tensor, skip_special_tokens: bool) -> list[str]:
        return [self.decode(row.tolist(), skip_special_tokens) for row in rows]

    def get_added_vocab(self) -> dict[str, int]:
        return {chr(97 + 5): 5}


def make_sampler(name: str, precision: torch.dtype = torch.float32, rows: int = 128, model: Any = FLOAT32) -> HFSampler:
    kind = NativeSampler if name == "native" else HFSampler
    return kind(model, Letters(), ENDS, rows, precision)


def draw(sampler: HFSampler, sampling: Sampling, seed: int = 0, given: Sequence[int] = ()) -> list[Rollout]:
    """Answers to the prompts; `given` tokens at the end of each prompt are the start of its answer."""
    lengths = given or [0] * len(PROMPTS)
    seeds = [[derive_seed("filter", seed, place, number) for number in range(5)] for place in range(len(PROMPTS))]
    answers = sampler.generate(PROMPTS, seeds, sampling, given)
    rollouts = []
    for prompt, length, group in zip(PROMPTS, lengths, answers, strict=True):
        cut = len(prompt) - length
        empty = Rollout(Problem("p", "?", "1"), prompt[:cut], prompt[cut:], (0.0,) * length, "", "length")
        empty.sampled_mask = (False,) * length
        rollouts += [append_tokens(empty, one.tokens, one.logps, support=one.support) for one in group]
    return rollouts


def plain_scores(model: Any, rollout: Rollout, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of the output and entropies, by the formula: a softmax over the tokens that could be sampled."""
    ids = torch.tensor([rollout.prompt + rollout.output])
    logits = model(ids).logits[0, len(rollout.prompt) - 1 : -1].double() / temperature
    begin = 0
    for place, count in enumerate(rollout.support.counts if rollout.support else ()):
        listed = torch.zeros(logits.shape[1], dtype=torch.bool)
        listed[list(rollout.support.ids[begin : begin + abs(count)])] = True
        begin += abs(count)
        hidden = ~listed if count > 0 else listed
        logits = logits.index_put((torch.tensor(place),), logits[place].masked_fill(hidden, -torch.inf))
    log_probs = logits.log_softmax(-1)
    terms = log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0)
    return log_probs.gather(-1, torch.tensor(rollout.output)[:, None]).squeeze(-1), -terms.sum(-1)


FILTERS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.6, 1.0, 1.7]),
    max_tokens=st.just(9),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    top_k=st.sampled_from([0, 1, 4, 15]),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
    min_tokens=st.sampled_from([0, 0, 3, 8]),
    record=st.just(True),
)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["native", "hf"])
@settings(max_examples=4, deadline=None)
@given(sampling=FILTERS, seed=st.integers(0, 99), rows=st.sampled_from([128, 4]), part=st.booleans())
def test_both_sides_have_the_same_log_probs(
    name: str, precision: torch.dtype, packed: bool, sampling: Sampling, seed: int, rows: int, part: bool
) -> None:
    """Whatever is filtered, alone or together, padded or packed, also after given tokens."""
    rollouts = draw(make_sampler(name, precision, rows), sampling, seed, [1, 0, 4] if part else ())
    scored = score_with(FLOAT32, sampling.temperature, packed)(rollouts, precision)
    for rollout, logps in zip(rollouts, scored, strict=True):
        least = 0 if precision == torch.bfloat16 else 2e-5
        for own, other, sampled in zip(rollout.logps, logps, rollout.on_policy, strict=True):
            assert not sampled or own == pytest.approx(other, abs=least or 0.15)
        assert not any(token in ENDS for token in rollout.output[rollout.given : sampling.min_tokens])


@settings(max_examples=5, deadline=None)
@given(sampling=FILTERS, seed=st.integers(0, 99), part=st.booleans())
@example(sampling=Sampling(1.0, 9, min_tokens=3, record=True), seed=0, part=True)
def test_the_samplers_record_the_same_support(sampling: Sampling, seed: int, part: bool) -> None:
    """Given tokens count among those that an answer has before it may end."""
    given = [1, 0, 4] if part else ()
    found = (draw(make_sampler(name, rows=7), sampling, seed, given) for name in ("native", "hf"))
    for one, two in zip(*found, strict=True):
        assert (one.output, one.support) == (two.output, two.support)
        assert one.support is not None
        assert 2 * max(map(abs, one.support.counts)) <= VOCABULARY, "the shorter list is stored"


@settings(max_examples=5, deadline=None)
@given(sampling=FILTERS, seed=st.integers(0, 99), packed=st.booleans())
def test_value_and_gradient_are_those_of_the_plain_formula(sampling: Sampling, seed: int, packed: bool) -> None:
    """Also under a policy that has moved, so that its own filter would leave out tokens that were sampled."""
    rollouts = draw(make_sampler("native"), sampling, seed)
    source = random.Random(seed)
    for rollout in rollouts:
        rollout.loss_mask = tuple(source.random() < 0.8 for _ in rollout.output)
    moved = make_model(seed=1)
    batch = collate(rollouts, dtype=torch.float64)
    logps, entropy, squares = compute_scores(
        moved, batch, sampling.temperature, squares=True, layout=pack_batch(batch) if packed else None
    )
    assert squares is not None
    assert bool(torch.isfinite(logps).all() and torch.isfinite(entropy).all() and torch.isfinite(squares).all())
    plain = [plain_scores(moved, rollout, sampling.temperature) for rollout in rollouts]
    mask = batch.mask.bool()
    kept = [torch.tensor(rollout.trained) for rollout in rollouts]
    wanted = [torch.cat([scores[part][one] for scores, one in zip(plain, kept, strict=True)]) for part in (0, 1)]
    torch.testing.assert_close(logps[mask], wanted[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy[mask], wanted[1], rtol=1e-5, atol=1e-6)
    factors = torch.randn(2, len(wanted[0]), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gradients = [
        torch.autograd.grad((factors[0] * some[0] + factors[1] * some[1]).sum(), list(moved.parameters()))
        for some in ((logps[mask], entropy[mask]), wanted)
    ]
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_a_policy_that_moved_would_filter_its_own_answers_out() -> None:
    """The reason to record the support: under the new policy's own filter some sampled tokens have probability 0."""
    sampling = Sampling(1.0, 9, min_p=0.3, record=True)
    rollouts, moved = draw(make_sampler("native"), sampling), make_model(seed=1)
    lost = 0
    for rollout in rollouts:
        logits = moved(torch.tensor([rollout.prompt + rollout.output])).logits[0, len(rollout.prompt) - 1 : -1]
        own = shape_logits(logits, sampling).gather(-1, torch.tensor(rollout.output)[:, None])
        lost += int((own == -torch.inf).sum())
    assert lost > 0
    scored = score_with(moved, 1.0)(rollouts, torch.float32)
    assert all(math.isfinite(logp) and logp > -1e6 for row in scored for logp in row)


@pytest.mark.parametrize("name", ["native", "hf"])
@pytest.mark.parametrize(
    "changes", [{"top_p": 0.7}, {"top_k": 5}, {"min_p": 0.1}, {"min_tokens": 1}, {"top_k": 9, "min_p": 0.05}]
)
def test_answers_follow_the_filtered_distribution(name: str, changes: dict[str, Any]) -> None:
    """4,000 first tokens against the renormalised probabilities, by chi-square at its 99.9 % quantile."""
    sampling = Sampling(1.3, 2, record=True, **changes)
    seeds = [[derive_seed("frequency", number) for number in range(4000)]]
    (answers,) = make_sampler(name, rows=4000).generate([(4, 7)], seeds, sampling)
    with torch.no_grad():
        logits = FLOAT32(torch.tensor([[4, 7]])).logits[:, -1].double()
    if sampling.min_tokens:
        logits[:, list(ENDS)] = -torch.inf
    probabilities = shape_logits(logits, sampling).softmax(-1)[0]
    counted = torch.bincount(torch.tensor([answer.tokens[0] for answer in answers]), minlength=VOCABULARY)
    possible = probabilities > 0
    assert 1 < int(possible.sum()) < VOCABULARY
    assert not counted[~possible].any()
    expected = 4000 * probabilities[possible]
    freedom = int(possible.sum()) - 1
    # Wilson and Hilferty's approximation of the quantile.
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert float(((counted[possible] - expected) ** 2 / expected).sum()) < quantile


@pytest.mark.parametrize("name", ["native", "hf"])
@pytest.mark.parametrize("least", [0, 4])
def test_an_answer_ends_at_a_stop_string_but_not_too_early(name: str, least: int) -> None:
    """One of two letters, and `f`, which is a single added token; the first of them that ends later counts."""
    sampling = Sampling(2.0, 20, stop=("ab", "gh", "f"), min_tokens=least, record=True)
    seeds = [[derive_seed("stop", number) for number in range(400)]]
    (answers,) = make_sampler(name, rows=64).generate([(4,)], seeds, sampling)
    early = 0
    for answer in answers:
        text = Letters().decode(answer.tokens, False)
        ends = [place + len(stop) for stop in sampling.stop for place in range(20) if text.startswith(stop, place)]
        early += any(end <= least for end in ends)
        assert not any(least < end < len(text) for end in ends)
        assert (answer.stop_reason == "stop") == (answer.tokens[-1] in ENDS or len(text) in ends)
        assert not any(token in (*ENDS, 5) for token in answer.tokens[:least])
        assert len(answer.logps) == len(answer.tokens) == len(answer.support.counts)
    assert bool(early) == bool(least), "what is longer than a token may come early, and is text then"


def test_an_update_starts_at_a_ratio_of_one_and_a_kl_of_zero() -> None:
    """Policy, old policy and reference have one support, so all three agree before the first update, and after it no
    ratio is infinite."""
    model = make_model(dtype=torch.float32)
    sampling = Sampling(1.0, 9, top_p=0.8, min_tokens=2, record=True)
    rollouts = draw(make_sampler("native", model=model), sampling)
    for number, rollout in enumerate(rollouts):
        rollout.advantage = 1.0 if number % 2 else -1.0
    algorithm = Grpo(regularizer=Regularizer(kl=0.1))
    learner = Learner(model, algorithm, LearnerSettings(lr=0.05), length=9)
    learner.score(rollouts, old=False)
    first = learner.update(rollouts, 0)
    assert first["ratio/log_max"] < 1e-4
    assert first["mismatch/logp"] < 1e-5
    assert first["kl/ref"] == pytest.approx(0, abs=1e-6)
    learner.score(rollouts, old=True)
    assert learner.update(rollouts, 1)["ratio/log_max"] < 1e-5
    later = learner.update(rollouts, 2)
    assert 0 < later["ratio/log_max"] < 100


def test_the_comparison_before_training_covers_the_filter() -> None:
    sampling = Sampling(0.8, 40, top_p=0.6, min_tokens=5, record=True)
    score = score_with(FLOAT32, 0.8)
    batches = [[PROMPTS[0], PROMPTS[2]]]

    def check(sampler: Any) -> Any:
        return check_sampler(sampler, score, batches, sampling, torch.float32, ("test",))

    for name in ("native", "hf"):
        found = check(make_sampler(name))
        assert found.passed
        assert (
            found.tokens
            > check_sampler(
                make_sampler(name), score, batches, replace(sampling, record=False), torch.float32, ("test",)
            ).tokens
        )

    class Unfiltered(HFSampler):
        """Reports the log-probs of the full distribution with the support of the filtered one."""

        def generate(self, prompts: Any, seeds: Any, sampling: Sampling, given: Any = ()) -> Any:
            answers = super().generate(prompts, seeds, sampling, given)
            whole = super().generate(prompts, seeds, Sampling(sampling.temperature, sampling.max_tokens), given)
            return [
                [replace(one, logps=two.logps[:1] + one.logps[1:]) for one, two in zip(first, second, strict=True)]
                for first, second in zip(answers, whole, strict=True)
            ]

    assert not check(Unfiltered(FLOAT32, Letters(), ENDS)).passed


@pytest.mark.parametrize("name", ["native", "hf"])
def test_records_that_would_fill_the_memory_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.sampling.recorder.SHARE", 100 * 4 / host.total_memory())
    with pytest.raises(UsageError, match="recording them has taken"):
        draw(make_sampler(name), Sampling(1.7, 9, top_p=0.95, record=True))
    draw(make_sampler(name), Sampling(1.7, 9, top_p=0.95))


class Silent(HFSampler):
    """A sampler that does not know of supports."""

    def generate(self, *given: Any) -> list[list[Completion]]:
        return [[replace(one, support=None) for one in group] for group in super().generate(*given)]


class Template:
    """Prompts of three tokens."""

    stop = ()

    def prompt(self, problem: Problem) -> Prompt:
        return Prompt("?")

    def tokens(self, prompt: Any) -> tuple[int, ...]:
        return (4, 7, 3)

    def read(self, prompt: Any, output: tuple[int, ...], min_tokens: int = 0) -> str:
        return Letters().decode(output, False)


def test_a_sampler_that_does_not_say_what_could_be_sampled_is_refused() -> None:
    silent, requests = Silent(FLOAT32, Letters(), ENDS), [Request(Problem("p", "?", "1"), 2)]
    kept = sample(requests, silent, Template(), Sampling(1.0, 4), (0,))  # type: ignore[arg-type]
    assert kept[0][0].support is None
    with pytest.raises(UsageError, match="does not report which tokens"):
        sample(requests, silent, Template(), Sampling(1.0, 4, top_k=3, record=True), (0,))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="does not report which tokens"):
        check_sampler(
            silent,
            score_with(FLOAT32, 1.0),
            [[(4, 7)]],
            Sampling(1.0, 4, top_k=3, record=True),
            torch.float32,
            ("test",),
        )


def test_a_support_goes_with_its_tokens() -> None:
    """Through a tool's result, a checkpoint and back; a wrong length is refused."""
    (rollout, *_) = draw(make_sampler("native"), Sampling(1.0, 6, top_k=3, record=True))
    assert rollout.support is not None
    longer = append_tokens(rollout, (7, 8), sampled=False, trained=False)
    assert longer.support is not None
    assert list(longer.support.counts) == [3] * len(rollout.output) + [0, 0]
    problems = {"p": rollout.problem}
    assert decode_rollout(encode_rollout(longer), problems).support == longer.support
    row = encode_rollout(replace(longer, support=None))
    assert decode_rollout({name: value for name, value in row.items() if name != "support"}, problems).support is None
    with pytest.raises(ValueError, match="support has 2 entries"):
        replace(rollout, support=Support(array("i", [0, 0]), array("i")), output=(3,))
