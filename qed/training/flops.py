"""Counts the minimum number of floating-point operations of a step, as in model-flops utilisation (MFU).

A multiplication and an addition count as two. Per token and matrix weight, a forward pass needs 2 operations, and a
backward pass 2 for the states and, if the weight is trained, 2 for its gradient: 6 in total. Attention needs 4 for each
query, key and element of a head in the forward pass, and 8 in the backward pass. The output layer sees only trained
tokens, and a prompt shared by rows counts once. Repeated work does not count: gradient checkpointing, padding, prompts
on several ranks (PaLM, Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Every layer counts as attending to the
whole row, even with a window, and every token counts in every layer, even a prompt's in the last one, whose
feed-forward block skips it (`models/own_layers.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import nn

from qed.models.families import read_head_width, read_text_config, split_head
from qed.training.batch import Batch
from qed.training.packing import list_prompts
from qed.types import Groups


class Work(NamedTuple):
    """The work of a pass: tokens, tokens with log-probs, and pairs of a query and a key."""

    tokens: int
    labels: int
    pairs: int


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that determine its operations: numbers of matrix weights, all and trained."""

    body: int  # used by each token; in a mixture of experts, only the chosen experts
    head: int
    trained_body: int
    trained_head: int
    attention: int  # elements of all queries of a token

    def count_forward(self, work: Work) -> int:
        """Count the operations of a forward pass."""
        return 2 * (self.body * work.tokens + self.head * work.labels) + 4 * self.attention * work.pairs

    def count_update(self, work: Work) -> int:
        """Count the operations of a forward and a backward pass."""
        frozen = (self.body - self.trained_body) * work.tokens + (self.head - self.trained_head) * work.labels
        return 3 * self.count_forward(work) - 2 * frozen


class FlopCounter:
    """Adds up the operations of a learner's passes since the last `pop`."""

    def __init__(self) -> None:
        self.total = 0
        self._sizes: dict[int, ModelSize] = {}

    def add(self, model: nn.Module, batch: Batch) -> None:
        """Count a pass of a model over a step's rows; with gradients enabled, a backward pass too."""
        size = self.measure(model)
        self.total += (size.count_update if torch.is_grad_enabled() else size.count_forward)(count_work(batch))

    def measure(self, model: nn.Module) -> ModelSize:
        """Return the size of a model, measured once."""
        if id(model) not in self._sizes:
            self._sizes[id(model)] = measure_size(model)
        return self._sizes[id(model)]

    def pop(self) -> int:
        """Return the operations since the last call."""
        total, self.total = self.total, 0
        return total


def measure_size(model: nn.Module) -> ModelSize:
    """Return the sizes of a causal language model, also of a sharded, quantized or adapted one."""
    body, head = split_head(model)
    config = read_text_config(model)
    width = read_head_width(config) * config.num_attention_heads
    chosen = getattr(config, "num_experts_per_tok", None)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    total = trained = 0
    for module in body.modules():
        for weight, count in _list_matrices(module):
            used = count * chosen // experts if weight.ndim > 2 and chosen and experts else count
            total += used
            trained += used if weight.requires_grad else 0
    output = head.weight.numel()
    return ModelSize(
        total, output, trained, output if head.weight.requires_grad else 0, config.num_hidden_layers * width
    )


def _list_matrices(module: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """Return the matrices that a module multiplies by, each with its number of weights."""
    if isinstance(module, nn.Embedding):
        return []
    if isinstance(module, nn.Linear):
        return [(cast(nn.Parameter, module.weight), module.in_features * module.out_features)]  # may be packed
    return [(weight, weight.numel()) for weight in module.parameters(recurse=False) if weight.ndim > 1]


def count_work(batch: Batch) -> Work:
    """Count the work of a pass over rows; a prompt shared by several of them counts once."""
    lengths = batch.attention.sum(1)
    shared = Counter(list_prompts(batch))
    repeated = [(prompt.length, count - 1) for prompt, count in shared.items()]
    return Work(
        int(lengths.sum()) - sum(length * count for length, count in repeated),
        int((batch.mask != 0).sum()),
        int((lengths * (lengths + 1) // 2).sum()) - sum(_count_pairs(length) * count for length, count in repeated),
    )


def count_sampled_work(groups: Groups) -> Work:
    """Count the work of sampling groups' answers; the prompt of a group counts once."""
    tokens = labels = pairs = 0
    for group in groups:
        prompt = len(group[0].prompt) if group else 0
        own = [rollout for rollout in group if rollout.source == "policy"]
        answers = [len(rollout.output) for rollout in own]
        tokens += sum(answers) + (prompt if answers else 0)
        labels += sum(rollout.trained_count for rollout in own)
        pairs += sum(_count_pairs(prompt + answer) - _count_pairs(prompt) for answer in answers)
        pairs += _count_pairs(prompt) if answers else 0
    return Work(tokens, labels, pairs)


def _count_pairs(length: int) -> int:
    """Count the query-key pairs of a causal row."""
    return length * (length + 1) // 2
