"""The fast sampler writes what the reference writes: token by token, log-prob by log-prob, whoever shares its rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any
from weakref import WeakSet

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import VOCABULARY, make_model, make_rollout
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from qed.algorithms.sft import Sft
from qed.config.settings import LearnerSettings, ModelSettings
from qed.loops.memory import reserve_training
from qed.models.lora import add_adapters
from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.device_memory import count_training_bytes, count_weight_bytes
from qed.sampling.hf import HFSampler
from qed.sampling.native.decoder import is_llama_like
from qed.sampling.native.kv_cache import KVCacheLayer, _stack_rows
from qed.sampling.native.sampler import NativeSampler, explain_handover, make
from qed.sampling.native.sequences import Sequences, pack_sequences
from qed.training.learner import Learner
from qed.types import Completion

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
    monkeypatch.setattr("qed.sampling.native.batch.CHECK_EVERY", {"cpu": look})
    model, source = family(name), random.Random(1)
    prompts = [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(1, 9))) for _ in range(9)]
    seeds = [[derive_seed("native", which, number) for number in range(source.choice([1, 3, 8]))] for which in range(9)]
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
    seeds = [[derive_seed("shared", which, number) for number in range(source.choice([1, 4, 8]))] for which in range(7)]
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
    model = add_adapters(model, ModelSettings(lora_rank=2), seed=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    assert is_llama_like(model)
    prompts, seeds = [tuple(range(2, 22)), (3, 4)], [[5, 6, 7], [8, 9]]
    expected = HFSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 30))
    found = NativeSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 30))
    for own, other in zip(expected, found, strict=True):
        assert [one.tokens for one in own] == [two.tokens for two in other]


ENDING = [(4,), (5, 6, 7)]  # prompts whose answers end in many ways
ENDING_SEEDS = [[derive_seed("stop", which, number) for number in range(13)] for which in range(2)]


@cache
def end_as_reference(longest: int, stop: tuple[str, ...]) -> list[list[Completion]]:
    sampler = HFSampler(make_model(), Letters(), ends=(22,))
    return sampler.generate(ENDING, ENDING_SEEDS, Sampling(2.0, longest, stop))


@given(
    rows=st.integers(1, 40),
    longest=st.sampled_from([1, 2, 3, 8, 25]),
    stop=st.sampled_from([("ab", "c"), ("f",), ("gh",), ()]),
)
def test_answers_end_where_those_of_the_reference_end(rows: int, longest: int, stop: tuple[str, ...]) -> None:
    """At an end id, at a stop string however it is cut into tokens, or at the longest length."""
    sampler = NativeSampler(make_model(), Letters(), ends=(22,), rows_per_batch=rows)
    found = sampler.generate(ENDING, ENDING_SEEDS, Sampling(2.0, longest, stop))
    for own, other in zip(end_as_reference(longest, stop), found, strict=True):
        assert [(one.tokens, one.stop_reason) for one in own] == [(two.tokens, two.stop_reason) for two in other]


def most_rows(monkeypatch: pytest.MonkeyPatch, sampler: HFSampler, memory: int) -> tuple[list[Completion], int]:
    """Nine answers on a device of so much memory, and how many of them were written side by side."""
    sizes: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("qed.host.total_memory", lambda: memory)
        patch.setattr(
            "qed.sampling.native.batch.pack_sequences",
            lambda *rest: (rows := pack_sequences(*rest), sizes.append(len(rows)))[0],
        )
        return sampler.generate([(3, 4)], [list(range(9))], Sampling(1.0, 6))[0], max(sizes)


def test_no_more_rows_than_their_keys_and_values_have_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column takes 2 x 8 bytes x 2 layers x 2 heads x 4 numbers; each row has at most 2 + 6 of them, and rows have
    half of what weights and training leave."""
    model = make_model()
    row, weights = 8 * 2 * 8 * 2 * 2 * 4, count_weight_bytes(model)
    assert weights == sum(one.nbytes for one in {*model.parameters(), *model.buffers()})
    sampler = NativeSampler(model, None, ends=(1,))
    whole, rows = most_rows(monkeypatch, sampler, 1 << 40)
    assert rows == 9
    bounded, rows = most_rows(monkeypatch, sampler, weights + 2 * 3 * row + 100)
    assert rows == 3
    assert [one.tokens for one in bounded] == [one.tokens for one in whole]
    learner = Learner(model, Sft(), LearnerSettings())
    reserve_training(sampler, learner)
    assert most_rows(monkeypatch, sampler, weights + 2 * 3 * row + 100)[1] == 1
    trained = sum(one.nbytes for one in model.parameters())
    # Gradients and two moments, whether they are there yet or not: a run that goes on has the rows that it began with.
    assert most_rows(monkeypatch, sampler, weights + 3 * trained + 2 * 4 * row + 100)[1] == 4
    learner.update([make_rollout(random.Random(0), 1.0)], 0)
    reserve_training(sampler, learner)
    assert most_rows(monkeypatch, sampler, weights + 3 * trained + 2 * 4 * row + 100)[1] == 4


