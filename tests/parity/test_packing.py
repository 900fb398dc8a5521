"""Packed rows give what each gives alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_model, make_rollout
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from qed.algorithms.sft import Sft
from qed.config.settings import LearnerSettings
from qed.models.families import split_head
from qed.training.attention import supports_packing, use_packed_attention
from qed.training.batch import Batch, collate
from qed.training.learner import Learner
from qed.training.logps import compute_logps
from qed.training.packing import cut_packed_microbatches, pack_batch

SMALL = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


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


def rows_with_shared_prompts(seed: int = 0) -> Batch:
    """Rows of all kinds: three answers and a one-token answer to one prompt, two to a shorter one, and rows alone."""
    source = random.Random(seed)
    prompts = [tuple(source.randrange(2, 23) for _ in range(length)) for length in (12, 9, 3, 15)]
    asked = [(0, 5), (2, 4), (0, 1), (1, 7), (0, 9), (3, 2), (1, 3), (0, 2), (2, 6)]
    return collate(
        [
            replace(
                make_rollout(source, longest=length),
                prompt=prompts[which],
                output=tokens,
                logps=(-1.0,) * length,
                sampled_mask=(),
            )
            for which, length in asked
            for tokens in [tuple(source.randrange(2, 23) for _ in range(length))]
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("family", list(families()))
def test_packed_log_probs_are_those_of_the_rows(family: str) -> None:
    """Values and gradients, of rotary and absolute positions, also where attention slides."""
    network = families()[family]
    assert supports_packing(split_head(network)[0])
    batch = rows_with_shared_prompts()
    found = []
    for layout in (None, pack_batch(batch)):
        logps, entropy = compute_logps(network, batch, 0.8, layout)
        gradients = torch.autograd.grad((logps.sin() + entropy).sum(), list(network.parameters()), allow_unused=True)
        used = [gradient.flatten() for gradient in gradients if gradient is not None]
        found.append((logps, entropy, torch.cat(used)))
    for one, other in zip(*found, strict=True):
        # The models' norms and rotations are float32 whatever the weights are, so equal means equal at that precision.
        assert (one - other).norm() <= 1e-6 * one.norm()


def test_a_prompt_is_computed_once_for_all_its_answers() -> None:
    batch = rows_with_shared_prompts()
    layout = pack_batch(batch, fill=False)
    prompts, own = 12 + 9, (5 + 1 + 9 + 2) + (7 + 3) - 6
    alone = int(batch.attention[[1, 5, 8]].sum())
    assert layout.ids.numel() == prompts + own + alone
    assert sorted(layout.order.tolist()) == sorted(set(layout.order.tolist()))
    shown = layout.ids[0][layout.place]
    assert torch.equal(shown[batch.attention.bool()], batch.inputs[batch.attention.bool()])


@given(seed=st.integers(0, 10**6), budget=st.integers(1, 90), together=st.sampled_from([1, 3]))
def test_packed_cuts_keep_prompts_together_within_the_budget(seed: int, budget: int, together: int) -> None:
    """What a part computes is within the budget, and a prompt is in two parts only where its answers fill one."""
    batch = rows_with_shared_prompts(seed)
    parts = cut_packed_microbatches(batch, budget, together)
    assert sorted(row for part in parts for row in part) == list(range(9))
    for part in parts:
        assert pack_batch(batch.select(part), fill=False).ids.numel() <= budget or len(part) == together
        assert all(part[at] // together == part[at + together - 1] // together for at in range(0, len(part), together))
    assert len(cut_packed_microbatches(batch, 10**6, together)) == 1


def test_bfloat16_and_checkpointing_pack_too() -> None:
    network = make_model(dtype=torch.float32)
    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    network.train()
    batch = rows_with_shared_prompts()
    with use_packed_attention(network.config):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            packed, _ = compute_logps(network, batch, 1.0, pack_batch(batch))
        packed.sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, _ = compute_logps(network, batch, 1.0)
    torch.testing.assert_close(packed, plain, rtol=0.05, atol=0.15)


class Blind(nn.Module):
    """A body that does not see where a row begins."""

    _supports_attention_backend = True

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, input_ids: torch.Tensor, position_ids: Any = None, **rest: Any) -> Any:
        return self.inner(input_ids=input_ids, **rest)


def test_a_model_that_mixes_packed_rows_is_computed_with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_model()
    assert Learner(network, Sft(), LearnerSettings()).packing
    assert not supports_packing(Blind(network.model))
    monkeypatch.setattr("qed.training.learner.supports_packing", lambda body: supports_packing(Blind(body)))
    assert not Learner(network, Sft(), LearnerSettings()).packing


def test_a_model_without_the_tokens_or_positions_of_the_probe_is_computed_with_padding() -> None:
    """An evaluation asks for it too, and looked up a token that the model does not have."""
    assert not supports_packing(make_model(vocab_size=9).model)
    assert supports_packing(make_model(vocab_size=10).model)
    sizes = {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 4}
    assert not supports_packing(GPT2LMHeadModel(GPT2Config(**sizes, n_positions=9)).eval().transformer)
    assert supports_packing(GPT2LMHeadModel(GPT2Config(**sizes, n_positions=10)).eval().transformer)
