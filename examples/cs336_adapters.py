"""Stanford CS336, assignment 5: adapters of its tests, implemented with qed.

Install qed, replace the assignment's `tests/adapters.py` with this file, and run its tests.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from qed.algorithms.parts import estimators, losses, pair_losses
from qed.data.demonstrations import Windows
from qed.data.prompts import alpaca
from qed.data.sources import local
from qed.data.token_store import TokenRow, build_store
from qed.grading.extract import NUMBER
from qed.rewards import multiple_choice
from qed.training.batch import collate
from qed.training.scoring import compute_label_logps
from qed.types import Problem, Rollout

LossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip"]


def run_tokenize_prompt_and_output(prompt_strs: list[str], output_strs: list[str], tokenizer: Any) -> dict[str, Tensor]:
    """Return `input_ids`, `labels` and `response_mask`, (B, longest - 1) each; both texts are tokenised separately."""
    texts = zip(prompt_strs, output_strs, strict=True)
    pairs = [[tuple(tokenizer.encode(text, add_special_tokens=False)) for text in pair] for pair in texts]
    rows = [Rollout(Problem("", "", ""), *pair, (), "", "stop") for pair in pairs]
    batch = collate(rows, pad=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
    return {"input_ids": batch.inputs, "labels": batch.labels, "response_mask": batch.mask.bool()}


def run_compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], dict[str, float]],
    rollout_responses: list[str],
    repeated_ground_truths: list[str],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Return advantages (R,), raw rewards (R,) and their statistics; rows of one prompt are adjacent."""
    assert len(rollout_responses) % group_size == 0, "the rollouts must be whole groups"
    graded = [reward_fn(*pair) for pair in zip(rollout_responses, repeated_ground_truths, strict=True)]
    rewards = torch.tensor([grade["reward"] for grade in graded], dtype=torch.float32)
    # Statistics in double precision, where rounding leaves equal rewards a standard deviation of 0.
    groups = [
        estimators.normalize_group(group, normalize_by_std, advantage_eps)
        for group in rewards.double().split(group_size)
    ]
    parts = {f"{name}_mean": sum(grade[name] for grade in graded) / len(graded) for name in graded[0]}
    spread = {"reward_std": float(rewards.std(correction=0)), "reward_min": float(rewards.min())}
    return torch.cat(groups).float(), rewards, {**parts, **spread, "reward_max": float(rewards.max())}


def run_compute_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of each next token in nats, (B, T) from (B, T, V), in at least float32."""
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    # A p of 0 has a log-prob of -inf, and 0 times that is NaN.
    return -(log_probs.exp() * log_probs.where(log_probs > -torch.inf, 0.0)).sum(-1)


def run_get_response_log_probs(
    model: torch.nn.Module, input_ids: Tensor, labels: Tensor, return_token_entropy: bool = False
) -> dict[str, Tensor]:
    """Return `log_probs` (B, T) of the labels and, if requested, `token_entropy` (B, T)."""
    logits = model(input_ids).logits
    found = {"log_probs": compute_label_logps(logits, labels)}
    return {**found, "token_entropy": run_compute_entropy(logits)} if return_token_entropy else found


def run_compute_naive_policy_gradient_loss(raw_rewards_or_advantages: Tensor, policy_log_probs: Tensor) -> Tensor:
    """Compute -A log pi, (B, T)."""
    return losses.compute_reinforce(policy_log_probs, raw_rewards_or_advantages, torch.ones_like(policy_log_probs))


def run_compute_grpo_clip_loss(
    advantages: Tensor, policy_log_probs: Tensor, old_log_probs: Tensor, cliprange: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the clipped loss (B, T), and which tokens were clipped."""
    everywhere = torch.ones_like(policy_log_probs)
    log_ratio = losses.compute_log_ratios(policy_log_probs, old_log_probs, everywhere)
    loss = losses.compute_clipped(log_ratio, advantages, everywhere, cliprange, cliprange)
    bound = loss.detach() > losses.compute_unclipped(log_ratio.detach(), advantages, everywhere)
    return loss, {"clipped": bound, "clip_fraction": bound.float().mean()}


