"""The fast sampler writes what the reference writes: token by token, log-prob by log-prob, whoever shares its rows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import VOCABULARY, make_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from qed.config.settings import ModelSettings
from qed.models.lora import add
from qed.randomness import seed_of
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.decoder import is_llama_like
from qed.sampling.native.sampler import NativeSampler, make, supports
from qed.sampling.native.sequences import begun

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def family(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "qwen2":
        return make_model(initializer_range=0.5)
    if name == "gpt2":  # absolute positions: a prompt that is padded must not be shifted
        shape = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 1}
        return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, initializer_range=0.5, **shape)).double().eval()
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE)).double().eval()
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)).double().eval()


class Letters:
    """A tokenizer of single letters, in which `]` is an added token."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(chr(97 + token) for token in tokens)

    def batch_decode(self, rows: torch.Tensor, skip_special_tokens: bool) -> list[str]:
        return [self.decode(row.tolist(), skip_special_tokens) for row in rows]

    def get_added_vocab(self) -> dict[str, int]:
        return {chr(97 + 5): 5}


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("rows", "look"), [(128, 1), (5, 1), (5, 4)])
def test_it_writes_what_the_reference_writes(
    name: str, temperature: float, rows: int, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shares a batch, and whether rows that are done are looked for at every token or now and then."""
    monkeypatch.setattr("qed.sampling.native.sampler.LOOK_EVERY", {"cpu": look})
    model, source = family(name), random.Random(1)
    prompts = [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(1, 9))) for _ in range(9)]
    seeds = [[seed_of("native", which, number) for number in range(source.choice([1, 3, 8]))] for which in range(9)]
    sampling = Sampling(temperature, 20, top_p=0.9 if rows == 5 else 1.0)
    expected = HFSampler(model, None, ends=(1, 2)).generate(prompts, seeds, sampling)
    found = NativeSampler(model, None, ends=(1, 2), rows_per_batch=rows).generate(prompts, seeds, sampling)
    for own, other in zip(expected, found, strict=True):
        for one, two in zip(own, other, strict=True):
            assert (one.tokens, one.stop_reason) == (two.tokens, two.stop_reason)
            assert one.logps == pytest.approx(two.logps, abs=1e-5)


@pytest.mark.parametrize("name", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize("rows", [128, 7])
def test_answers_that_read_one_prompt_where_it_lies(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared or copied, the keys and values are the same, also when answers of other prompts come in between."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", 1)
    model, source = family(name), random.Random(2)
    prompts = [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(2, 30))) for _ in range(7)]
    seeds = [[seed_of("shared", which, number) for number in range(source.choice([1, 4, 8]))] for which in range(7)]
    sampling = Sampling(1.0, 15)
    expected = HFSampler(model, None, ends=(1, 2)).generate(prompts, seeds, sampling)
    found = NativeSampler(model, None, ends=(1, 2), rows_per_batch=rows).generate(prompts, seeds, sampling)
    for own, other in zip(expected, found, strict=True):
        assert [one.tokens for one in own] == [two.tokens for two in other]
        assert [one.logps for one in own] == [pytest.approx(two.logps, abs=1e-5) for two in other]


def test_adapters_and_long_rotations_are_read_too() -> None:
    """Low-rank adapters are modules in place of layers, and Llama 3 scales its rotations."""
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    torch.manual_seed(3)
    config = LlamaConfig(**SHAPE, rope_parameters={**rope, "original_max_position_embeddings": 16})
    model = LlamaForCausalLM(config).eval()
    model = add(model, ModelSettings(lora_rank=2), seed=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    assert is_llama_like(model)
    prompts, seeds = [tuple(range(2, 22)), (3, 4)], [[5, 6, 7], [8, 9]]
    expected = HFSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 30))
    found = NativeSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 30))
    for own, other in zip(expected, found, strict=True):
        assert [one.tokens for one in own] == [two.tokens for two in other]


@given(rows=st.integers(1, 40), longest=st.integers(1, 25), stop=st.sampled_from([("ab", "c"), ("f",), ("gh",), ()]))
def test_answers_end_where_those_of_the_reference_end(rows: int, longest: int, stop: tuple[str, ...]) -> None:
    """At an end id, at a stop string however it is cut into tokens, or at the longest length."""
    model = make_model()
    prompts = [(4,), (5, 6, 7)]
    seeds = [[seed_of("stop", which, number) for number in range(13)] for which in range(2)]
    sampling = Sampling(2.0, longest, stop)
    expected = HFSampler(model, Letters(), ends=(22,)).generate(prompts, seeds, sampling)
    found = NativeSampler(model, Letters(), ends=(22,), rows_per_batch=rows).generate(prompts, seeds, sampling)
    for own, other in zip(expected, found, strict=True):
        assert [(one.tokens, one.stop_reason) for one in own] == [(two.tokens, two.stop_reason) for two in other]


def test_no_more_rows_than_their_keys_and_values_have_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column takes 2 x 4 bytes x 2 layers x 2 heads x 4 numbers; each row has at most 2 + 6 of them."""
    model, sizes = make_model(), []
    whole = NativeSampler(model, None, ends=(1,)).generate([(3, 4)], [list(range(9))], Sampling(1.0, 6))
    monkeypatch.setattr("qed.sampling.native.sampler.machine.whole_memory", lambda: 2 * 3 * 8 * 128 + 100)
    monkeypatch.setattr(
        "qed.sampling.native.sampler.begun", lambda places, *rest: (sizes.append(len(places)), begun(places, *rest))[1]
    )
    bounded = NativeSampler(model, None, ends=(1,)).generate([(3, 4)], [list(range(9))], Sampling(1.0, 6))
    assert max(sizes) == 3
    assert [one.tokens for one in bounded[0]] == [one.tokens for one in whole[0]]


def test_no_prompt_and_no_answer() -> None:
    sampler = NativeSampler(make_model(), None, ends=(1,))
    assert sampler.generate([], [], Sampling(1.0, 4)) == []
    assert sampler.generate([(3,), (4,)], [[], [7]], Sampling(1.0, 1))[0] == []


def test_a_model_with_windows_goes_to_the_reference() -> None:
    model = make_model(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert not supports(model)
    assert isinstance(make(model, None, (1,), 8, torch.float32), HFSampler)
    assert isinstance(make(make_model(), None, (1,), 8, torch.float32), NativeSampler)
