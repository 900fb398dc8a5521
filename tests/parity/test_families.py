"""The learner computes each family's own log-probs and gradients, and trains it; what it would compute wrongly is
refused by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from making import VOCABULARY, make_model, make_rollout
from torch import Tensor, nn
from transformers import PretrainedConfig

from qed.algorithms.grpo import Grpo
from qed.algorithms.sft import Sft
from qed.config.settings import LearnerSettings, ModelSettings
from qed.errors import ModelError
from qed.models import load as models
from qed.models.families import (
    choose_attention,
    read_logit_transform,
    require_known_layers,
    require_known_logits,
    split_head,
)
from qed.training.attention import supports_packing
from qed.training.batch import Batch, collate
from qed.training.learner import Learner
from qed.training.logps import compute_logps, compute_scores
from qed.training.packing import pack_batch

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
HEADS = {**COMMON, "head_dim": 8}
SLIDING = {"sliding_window": 4}
FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
MANY = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", COMMON),
    "Mistral": ("MistralForCausalLM", {**COMMON, **SLIDING}),
    "Qwen2": ("Qwen2ForCausalLM", {**COMMON, **SLIDING, "use_sliding_window": True, "max_window_layers": 1}),
    "Qwen3": ("Qwen3ForCausalLM", HEADS),
    "Phi3": ("Phi3ForCausalLM", {**COMMON, **SLIDING}),
    "Gemma": ("GemmaForCausalLM", HEADS),
    "Gemma2": (
        "Gemma2ForCausalLM",
        {**HEADS, **SLIDING, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "Gemma3Text": (
        "Gemma3ForCausalLM",
        {**HEADS, **SLIDING, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Granite": ("GraniteForCausalLM", {**COMMON, "logits_scaling": 0.25, "embedding_multiplier": 3.0}),
    "Cohere": ("CohereForCausalLM", {**COMMON, "logit_scale": 0.3}),
    "Cohere2": ("Cohere2ForCausalLM", {**HEADS, **SLIDING, "logit_scale": 3.0}),
    "Olmo2": ("Olmo2ForCausalLM", COMMON),
    "StableLm": ("StableLmForCausalLM", COMMON),
    "GPT2": (
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "GPTNeoX": ("GPTNeoXForCausalLM", COMMON),
    "OPT": ("OPTForCausalLM", {**COMMON, "ffn_dim": 32, "init_std": 0.3, "word_embed_proj_dim": 8}),
    "Mixtral": ("MixtralForCausalLM", {**COMMON, **FEW, **SLIDING}),
    "Qwen2Moe": ("Qwen2MoeForCausalLM", {**COMMON, **MANY, "shared_expert_intermediate_size": 16}),
    "Qwen3Moe": ("Qwen3MoeForCausalLM", {**HEADS, **MANY}),
    "GraniteMoe": ("GraniteMoeForCausalLM", {**COMMON, **FEW, "logits_scaling": 2.0}),
    "GptOss": ("GptOssForCausalLM", {**HEADS, **FEW, **SLIDING}),
}


def make_family(name: str) -> Any:
    """A small random model of a family, in float32."""
    torch.manual_seed(0)
    if name == "Gemma3":
        return make_gemma3()
    kind = getattr(transformers, FAMILIES[name][0])
    config = kind.config_class(**FAMILIES[name][1])
    return kind._from_config(config, attn_implementation=choose_attention(config)).eval()


def make_gemma3() -> Any:
    """Gemma 3 as it is published: a text model beside one for images."""
    text = {**FAMILIES["Gemma3Text"][1], "initializer_range": 0.3}
    image = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**image, "image_size": 16, "patch_size": 8},
        mm_tokens_per_image=4,
        image_token_index=VOCABULARY - 1,
        boi_token_index=VOCABULARY - 2,
        eoi_token_index=VOCABULARY - 3,
    )
    return transformers.Gemma3ForConditionalGeneration(config).eval()


NAMES = [*FAMILIES, "Gemma3"]


def make_batch(dtype: torch.dtype = torch.float32) -> tuple[list[Any], Batch]:
    rollouts = [make_rollout(random.Random(seed), advantage=seed % 2 - 0.5) for seed in range(4)]
    return rollouts, collate(rollouts, dtype=dtype)


def compute_own(model: nn.Module, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies by the model's own forward pass and log_softmax, each row alone, without padding."""
    logps, entropy = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
    for row in range(len(batch.inputs)):
        length = int(batch.attention[row].sum())
        logits = model(input_ids=batch.inputs[row : row + 1, :length], use_cache=False).logits[0] / temperature
        own = logits.log_softmax(-1)
        logps[row, :length] = own.gather(-1, batch.labels[row, :length, None]).squeeze(-1)
        entropy[row, :length] = -(own.exp() * own).sum(-1)
    return logps * batch.mask, entropy * batch.mask


