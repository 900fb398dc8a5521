"""Small things that many tests make: a random model, and rollouts drawn at random."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from qed.types import Grade, Problem, Rollout

VOCABULARY = 23


def make_model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Qwen2ForCausalLM:
    """A random small Qwen2; the same seed gives the same weights."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**config, **changes})).to(dtype).eval()


def prefix_mask(given: int, length: int) -> tuple[bool, ...]:
    """The `sampled_mask` of an output whose first tokens are given; empty where none is."""
    return (False,) * given + (True,) * (length - given) if given else ()


def make_rollout(source: random.Random, advantage: float | None = None, longest: int = 9) -> Rollout:
    """A rollout of random tokens, log-probs and advantage, graded; in every other one some first tokens are given."""
    output = tuple(source.randrange(VOCABULARY) for _ in range(source.randint(1, longest)))
    given = source.choice([0, source.randint(1, len(output))])
    logps = tuple(0.0 if number < given else -3 * source.random() for number in range(len(output)))
    # Of some of the given tokens it is known how likely they were to who wrote them.
    behaviour = tuple(source.choice([math.nan, -3 * source.random()]) for _ in range(given))
    advantage = source.choice([-1.0, 0.0, 0.5, 2.0]) if advantage is None else advantage
    # A stream of its own, so that all other values are the same with and without it.
    shown = random.Random(f"{output} {advantage}")
    return Rollout(
        problem=Problem(f"p{source.randrange(4)}", "?", "1"),
        prompt=tuple(source.randrange(VOCABULARY) for _ in range(source.randint(1, longest))),
        output=output,
        logps=logps,
        text="",
        stop_reason="stop",
        sampled_mask=prefix_mask(given, len(output)),
        behaviour=behaviour and (*behaviour, *[math.nan] * (len(output) - given)),
        grade=Grade(float(advantage > 0), advantage > 0, True, None),
        advantage=advantage,
        old_logps=tuple(value + 0.2 * source.random() for value in logps),
        ref_logps=tuple(value + 0.2 * source.random() for value in logps),
        teacher_prompt=shown.choice([(), tuple(shown.randrange(VOCABULARY) for _ in range(shown.randint(1, longest)))]),
    )


def make_holes(source: random.Random, rollout: Rollout) -> Rollout:
    """The rollout with random spans of its output not trained, as a tool's results are not; sometimes all of it."""
    edges = sorted(source.randint(0, len(rollout.output)) for _ in range(2 * source.randint(0, 2)))
    spans = list(zip(edges[::2], edges[1::2], strict=True))
    trained = [not any(first <= place < last for first, last in spans) for place in range(len(rollout.output))]
    # What is not trained was written by somebody else, or by the policy itself.
    sampled = rollout.sampled_mask or (True,) * len(rollout.output)
    written = [own and (kept or source.random() < 0.3) for own, kept in zip(sampled, trained, strict=True)]
    masks = {"loss_mask": trained, "sampled_mask": written}
    return replace(rollout, **{name: () if all(mask) else tuple(mask) for name, mask in masks.items()})
