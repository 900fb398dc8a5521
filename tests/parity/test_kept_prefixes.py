"""A sampler that goes on where an answer has stopped writes what one writes that computes everything anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import make_family
from making import VOCABULARY, make_model

from qed.randomness import derive_seed
from qed.sampling.base import Sampling, keep_prefixes
from qed.sampling.hf import HFSampler
from qed.sampling.native.batch import DecodingBatch
from qed.sampling.native.kept import KeptPrefixes
from qed.sampling.native.sampler import NativeSampler
from qed.types import Completion

ENDS = (1, 2, 3, 4)
TURNS = 3
Prompts = list[tuple[int, ...]]


def start(source: random.Random) -> tuple[Prompts, list[list[int]]]:
    """Prompts of several lengths, some asked several times."""
    prompts = [tuple(source.randrange(3, VOCABULARY) for _ in range(source.randint(1, 12))) for _ in range(6)]
    return prompts, [[derive_seed(which, number) for number in range(source.choice([1, 3]))] for which in range(6)]


def continue_ended(
    source: random.Random, prompts: Prompts, rows: Sequence[Sequence[Completion]]
) -> tuple[Prompts, list[int]]:
    """Each ended answer behind its prompt with a reply, and how many of its tokens are not of the prompt."""
    found, given = [], []
    for prompt, answers in zip(prompts, rows, strict=True):
        for answer in answers:
            if answer.stop_reason == "stop" and len(answer.tokens) < 30:
                reply = tuple(source.randrange(3, VOCABULARY) for _ in range(source.choice([1, 2, 9])))
                found.append((*prompt, *answer.tokens, *reply))
                given.append(len(answer.tokens) + len(reply))
    return found, given


def sample_turns(sampler: HFSampler, sampling: Sampling) -> list[list[list[Completion]]]:
    """The answers of some turns, each behind the one before."""
    source = random.Random(4)
    prompts, seeds = start(source)
    given: list[int] = []
    turns = []
    for _ in range(TURNS):
        turns.append(sampler.generate(prompts, seeds, sampling, given))
        prompts, given = continue_ended(source, prompts, turns[-1])
        seeds = [[derive_seed("next", number)] for number in range(len(prompts))]
    return turns


def flatten(turns: Sequence[Sequence[Sequence[Completion]]]) -> list[Completion]:
    return [completion for turn in turns for row in turn for completion in row]


def make(name: str) -> Any:
    if name == "qwen2":
        return make_model(initializer_range=0.5)
    window = 5 if name in ("mistral", "starcoder2") else None
    return make_family(name, window, initializer_range=0.5).double()


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "mistral", "starcoder2"])
@pytest.mark.parametrize("rows", [128, 3])
def test_going_on_in_place_changes_nothing(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether prompts are shared or copied, and whoever shares a batch."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", 1 if rows == 128 else 10**6)
    model, sampling = make(name), Sampling(1.0, 40, top_p=0.9)
    expected = sample_turns(HFSampler(model, None, ENDS), sampling)
    assert sum(map(len, expected[-1])) >= 2
    sampler = NativeSampler(model, None, ENDS, rows_per_batch=rows)
    with keep_prefixes(sampler):
        found = sample_turns(sampler, sampling)
        assert sampler.kept is not None
        assert sampler.kept.tokens
    assert sampler.kept is None
    for one, other in zip(flatten(expected), flatten(found), strict=True):
        assert (one.tokens, one.stop_reason) == (other.tokens, other.stop_reason)
        assert one.logps == pytest.approx(other.logps, abs=1e-5)


def count_prefilled(sampler: NativeSampler, prompts: Prompts, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens are computed before the first ones of the answers."""
    counts: list[int] = []

    def forward(*_: object, **arguments: Any) -> None:
        ids = arguments["input_ids"]
        counts.append(ids.numel())

    hook = sampler.model.register_forward_pre_hook(
        lambda module, inputs, arguments: forward(**arguments), with_kwargs=True
    )
    with monkeypatch.context() as patched:
        patched.setattr(DecodingBatch, "step", lambda batch: pytest.fail("one token was asked for"))
        sampler.generate(prompts, [[0]] * len(prompts), Sampling(1.0, 1))
    hook.remove()
    return sum(counts)


def test_only_what_is_new_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(max_position_embeddings=256)
    sampler = NativeSampler(model, None, ends=())
    prompts = [tuple(range(3, 13)) * count for count in (3, 6)]
    sampler.ends = tuple(range(3, VOCABULARY))  # a random model ends soon
    with keep_prefixes(sampler):
        answers = sampler.generate(prompts, [[1], [2]], Sampling(1.0, 60))
        further = [(*prompt, *row[0].tokens, 5, 6, 7) for prompt, row in zip(prompts, answers, strict=True)]
        kept = count_prefilled(sampler, further, monkeypatch)
    # The reply, and the token that ended the answer, which nothing had to read before.
    assert kept == 2 * 4
    assert count_prefilled(sampler, further, monkeypatch) >= sum(map(len, further))


@pytest.mark.parametrize("room", [0, 40])
def test_what_does_not_fit_is_computed_again(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sampling = make_model(initializer_range=0.5), Sampling(1.0, 40)
    expected = sample_turns(NativeSampler(model, None, ENDS), sampling)
    sampler = NativeSampler(model, None, ENDS)
    add = KeptPrefixes.add

    def add_a_few(kept: KeptPrefixes, *arguments: Any) -> None:
        kept.most = room
        add(kept, *arguments)
        assert kept.tokens <= room

    monkeypatch.setattr(KeptPrefixes, "add", add_a_few)
    with keep_prefixes(sampler):
        found = sample_turns(sampler, sampling)
    assert [each.tokens for each in flatten(found)] == [each.tokens for each in flatten(expected)]


def test_the_longest_prefix_is_found_among_many() -> None:
    source, kept = random.Random(0), KeptPrefixes(most=10**6)
    known = sorted({tuple(source.randrange(2) for _ in range(source.randint(1, 8))) for _ in range(60)})
    for each in source.sample(known, len(known)):
        kept.table.add(each, [(torch.tensor(each), torch.tensor(each))])
    assert kept.table.order == known
    for _ in range(300):
        prompt = tuple(source.randrange(2) for _ in range(source.randint(1, 10)))
        whole = max((len(each) for each in known if prompt[: len(each)] == each), default=0)
        length, layers = kept.find(prompt)
        assert length >= min(whole, len(prompt) - 1)
        assert not length or tuple(layers[0][0].tolist())[:length] == prompt[:length]
    kept.retain([known[0] + (0, 1)])
    assert kept.tokens == sum(map(len, kept.table.order)) > 0
