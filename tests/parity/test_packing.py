"""Packed rows give what each gives alone; windows and bins by hand."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_model, make_rollout
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from qed.algorithms.sft import Sft
from qed.batch import collate
from qed.errors import ModelError
from qed.learner import Learner
from qed.logps import response_logps
from qed.packing import best_fit, check_packing, packed_states, windows
from qed.settings import LearnerSettings

SMALL = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_windows_by_hand() -> None:
    """A stream of nine tokens holds two windows of four; the ninth is the last label."""
    found = windows([[1, 2, 3], [4], [5, 6, 7, 8, 9]], 4)
    assert found.tolist() == [[1, 2, 3, 4, 5], [5, 6, 7, 8, 9]]
    assert windows([range(8)], 4).tolist() == [[0, 1, 2, 3, 4]]
    assert windows([range(4)], 4).shape == windows([], 4).shape == (0, 5)


@given(lengths=st.lists(st.integers(0, 9), max_size=9), length=st.integers(1, 12))
def test_windows_label_every_token_but_the_first_once(lengths: list[int], length: int) -> None:
    documents = [[100 * number + place for place in range(count)] for number, count in enumerate(lengths)]
    stream = [token for document in documents for token in document]
    found = windows(documents, length)
    count = max(0, len(stream) - 1) // length
    assert found.shape == (count, length + 1)
    assert found[:, :-1].flatten().tolist() == stream[: count * length]
    assert found[:, 1:].flatten().tolist() == stream[1 : count * length + 1]


def test_bins_by_hand() -> None:
    """Into bins of 10: 9; 6 and 4; 5, 3 and 2, since 3 fits best beside 5; the 1 beside 9."""
    assert best_fit([4, 9, 6, 5, 3, 1, 2], 10) == [[1, 5], [2, 0], [3, 4, 6]]


@given(lengths=st.lists(st.integers(1, 20), max_size=30))
def test_bins_hold_every_row_once_and_few_are_needed(lengths: list[int]) -> None:
    bins = best_fit(lengths, 20)
    assert sorted(row for members in bins for row in members) == list(range(len(lengths)))
    loads = [sum(lengths[row] for row in members) for members in bins]
    assert all(load <= 20 for load in loads)
    # Two bins that together fit in one would have been one.
    assert all(one + other > 20 for one, other in pairwise(sorted(loads)))


def families() -> dict[str, Any]:
    torch.manual_seed(1)
    common = {**SMALL, "num_key_value_heads": 2, "initializer_range": 0.3}
    gpt2 = GPT2Config(vocab_size=23, n_embd=16, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3)
    return {
        "qwen2": make_model(),
        "qwen2, eager": make_model(attn_implementation="eager"),
        "llama": LlamaForCausalLM(LlamaConfig(**common)).double().eval(),
        "mistral, sliding": MistralForCausalLM(MistralConfig(**common, sliding_window=4)).double().eval(),
        "gpt2": GPT2LMHeadModel(gpt2).double().eval(),
    }


@pytest.mark.parametrize("family", list(families()))
def test_packed_log_probs_are_those_of_the_rows(family: str) -> None:
    """Values and gradients, of rotary and absolute positions, also where attention slides."""
    network = families()[family]
    batch = collate([make_rollout(random.Random(seed), longest=3 + 2 * (seed % 4)) for seed in range(9)])
    body = getattr(network, network.base_model_prefix)
    assert packed_states(body, batch, batch.mask.bool()) is not None
    found = []
    for packing in (False, True):
        logps, entropy = response_logps(network, batch, 0.8, packing)
        gradients = torch.autograd.grad((logps.sin() + entropy).sum(), list(network.parameters()), allow_unused=True)
        used = [gradient.flatten() for gradient in gradients if gradient is not None]
        found.append((logps, entropy, torch.cat(used)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_packing_is_left_where_it_saves_nothing() -> None:
    batch = collate([make_rollout(random.Random(0))])
    assert packed_states(make_model().model, batch, batch.mask.bool()) is None


def test_bfloat16_and_checkpointing_pack_too() -> None:
    network = make_model(dtype=torch.float32)
    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    network.train()
    batch = collate([make_rollout(random.Random(seed), longest=3 + seed) for seed in range(6)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packed, _ = response_logps(network, batch, 1.0, packing=True)
        plain, _ = response_logps(network, batch, 1.0)
    torch.testing.assert_close(packed, plain, rtol=0.05, atol=0.15)
    packed.sum().backward()


class Blind(nn.Module):
    """A body that does not see where a row begins."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, position_ids: Any = None, **rest: Any) -> Any:
        return self.inner(input_ids=input_ids, **rest)


def test_a_model_that_mixes_packed_rows_is_refused() -> None:
    network = make_model()
    Learner(network, Sft(), LearnerSettings(packing=True))
    with pytest.raises(ModelError, match="does not keep packed rows apart"):
        check_packing(Blind(network.model))