def test_rows_count_the_bytes_that_their_numbers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast keys and values have two bytes each, and trained weights are there a second time in two."""
    model = make_model(dtype=torch.float32)
    numbers = sum(one.numel() for one in model.parameters())
    row, weights = 8 * 2 * 2 * 2 * 2 * 4, count_weight_bytes(model) + 2 * numbers
    for count in (2, 5):
        sampler = NativeSampler(model, None, ends=(1,), precision=torch.bfloat16)
        assert most_rows(monkeypatch, sampler, weights + 2 * count * row + 100)[1] == count


def test_the_bytes_of_training() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3, 5)), torch.nn.Parameter(torch.zeros(7))]
    adamw, offloaded, eight_bit = (
        count_training_bytes(parameters, LearnerSettings(optimizer=name))
        for name in ("adamw", "adamw_offload", "adamw8bit")
    )
    assert adamw == offloaded == 22 * 4 * 3  # on the CPU what is moved off the device is still in its memory
    assert eight_bit == 22 * (4 + 2)


def test_prompts_are_computed_some_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No forward pass over prompts has more than the bound, padding included, but one of a single prompt; the answers
    are the same."""
    model, source = family("llama"), random.Random(5)
    prompts = [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(1, 30))) for _ in range(12)]
    seeds = [[derive_seed("chunks", which, number) for number in range(1 + which % 4)] for which in range(12)]
    sizes: list[tuple[int, int]] = []
    forward = type(model.model).forward

    def count(body: Any, **given: Any) -> Any:
        sizes.append(given["input_ids"].shape)
        return forward(body, **given)

    monkeypatch.setattr(type(model.model), "forward", count)  # a hook would change how it is decoded
    found = []
    for bound, shared in [(1 << 20, 999), (40, 999), (40, 1), (1, 999)]:
        monkeypatch.setattr("qed.sampling.native.prefill.PREFILL_TOKENS", bound)
        monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
        sizes.clear()
        found.append(
            NativeSampler(model, None, ends=(1, 2), rows_per_batch=20).generate(prompts, seeds, Sampling(1.0, 15))
        )
        assert all(rows == 1 or rows * width <= bound for rows, width in sizes)
        assert sum(rows for rows, _ in sizes) >= 12
    for other in found[1:]:
        for own, expected in zip(other, found[0], strict=True):
            assert [one.tokens for one in own] == [two.tokens for two in expected]
            assert [one.logps for one in own] == [pytest.approx(two.logps, abs=1e-5) for two in expected]


def states(layers: Iterable[KVCacheLayer]) -> list[torch.Tensor]:
    return [one for layer in layers for one in (layer.keys, layer.values) if one is not None]


class Living:
    """Counts the bytes of all keys and values that layers hold, each memory once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layers: WeakSet[KVCacheLayer] = WeakSet()
        begin = KVCacheLayer.__init__

        def noted(layer: KVCacheLayer) -> None:
            begin(layer)
            self.layers.add(layer)

        monkeypatch.setattr(KVCacheLayer, "__init__", noted)

    def bytes(self) -> int:
        storages = [one.untyped_storage() for one in states(self.layers)]
        return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


@pytest.mark.parametrize("shared", [1, 999])
def test_a_refill_holds_no_second_cache(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows come, at most one layer of the old and the new cache exists twice."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    layers = 8
    model = make_model(num_hidden_layers=layers)
    living, seen = Living(monkeypatch), list[int]()
    peaks: list[tuple[int, int, int]] = []

    def stacked(*arguments: Any) -> torch.Tensor:
        found = _stack_rows(*arguments)
        seen.append(living.bytes() + found.nbytes)
        return found

    def watched(*arguments: Any) -> Sequences:
        seen.clear()
        old = living.bytes()
        rows = pack_sequences(*arguments)
        caches = [rows.cache] if rows.shared_prefix is None else [rows.cache, rows.shared_prefix.cache]
        peaks.append((old, max(seen), sum(one.nbytes for cache in caches for one in states(cache.layers))))
        return rows

    monkeypatch.setattr("qed.sampling.native.kv_cache._stack_rows", stacked)
    monkeypatch.setattr("qed.sampling.native.batch.pack_sequences", watched)
    prompts = [tuple(range(2, 22)), tuple(range(3, 20)), (4, 5, 6)]
    NativeSampler(model, None, ends=(1, 2), rows_per_batch=8).generate(prompts, [[*range(8)]] * 3, Sampling(1.0, 12))
    assert len(peaks) > 2
    for old, most, new in peaks:
        assert most <= max(old, new) + (old + new) / layers
    assert any(min(old, new) > 2 * (old + new) / layers for old, _, new in peaks)  # two at once would be seen


def test_no_prompt_and_no_answer() -> None:
    sampler = NativeSampler(make_model(), None, ends=(1,))
    assert sampler.generate([], [], Sampling(1.0, 4)) == []
    assert sampler.generate([(3,), (4,)], [[], [7]], Sampling(1.0, 1))[0] == []


def test_a_model_with_other_layers_goes_to_the_reference() -> None:
    model = make_model(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert explain_handover(model) is None
    assert isinstance(make(model, None, (1,), 8, torch.float32), NativeSampler)
    model.config.layer_types = ["full_attention", "linear_attention"]
    assert explain_handover(model) is not None
    assert type(make(model, None, (1,), 8, torch.float32)) is HFSampler