@pytest.mark.parametrize("name", NAMES)
def test_log_probs_and_gradients_are_those_of_the_models_own_logits(name: str) -> None:
    """In float32 within 1e-5, each row alone against a padded and, where the family allows it, a packed batch."""
    model = make_family(name)
    _, batch = make_batch()
    factors = torch.randn(2, *batch.mask.shape)
    ways: list[Callable[[], Any]] = [lambda: compute_own(model, batch, 0.7), lambda: compute_logps(model, batch, 0.7)]
    if supports_packing(split_head(model)[0]):
        ways.append(lambda: compute_logps(model, batch, 0.7, pack_batch(batch)))
    found = []
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for way in ways:
        logps, entropy = way()
        loss = (logps * factors[0] + entropy * factors[1]).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = torch.cat([one.flatten() for one in gradients if one is not None])
        found.append((logps, entropy, flat / flat.abs().max()))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_family_makes_an_update_of_each_kind(name: str) -> None:
    """Every trained weight of the text part has a gradient, and the loss is a number."""
    model = make_family(name)
    rollouts, _ = make_batch()
    for algorithm in (Sft(), Grpo()):
        before = split_head(model)[1].weight.detach().clone()
        stats = Learner(model, algorithm, LearnerSettings(lr=0.01)).update(rollouts, 0)
        assert stats["optim/grad_norm"] > 0
        assert not torch.equal(split_head(model)[1].weight, before)


@pytest.mark.parametrize("name", ["Gemma2", "Granite", "Cohere"])
def test_transformed_logits_in_double_precision(name: str) -> None:
    """A scale and a cap in values, entropy, sum of squares and gradients, also where gradients lie in `.grad`."""
    model = make_family(name).double()
    # One row, without padding: in float64 eager attention gives NaN for a query that sees padding alone.
    _, batch = make_batch(torch.float64)
    batch = batch.select(torch.tensor([0]))
    logits = model(input_ids=batch.inputs, attention_mask=batch.attention, use_cache=False).logits / 0.6
    squares = logits.log_softmax(-1).exp().square().sum(-1).log() * batch.mask
    logps, entropy = compute_own(model, batch, 0.6)
    (logps.sin() + entropy).sum().backward()
    wanted = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    found = compute_scores(model, batch, 0.6, squares=True, into_grad=True)
    (found[0].sin() + found[1]).sum().backward()
    for one, two in zip(found, (logps, entropy, squares), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
    for key, parameter in model.named_parameters():
        # The models' rotations and some norms are float32 whatever the weights are.
        torch.testing.assert_close(parameter.grad, wanted[key], rtol=1e-4, atol=1e-5)


def test_an_attention_cap_is_computed() -> None:
    """Gemma 2 is loaded with the attention that knows its cap, and is not packed."""
    model = make_family("Gemma2")
    assert model.config._attn_implementation == "eager"
    assert not supports_packing(split_head(model)[0])
    ids = torch.arange(2, 12)[None]
    capped = model(ids).logits
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (model(ids).logits - capped).abs().max() > 1e-3


class Unknown(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """A family that transforms its logits in a way of its own."""

    def forward(self, *args: Any, **settings: Any) -> Any:
        out = super().forward(*args, **settings)
        out.logits = out.logits.sin()
        return out


def test_what_is_unknown_between_hidden_states_and_logits_is_refused() -> None:
    """By comparison, whatever the configuration says; a scale or cap that is not computed is refused as well."""
    torch.manual_seed(0)
    model = Unknown(transformers.LlamaConfig(**COMMON))
    with pytest.raises(ModelError, match=r"Unknown \(llama\) computes its logits .* qed evaluate still works"):
        Learner(model, Sft(), LearnerSettings())
    for name, value in (("final_logit_softcapping", 2.0), ("logit_scale", 1.5)):
        claimed = make_model()
        setattr(claimed.config, name, value)
        with pytest.raises(ModelError, match="computes its logits"):
            require_known_logits(claimed)
    for dtype in (torch.float32, torch.bfloat16):
        require_known_logits(make_model(dtype=dtype))


def test_a_scale_that_is_no_number_is_named() -> None:
    model = make_model()
    model.config.logit_scale = "inv_sqrt_d_model"
    with pytest.raises(ModelError, match="logit_scale 'inv_sqrt_d_model'"):
        read_logit_transform(model)


RECURRENT = {
    "Mamba": {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
    "Qwen3Next": {**HEADS, **MANY, "layer_types": ["linear_attention", "full_attention"]},
    "Jamba": {**COMMON, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "RecurrentGemma": {**COMMON, "num_hidden_layers": 3},
    "Rwkv": {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1},
    "Lfm2": {**COMMON, "layer_types": ["conv", "full_attention"]},
}


@pytest.mark.parametrize("name", list(RECURRENT))
def test_recurrent_layers_are_refused_before_weights_are_read(name: str, tmp_path: Path) -> None:
    """By the family's name, with the reason and the way out."""
    config: PretrainedConfig = getattr(transformers, f"{name}Config")(**RECURRENT[name])
    config.save_pretrained(tmp_path)
    models.build_tokenizer(["1 + 1 = 2"], 300).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ModelError, match=rf"is a {config.model_type} model, .* recurrent state .* Use a model"):
        models.load_model(ModelSettings(name=str(tmp_path)))


def test_a_hybrid_family_without_its_recurrent_layers_is_known() -> None:
    """Granite 4's smaller models are of the hybrid class, and attend in every layer."""
    layers = {"layer_types": ["full_attention"] * 2, "mamba_n_heads": 4}
    config = transformers.GraniteMoeHybridConfig(**COMMON, **layers)
    require_known_layers("granite", config, transformers.GraniteMoeHybridForCausalLM)


def test_a_composite_model_is_read_by_its_text_part() -> None:
    model = make_family("Gemma3")
    tokenizer = models.build_tokenizer(["1 + 1 = 2"], 300)
    assert models.read_window(model) == 64
    assert set(models.find_end_ids(model, tokenizer, chat=False)) == {tokenizer.eos_token_id, 1}
    body, _ = split_head(model)
    assert type(body).__name__ == "Gemma3TextModel"
