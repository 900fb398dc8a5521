"""Prefill: computes the KV cache of prompts, each prompt once, with a bounded number of tokens in a forward pass.

The keys and values of a prompt's first tokens may be cached from an earlier turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any

import torch
from torch import Tensor

from qed.models.block_attention import DEVICES, RowBlocks, Shape, attend_blocks, find_refusal
from qed.models.compiled_layers import PackedRow, can_compile_layers, compute_compiled_states
from qed.models.device_layers import compute_layer
from qed.models.fast_float32 import compute_batches_in
from qed.models.own_layers import can_fuse_layers, read_part
from qed.models.precision import read_compute_dtype
from qed.models.segments import Segment
from qed.sampling.native.kept import NOTHING, Reused, build_cache
from qed.sampling.native.kv_cache import CACHE_ARGUMENT, new_cache
from qed.sampling.native.sequences import SequenceId

Columns = list[tuple[Tensor, Tensor]]  # keys and values of N inputs in each layer, [N, heads * width]
COMMON_FROM = 512  # a common beginning is computed once if that saves at least this many tokens
PREFILL_TOKENS = 8192  # per forward pass, padding included; the same as vLLM's default


def chunk_prompts(
    ids: Sequence[SequenceId], lengths: Mapping[int, int], padding: float = math.inf
) -> Iterator[list[SequenceId]]:
    """Yield chunks of sequences whose prompts are computed together; a prompt above the limit is its own chunk.

    Args:
        ids: ids of the sequences.
        lengths: for each prompt, how many tokens must be computed.
        padding: largest ratio of a chunk's padded tokens to its prompts' tokens.
    """
    chunk: list[SequenceId] = []
    prompt, count, longest, tokens = -1, 0, 0, 0
    for sequence in ids:
        if sequence[0] != prompt:
            prompt, length = sequence[0], lengths[sequence[0]]
            padded = (count + 1) * max(longest, length)
            if chunk and padded > min(PREFILL_TOKENS, padding * (tokens + length)):
                yield chunk
                chunk, count, longest, tokens = [], 0, 0, 0
            count, longest, tokens = count + 1, max(longest, length), tokens + length
        chunk.append(sequence)
    if chunk:
        yield chunk


def count_common(prompts: Sequence[Sequence[int]]) -> int:
    """Count the leading tokens that all prompts share, such as few-shot examples; 0 if sharing them saves little."""
    # The last token of a prompt is computed separately, because its logits are needed.
    begun = [tuple(prompt[:-1]) for prompt in prompts] or [()]
    pairs = zip(min(begun), max(begun), strict=False)  # the smallest and largest share exactly what all share
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return length if length * (len(prompts) - 1) >= COMMON_FROM else 0


def compute_beginning(model: Any, beginning: Sequence[int]) -> Reused:
    """Compute the keys and values of tokens that prompts begin with."""
    cache, _, _ = prefill(model, [beginning], [NOTHING])
    length = len(beginning)
    return Reused(length, [(layer.keys[0, :, :length], layer.values[0, :, :length]) for layer in cache.layers])


def can_pack(model: Any, width: int) -> bool:
    """Return whether `prefill` can pack prompts up to a width into one row, computing a common beginning once."""
    return can_compile_layers(model.base_model, width) or _can_compute_on_device(model)


def prefill(
    model: Any, prompts: Sequence[Sequence[int]], reused: Sequence[Reused], common: int = 0
) -> tuple[Any, Tensor, Tensor]:
    """Compute prompts with left padding.

    A row's columns are contiguous, so all rows compute as many of their last tokens as the row with the fewest reused
    tokens needs. If nothing is reused and the model allows it, prompts are computed in one packed row without padding.

    Args:
        model: model that computes them.
        prompts: token ids.
        reused: for each prompt, the part whose keys and values are cached.
        common: number of leading tokens shared by all prompts and computed once; requires `can_pack`.

    Returns:
        Their KV cache; its mask, [P, width] bool, False at padding; and the logits of the next token, [P, V].
    """
    width = max(map(len, prompts))
    if not any(part.length for part in reused) and can_pack(model, width):
        kept, found = _compute_packed(model, prompts, common)
        return (*_lay_rows(model.config, kept, [len(prompt) for prompt in prompts], common, 0), found)
    fresh = max(len(prompt) - part.length for prompt, part in zip(prompts, reused, strict=True))
    padded = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    ids = torch.tensor(padded, device=model.device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    mask = torch.arange(width, device=model.device)[None, :] >= width - lengths[:, None]
    cache = build_cache(model.config, reused, [max(0, len(prompt) - fresh) for prompt in prompts], width - fresh)
    read = read_part(model.base_model, ids.new_tensor([fresh - 1]))
    with compute_batches_in(model.device.type, torch.float32):  # other precisions come from the caller's context
        logits: Tensor = model(
            input_ids=ids[:, -fresh:],
            attention_mask=mask.long(),
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -fresh:],
            use_cache=True,
            logits_to_keep=1,
            **{CACHE_ARGUMENT: cache},
            **({} if read is None else {"read": read}),
        ).logits[:, -1]
    return cache, mask, logits


def prefill_behind(model: Any, prompts: Sequence[Sequence[int]], common: int) -> tuple[Any, Any, Tensor, Tensor]:
    """Compute prompts that `can_pack`, with a separate KV cache for their common beginning.

    Returns:
        The KV cache of the beginning, in one row; the KV cache of what follows it in each prompt, and its mask, as from
        `prefill`; and the logits.
    """
    kept, logits = _compute_packed(model, prompts, common)
    beginning, _ = _lay_rows(model.config, [(keys[:common], values[:common]) for keys, values in kept], [common], 0, 0)
    return (beginning, *_lay_rows(model.config, kept, [len(prompt) for prompt in prompts], common, common), logits)


def _compute_packed(model: Any, prompts: Sequence[Sequence[int]], common: int) -> tuple[Columns, Tensor]:
    """Compute prompts in one packed row without padding, each after their common beginning.

    Returns:
        The keys and values of all inputs, and the logits of the next tokens, [P, V].
    """
    rests, device = torch.tensor([len(prompt) - common for prompt in prompts]), model.device
    ends = common + rests.cumsum(0)
    segments = [Segment(start, length, 0, common) for start, length in torch.stack([ends - rests, rests], 1).tolist()]
    segments = [Segment(0, common), *segments] if common else segments
    tokens = chain(prompts[0][:common], *(prompt[common:] for prompt in prompts))
    positions = torch.cat([torch.arange(one.length) + one.prompt_length for one in segments])
    row = PackedRow(torch.tensor([[*tokens]], device=device), positions[None].to(device), segments)
    longest, kept = common + int(rests.max()), Columns()
    compute = compute_compiled_states if can_compile_layers(model.base_model, longest) else _compute_on_device
    states = compute(model.base_model, row, (ends - 1).to(device), kept)
    with compute_batches_in(device.type, torch.float32):
        logits: Tensor = model.get_output_embeddings()(states)
    return kept, logits


def _lay_rows(config: Any, kept: Columns, lengths: Sequence[int], common: int, skipped: int) -> tuple[Any, Tensor]:
    """Build the KV cache of prompts, right-aligned, and its mask, [P, width].

    Args:
        config: config of the model.
        kept: keys and values of the common beginning, and of what follows it in each prompt.
        lengths: lengths of the prompts.
        common: number of tokens of their common beginning.
        skipped: number of leading tokens of each prompt to leave out.
    """
    device, whole = kept[0][0].device, torch.tensor(lengths)
    own, first = whole - skipped, common + (whole - common).cumsum(0) - whole
    width = int(own.max())
    # For each token: its row, its position in the prompt, and its index in the packed row.
    row = torch.arange(len(own)).repeat_interleave(own)
    position = skipped + torch.arange(len(row)) - (own.cumsum(0) - own)[row]
    source = torch.where(position < common, position, first[row] + position).to(device)
    row, column = row.to(device), (width - whole[row] + position).to(device)
    heads, cache = config.num_key_value_heads, new_cache(config)
    for layer, columns in zip(cache.layers, kept, strict=True):
        # Columns before a row are masked and zero, because memory that was never written may hold NaN.
        padded = [states.new_zeros(len(own), width, heads, states[0].numel() // heads) for states in columns]
        for states, each in zip(padded, columns, strict=True):
            states[row, column] = each.view(len(each), heads, -1)[source]
        layer.fill(*(states.transpose(1, 2).contiguous() for states in padded))
    return cache, torch.arange(width, device=device)[None] >= width - own[:, None].to(device)


def _can_compute_on_device(model: Any) -> bool:
    """Return whether device kernels can compute a packed row, in the current autocast."""
    body, config = model.base_model, model.config
    if model.device.type not in DEVICES or not can_fuse_layers(body):
        return False
    sizes = config.num_attention_heads, config.num_key_value_heads, body.layers[0].self_attn.head_dim
    return not find_refusal(Shape(model.device, read_compute_dtype(model), *sizes))


def _compute_on_device(body: Any, row: PackedRow, read: Tensor, kept: Columns) -> Tensor:
    """Compute the hidden states of the inputs `read` of a packed row; store the keys and values of all."""
    blocks = RowBlocks(row.segments, row.ids.device)
    longest = max(segment.prompt_length + segment.length for segment in row.segments)

    def attend(query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
        kept.append((key, value))
        reached = window if window is not None and window < longest else None
        return attend_blocks(blocks, query, key, value, scaling, reached).flatten(1)

    states = body.embed_tokens(row.ids)
    angles = body.rotary_emb(states, row.positions)
    for layer in body.layers:
        chosen = read if layer is body.layers[-1] else None
        states = compute_layer(layer, states, position_embeddings=angles, read=chosen, attend=attend)
    found: Tensor = body.norm(states)[0]
    return found
