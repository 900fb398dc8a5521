"""Whatever the family, the fast sampler's log-probs are those of the model's own forward pass, and its likeliest tokens
are those of `model.generate`: also where attention slides, and whoever shares a batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from families import forward_logps, greedy_tokens, make_family
from making import VOCABULARY, make_model
from test_graphs import Taping, alike, taping
from test_native_sampler import Letters
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3TextConfig

from qed.config.settings import ModelSettings
from qed.errors import UsageError
from qed.models.families import split_head
from qed.models.layer_windows import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    compute_layer_windows,
    compute_reached_windows,
    count_fixed_rotation_tokens,
)
from qed.models.load import prepare_model
from qed.randomness import derive_seed
from qed.rollout.policy import report_handover
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.decoder import is_llama_like
from qed.sampling.native.sampler import NativeSampler, make
from qed.training.attention import supports_packing
from qed.training.batch import collate
from qed.training.logps import compute_logps
from qed.training.packing import pack_batch
from qed.types import Completion, Problem, Rollout

__all__ = ["taping"]
ENDS = (1, 2)
# Families whose layers are all windows, some of them, and one that the sampler decodes by itself.
SLIDING = ["mistral", "phi3", "starcoder2", "qwen2", "gemma2"]


def asked(longest: int, answers: int) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    source = random.Random(longest)
    lengths = [1, 3, longest // 2, longest, *(source.randint(2, longest) for _ in range(2))]
    prompts = [tuple(source.randrange(3, VOCABULARY) for _ in range(length)) for length in lengths]
    return prompts, [
        [derive_seed("family", which, number) for number in range(1 + (which + 1) % answers)]
        for which in range(len(prompts))
    ]


def worst_gap(model: Any, prompts: list[tuple[int, ...]], answers: list[list[Completion]]) -> float:
    gaps = [
        (forward_logps(model, prompt, one.tokens) - torch.tensor(one.logps)).abs().max()
        for prompt, own in zip(prompts, answers, strict=True)
        for one in own
    ]
    return float(torch.stack(gaps).max())


@pytest.mark.parametrize("name", sorted(FULL_ATTENTION | SLIDING_ATTENTION))
def test_a_known_family_samples_as_it_computes(name: str) -> None:
    """With a window of 8 where the family has windows, and rows that are let in while others are written."""
    # Of SmolLM3's layers every fourth has a window.
    model = make_family(name, window=8, num_hidden_layers=4 if name == "smollm3" else 2)
    sampler = make(model, None, ENDS, 4, torch.float32)
    assert isinstance(sampler, NativeSampler)
    prompts, seeds = asked(12, 3)
    assert worst_gap(model, prompts, sampler.generate(prompts, seeds, Sampling(1.0, 10))) < 1e-4
    few = prompts[1:4]
    greedy = sampler.generate(few, [[0]] * len(few), Sampling(0.0, 10))
    assert [own[0].tokens for own in greedy] == [greedy_tokens(model, prompt, 10, ENDS) for prompt in few]


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize(("rows", "shared"), [(128, 999), (4, 1)])
def test_windows_slide_in_every_way_of_sampling(
    name: str, rows: int, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the reference: rows that come and go, stop strings, begun answers, and prompts that could be shared."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    model = make_family(name, window=8)
    prompts, seeds = asked(30, 5)
    sampling = Sampling(1.0, 24, ("ab", "gh", "u"))
    given = [0, 2, 5, 20, 23, 0]
    expected = HFSampler(model, Letters(), ENDS).generate(prompts, seeds, sampling, given)
    found = NativeSampler(model, Letters(), ENDS, rows_per_batch=rows).generate(prompts, seeds, sampling, given)
    alike(found, expected)
    assert worst_gap(model, prompts, found) < 1e-4


@pytest.mark.parametrize("name", ["mistral", "qwen2", "qwen3"])
def test_a_repeated_step_slides_too(name: str, taping: Taping) -> None:
    """A CUDA graph's columns are fixed and its window moves."""
    model = make_family(name, window=8).double()
    prompts, seeds = asked(30, 5)
    expected = HFSampler(model, None, ENDS).generate(prompts, seeds, Sampling(1.0, 90))
    alike(NativeSampler(model, None, ENDS, rows_per_batch=7).generate(prompts, seeds, Sampling(1.0, 90)), expected)
    assert taping.tapes


