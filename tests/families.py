"""Random small models of any family that transformers has, and what their own forward passes say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from making import VOCABULARY
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "word_embed_proj_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def make_family(name: str, window: int | None = None, **changes: Any) -> Any:
    """A random small model; of the shape above it gets what its configuration has a name for."""
    kind = CONFIG_MAPPING[name]
    usual = kind()
    known = {key: value for key, value in SHAPE.items() if hasattr(usual, key) or key in kind.attribute_map}
    if getattr(usual, "head_dim", None) is None or isinstance(getattr(kind, "head_dim", None), property):
        known.pop("head_dim", None)
    if hasattr(usual, "sliding_window"):
        known["sliding_window"] = window
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(kind(**{**known, **changes})).eval()


@torch.no_grad()
def forward_logps(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """The log-probs of an answer's tokens by one forward pass without padding or cache."""
    ids = torch.tensor([[*prompt, *answer]], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)


@torch.no_grad()
def greedy_tokens(model: Any, prompt: Sequence[int], length: int, ends: tuple[int, ...]) -> tuple[int, ...]:
    """What `model.generate` answers."""
    ids = torch.tensor([list(prompt)], device=model.device)
    mask = torch.ones_like(ids)
    out = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=length, eos_token_id=list(ends), pad_token_id=0
    )
    return tuple(out[0, len(prompt) :].tolist())
