"""Computing prompts before their answers are written: each once, a bounded number of tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from qed.sampling.native.kv_cache import new_cache
from qed.sampling.native.sequences import Place

PREFILL_TOKENS = 8192  # tokens of one forward pass over prompts, padding included, as vLLM bounds them by default


def chunk_prompts(places: Sequence[Place], prompts: Sequence[Sequence[int]]) -> Iterator[list[Place]]:
    """Yield the places in parts whose prompts are computed together; a prompt above the bound is one of its own."""
    part: list[Place] = []
    which, count, longest = -1, 0, 0
    for place in places:
        if place[0] != which:
            which, length = place[0], len(prompts[place[0]])
            if part and (count + 1) * max(longest, length) > PREFILL_TOKENS:
                yield part
                part, count, longest = [], 0, 0
            count, longest = count + 1, max(longest, length)
        part.append(place)
    if part:
        yield part


def prefill(model: Any, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor, Tensor]:
    """Compute prompts padded on the left; their cache, which columns are their own, [P, width] bool, and the logits of
    what follows, [P, V]."""
    width = max(map(len, prompts))
    padded = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    ids = torch.tensor(padded, device=model.device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    mask = torch.arange(width, device=model.device)[None, :] >= width - lengths[:, None]
    cache = new_cache(model.config)
    logits: Tensor = model(
        input_ids=ids,
        attention_mask=mask.long(),
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    return cache, mask, logits