def test_a_window_that_holds_all_tokens_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then prompts are shared as without one, and the answers are the same."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", 1)
    model = make_family("mistral", window=30)
    assert compute_reached_windows(model.config, 30) == (None,) * 4
    assert compute_reached_windows(model.config, 31) == (30,) * 4
    prompts, seeds = asked(14, 5)
    found = NativeSampler(model, None, ENDS).generate(prompts, seeds, Sampling(1.0, 16))
    model.config.sliding_window = None
    alike(found, NativeSampler(model, None, ENDS).generate(prompts, seeds, Sampling(1.0, 16)))


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("mistral", {"sliding_window": None}, (None,) * 4),
        ("mistral", {"sliding_window": 8}, (8,) * 4),
        ("llama", {"sliding_window": 8}, (None,) * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False}, (None,) * 4),
        ("qwen2", {"sliding_window": 8, "max_window_layers": 3}, (None, None, None, 8)),
        ("qwen2_moe", {"use_sliding_window": False}, (None,) * 4),
        ("qwen3_moe", {"sliding_window": 8}, (8,) * 4),
        ("gemma2", {"sliding_window": 8}, (8, None, 8, None)),
    ],
)
def test_windows_by_layer(name: str, changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    model = make_family(name, **changes)
    assert compute_layer_windows(model.config) == windows
    prompts, seeds = asked(14, 3)
    found = NativeSampler(model, None, ENDS).generate(prompts, seeds, Sampling(1.0, 16))
    assert worst_gap(model, prompts, found) < 1e-4


def test_a_composite_model_is_sampled_by_its_text_part() -> None:
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    text = Gemma3TextConfig(**shape, **heads, sliding_window=8, initializer_range=0.3, pad_token_id=0)
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Gemma3Config(text_config=text.to_dict(), vision_config=vision)).eval()
    sampler = make(model, None, ENDS, 5, torch.float32)
    assert isinstance(sampler, NativeSampler)
    prompts, seeds = asked(14, 3)
    assert worst_gap(model, prompts, sampler.generate(prompts, seeds, Sampling(1.0, 16))) < 1e-4


def test_what_is_not_known_is_handed_over_with_a_reason() -> None:
    """An unknown family, chunked attention, and a window on no list, none of which the loop tries."""
    for name, word in [("llama4_text", "llama4_text"), ("doge", "doge"), ("gpt_neo", "gpt_neo")]:
        changes = {"attention_types": [[["global", "local"], 2]]} if name == "gpt_neo" else {}
        sampler = make(make_family(name, **changes), None, ENDS, 8, torch.float32)
        assert type(sampler) is HFSampler
        said: list[str] = []
        assert report_handover(sampler, said.append) == sampler.handed_over
        assert word in said[0]
    assert report_handover(make(make_model(), None, ENDS, 8, torch.float32), said.append) is None
    assert len(said) == 1