def run_compute_policy_gradient_loss(
    policy_log_probs: Tensor,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the loss of a type (B, T) and its metadata; the arguments that the type needs are required."""
    if loss_type == "no_baseline":
        assert raw_rewards is not None, "no_baseline needs raw_rewards"
        return run_compute_naive_policy_gradient_loss(raw_rewards, policy_log_probs), {}
    assert advantages is not None, f"{loss_type} needs advantages"
    if loss_type == "reinforce_with_baseline":
        return run_compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    assert loss_type == "grpo_clip", f"there is no loss {loss_type!r}"
    assert old_log_probs is not None, "grpo_clip needs old_log_probs"
    assert cliprange is not None, "grpo_clip needs cliprange"
    return run_compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange)


def run_masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Compute the mean over elements in the mask; NaN for an empty slice."""
    return _masked_mean(tensor, mask, dim, empty=math.nan)


def run_masked_normalize(
    tensor: Tensor, mask: Tensor, dim: int | None = None, normalize_constant: float = 1.0
) -> Tensor:
    """Compute the sum over elements in the mask, divided by a constant."""
    return _masked_sum(tensor, mask, dim) / normalize_constant


def run_sft_microbatch_train_step(
    policy_log_probs: Tensor,
    response_mask: Tensor,
    gradient_accumulation_steps: int,
    normalize_constant: float | None = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the rows' mean of negative log-likelihood / constant / accumulation steps, and add its gradient."""
    constant = 1.0 if normalize_constant is None else normalize_constant
    sums = _masked_sum(-policy_log_probs, response_mask, -1) / constant
    loss = sums.mean() / gradient_accumulation_steps
    loss.backward()
    mean = _masked_mean(-policy_log_probs.detach(), response_mask)
    return loss.detach(), {"token_nll": mean, "response_tokens": response_mask.sum()}


def run_grpo_microbatch_train_step(  # noqa: PLR0913  the signature of the course's tests
    policy_log_probs: Tensor,
    response_mask: Tensor,
    gradient_accumulation_steps: int,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the rows' mean of mean token losses / accumulation steps, and add its gradient."""
    kept = response_mask.bool()
    # Log-probs after a response must not reach the exponential, whose derivative could be NaN.
    logps = policy_log_probs.where(kept, 0.0)
    old = None if old_log_probs is None else old_log_probs.where(kept, 0.0)
    tokens, metadata = run_compute_policy_gradient_loss(logps, loss_type, raw_rewards, advantages, old, cliprange)
    loss = _masked_mean(tokens, kept, -1).mean() / gradient_accumulation_steps
    loss.backward()
    if "clipped" in metadata:
        metadata["clip_fraction"] = _masked_mean(metadata["clipped"].to(tokens.dtype), kept)
    return loss.detach(), metadata


class PackedDataset(Dataset[dict[str, Tensor]]):
    """Windows of a token stream; each has `input_ids` and `labels`, (seq_length,)."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        window = self.windows[index]
        tokens = torch.tensor([*window.prompt, *window.output])
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def get_packed_sft_dataset(
    tokenizer: Any, dataset_path: str | os.PathLike[str], seq_length: int, shuffle: bool
) -> PackedDataset:
    """Return windows over the documents of a file of prompts and responses; `random` shuffles their order."""
    rows = [row for _, row in local.read_rows(str(Path(dataset_path)), "train")]
    if shuffle:
        random.shuffle(rows)
    documents = (_document(tokenizer, row["prompt"], row["response"]) for row in rows)
    store = build_store(TokenRow(number, [], document, False) for number, document in enumerate(documents))
    return PackedDataset(Windows(store, range(len(store)), seq_length))


def run_iterate_batches(dataset: Dataset[Any], batch_size: int, shuffle: bool) -> Iterable[Any]:
    """Return the batches of an epoch; the last may be short."""
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle)


def run_parse_mmlu_response(mmlu_example: dict[str, Any], model_output: str) -> str | None:
    """Return the letter that a response names; None if it is not one of the example's."""
    letter = multiple_choice.find_letter(model_output)
    return letter if letter in tuple(multiple_choice.LETTERS[: len(mmlu_example["options"])]) else None


def run_parse_gsm8k_response(model_output: str) -> str | None:
    """Return the digits of a response's last number, the denominator of a fraction; None without a number."""
    numbers = NUMBER.findall(model_output)
    return re.split("[/:]", re.sub(r"[,$€£%\\\s]", "", numbers[-1]))[-1].replace("−", "-") if numbers else None


def run_compute_per_instance_dpo_loss(
    lm: torch.nn.Module,
    lm_ref: torch.nn.Module,
    tokenizer: Any,
    beta: float,
    prompt: str,
    response_chosen: str,
    response_rejected: str,
) -> Tensor:
    """Compute DPO's loss of one pair on the device of `lm`, with log-probs of whole texts, as the prompts' cancel."""
    texts = [torch.tensor(_document(tokenizer, prompt, text)) for text in (response_chosen, response_rejected)]
    chosen, rejected = (_log_prob(lm, ids) for ids in texts)
    with torch.no_grad():
        references = [_log_prob(lm_ref, ids).to(chosen.device) for ids in texts]
    margin = (chosen - references[0]) - (rejected - references[1])
    return -pair_losses.log_sigmoid(beta * margin)


def _masked_sum(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum where the mask is not 0; other elements, even NaN, affect neither the value nor the gradient."""
    kept = tensor.where(mask.bool(), 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def _masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None, empty: float = 0.0) -> Tensor:
    """Compute the mean where the mask is not 0; `empty` for a slice without such elements."""
    count = _masked_sum(torch.ones_like(tensor), mask, dim)
    return (_masked_sum(tensor, mask, dim) / count.clamp(min=1)).where(count > 0, empty)


def _document(tokenizer: Any, prompt: str, response: str) -> list[int]:
    """Return the tokens of Alpaca's text, with the tokenizer's usual start and an end token."""
    text = alpaca.TEXT.replace("{instruction}", prompt) + response
    return [*tokenizer.encode(text), tokenizer.eos_token_id]


def _log_prob(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """Compute the log-prob of a text under a model, a scalar on its device."""
    ids = ids.to(next(model.parameters()).device)
    return compute_label_logps(model(ids[None, :-1]).logits[0], ids[1:]).sum()