def test_rotations_that_change_with_the_length_are_handed_over() -> None:
    """Only where answers can be that long: up to the original context they are the same for every length."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors, "original_max_position_embeddings": 24}
    model = make_family("phi3", rope_parameters=rope, original_max_position_embeddings=24)
    assert count_fixed_rotation_tokens(model.config) == 24
    sampler = make(model, None, ENDS, 8, torch.float32)
    assert isinstance(sampler, NativeSampler)
    prompt = (3, 4, 5, 6)
    short = sampler.generate([prompt, (7, 8)], [[1], [2]], Sampling(1.0, 20))
    assert sampler.handed_over_long is None
    assert worst_gap(model, [prompt, (7, 8)], short) < 1e-4
    long = sampler.generate([prompt], [[0]], Sampling(0.0, 40))
    assert "24" in str(sampler.handed_over_long)
    assert long[0][0].tokens == greedy_tokens(model, prompt, 40, ENDS)


@pytest.mark.parametrize(("name", "packed"), [("mistral", True), ("phi3", True), ("qwen2", True), ("qwen2_moe", False)])
def test_packed_rows_slide_as_rows_do(name: str, packed: bool) -> None:
    """Rows longer than the window, some with a prompt in common; a model that names its window nowhere but in a mask
    that is not made for packed rows is not packed."""
    model, source = make_family(name, window=8), random.Random(3)
    body = split_head(model)[0]
    assert supports_packing(body) is packed
    prompt = tuple(source.randrange(3, VOCABULARY) for _ in range(21))
    rows = []
    for length in (5, 30, 12, 1):
        tokens = tuple(source.randrange(3, VOCABULARY) for _ in range(length))
        begin = prompt if length != 12 else prompt[:2]
        rows.append(Rollout(Problem("p", "?", "1"), begin, tokens, (-1.0,) * length, "", "stop", advantage=1.0))
    batch = collate(rows, dtype=torch.float32)
    with torch.no_grad():
        plain, _ = compute_logps(model, batch, 1.0)
        alone = [forward_logps(model, row.prompt, row.output) for row in rows]
        together = compute_logps(model, batch, 1.0, pack_batch(batch) if packed else None)[0]
    for one, other in ((plain, torch.cat(alone)), (together, torch.cat(alone))):
        assert (one[batch.mask.bool()] - other).abs().max() < 1e-4


def test_a_window_longer_than_the_rows_that_are_tried_must_be_named() -> None:
    """Windows of 4,096 tokens cannot be tried out, so they are compared as each layer names them."""
    assert supports_packing(split_head(make_family("mistral", window=4096))[0])
    assert not supports_packing(split_head(make_family("qwen2_moe", window=4096))[0])
    assert supports_packing(split_head(make_family("qwen2_moe", use_sliding_window=False))[0])
    assert not supports_packing(make_family("llama4_text").model)


def test_which_families_are_decoded_by_their_own_layers() -> None:
    assert all(is_llama_like(make_family(name, window=8)) for name in ("mistral", "qwen2", "qwen3", "llama"))


DBRX = (
    {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
    {"ffn_hidden_size": 32, "hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": 0.5},
)


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("seed_oss", {"residual_dropout": 0.5, "attention_dropout": 0.5}),
        ("gpt_bigcode", {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("bloom", {"hidden_dropout": 0.5, "attention_dropout": 0.5}),
        ("opt", {"dropout": 0.5, "layerdrop": 0.5}),
        ("mixtral", {"router_jitter_noise": 0.5}),
        ("dbrx", {"d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": DBRX[0], "ffn_config": DBRX[1]}),
    ],
)
def test_checkpointed_layers_compute_what_sampling_does(name: str, noise: dict[str, float]) -> None:
    """Checkpointing needs the training mode of the layers, in which families have noise under many names."""
    settings = ModelSettings(device="cpu", gradient_checkpointing=True)
    model = prepare_model(make_family(name, **noise), settings, torch.device("cpu"))
    ids = torch.arange(2, 22)[None]
    trained = model(input_ids=ids, use_cache=False).logits
    assert model.training
    assert torch.allclose(trained, model.eval()(input_ids=ids, use_cache=False).logits, atol=1e-5)


def test_experts_that_training_draws_are_refused() -> None:
    settings = ModelSettings(device="cpu", gradient_checkpointing=True)
    with pytest.raises(UsageError, match="phimoe models choose the experts"):
        prepare_model(make_family("phimoe"), settings, torch.device("cpu"))
