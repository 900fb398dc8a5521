"""The two bugs that arXiv 2604.23747 found in the SFT baselines of methods that mix demonstrations with RL.

DeepSpeed's optimizer with its state on the CPU (its pull requests 7967 and 7981) dropped the gradients of all
micro-batches of a step but one. OpenRLHF averaged the means of micro-batches, so that a token counted the more, the
fewer were in its micro-batch. Here a step of any number of micro-batches, wherever the optimizer's state is and on any
number of ranks, is the step of one large batch.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from making import make_model, make_rollout
from ranks import gather_from_ranks
from threaded import run_threads
from torch import Tensor, nn

from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.config.ranks_settings import ParallelSettings
from qed.config.settings import LearnerSettings
from qed.models.precision import cast_weights
from qed.training.batch import collate, cut_microbatches
from qed.training.joining import join_ranks
from qed.training.learner import Learner
from qed.training.parallel import ALONE, Parallel, read_full
from qed.types import Rollout

COUNTS = (1, 2, 5)  # micro-batches of a step
STEPS, RATE, LENGTH = 2, 1e-2, 40
MODEL = make_model()
OFFLOADS: dict[str, dict[str, Any]] = {
    "none": {},
    "state": {"optimizer": "adamw_offload"},
    "sampling": {"offload_for_sampling": True},
    "both": {"optimizer": "adamw_offload", "offload_for_sampling": True},
}
WORLD = 2
# What is sharded, when gradients are summed over the ranks, and the number of micro-batches.
OF_RANKS = [*(("full", "step", count) for count in COUNTS), *(("none", "step", count) for count in COUNTS)]
OF_RANKS += [("grads", "step", 5), ("grads", "microbatch", 5), ("full", "microbatch", 5)]


def list_rollouts(count: int = 10) -> list[Rollout]:
    """Answers of 1 to 40 tokens, with few short and few long ones in every step."""
    source = random.Random(0)
    rows = [make_rollout(source, source.choice([-1.0, 0.5]), longest=1 if number % 3 else 6) for number in range(count)]
    for number in range(0, count, 4):
        rows[number] = make_long(source, rows[number])
    return rows


def make_long(source: random.Random, rollout: Rollout) -> Rollout:
    """The rollout with an answer of 40 tokens, all sampled."""
    logps = tuple(-3 * source.random() for _ in range(LENGTH))
    changed = copy.copy(rollout)
    changed.sampled_mask, changed.behaviour = (), ()
    changed.output = tuple(source.randrange(23) for _ in range(LENGTH))
    changed.logps = changed.old_logps = changed.ref_logps = logps
    return changed


def find_budget(rollouts: Sequence[Rollout], count: int) -> int:
    """The tokens of a micro-batch with which the rows become so many."""
    batch = collate(rollouts)
    return next(budget for budget in range(1, 10**4) if len(cut_microbatches(batch, budget)) == count)


def train(name: str, offload: str, count: int, parallel: Parallel = ALONE, dtype: torch.dtype = torch.float64) -> Any:
    """The weights after some steps of so many micro-batches, with sampling between them."""
    rollouts = list_rollouts()
    model = copy.deepcopy(MODEL)
    cast_weights(model, dtype)
    cut = {"tokens_per_microbatch": find_budget(rollouts, count), "packing": False}
    learner = Learner(
        model,
        load_algorithm(name)(),
        LearnerSettings(lr=RATE, weight_decay=0.1, clip_norm=0.5, **cut, **OFFLOADS[offload]),
        length=LENGTH,
        precision=dtype,
        parallel=parallel,
    )
    for step in range(STEPS):
        learner.update(copy.deepcopy(rollouts), step)
        learner.weights()
    return {name: read_full(weight).detach().clone() for name, weight in learner.model.state_dict().items()}


def score_alone(model: nn.Module, rollout: Rollout) -> Tensor:
    """The log-probs of a row's answer, computed without anything of ours."""
    ids = torch.tensor([[*rollout.prompt, *rollout.output]])
    logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    labelled = logps.gather(1, ids[0, 1:, None])[:, 0]
    return labelled[len(rollout.prompt) - 1 :]


def train_by_hand() -> dict[str, Tensor]:
    """SFT in one large batch: the mean over all tokens of a step, clipped, and torch's AdamW."""
    model, rollouts = copy.deepcopy(MODEL), list_rollouts()
    split = [[p for p in model.parameters() if (p.ndim >= 2) == matrices] for matrices in (True, False)]
    groups = [{"params": part, "weight_decay": decay} for part, decay in zip(split, (0.1, 0.0), strict=True)]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (-torch.cat([score_alone(model, each) for each in rollouts]).mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def assert_same(found: Any, wanted: Any, case: object = "") -> None:
    # The model's norms and rotations are float32; a step moves a weight by up to 1e-2.
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, msg=lambda text: f"{case} {text}")


@pytest.mark.parametrize(("offload", "count"), [*((kind, 5) for kind in OFFLOADS), ("state", 1), ("state", 2)])
def test_sft_takes_the_steps_of_one_large_batch(offload: str, count: int) -> None:
    assert_same(train("sft", offload, count), train_by_hand())


@pytest.mark.parametrize("name", ["grpo", "luffy", "dpo"])
def test_offload_changes_no_step_of_other_losses(name: str) -> None:
    assert_same(train(name, "state", 5), train(name, "none", 1))


@pytest.mark.parametrize("count", [1, 5])
def test_offload_changes_no_step_of_weights_in_half_precision(count: int) -> None:
    """There the host holds the masters too."""
    wanted = train("sft", "none", count, dtype=torch.bfloat16)
    for offload in ("state", "both"):
        torch.testing.assert_close(train("sft", offload, count, dtype=torch.bfloat16), wanted, rtol=0, atol=0)


def train_as_rank() -> dict[tuple[str, str, int], Any]:
    """What a rank makes of all cases."""
    found = {}
    for shard, reduce, count in OF_RANKS:
        sharing = ParallelSettings(shard=shard, reduce=reduce)  # type: ignore[arg-type]
        offload = "both" if count == 2 else "state"
        found[shard, reduce, count] = train("sft", offload, count, join_ranks("cpu", sharing, 60.0))
    return found


def test_ranks_under_offload_take_the_steps_of_one_large_batch(tmp_path: Path) -> None:
    found = gather_from_ranks(train_as_rank, WORLD, tmp_path)
    wanted = train_by_hand()
    assert list(found) == OF_RANKS
    for case, weights in found.items():
        assert_same(weights, wanted, case)


def compute_gradient(name: str, count: int, parallel: Parallel = ALONE) -> Tensor:
    """The gradient of a step of so many micro-batches, all parameters in one vector."""
    rollouts = list_rollouts()
    settings = LearnerSettings(tokens_per_microbatch=find_budget(rollouts, count), packing=False)
    learner = Learner(copy.deepcopy(MODEL), load_algorithm(name)(), settings, length=LENGTH, parallel=parallel)
    learner.accumulate(rollouts)
    return torch.cat([p.grad.flatten() for p in learner.parameters if p.grad is not None])


@pytest.mark.parametrize("name", sorted(plugins.list_leaves("algorithms")))
def test_micro_batches_of_very_different_lengths_are_one_large_batch(name: str) -> None:
    whole = compute_gradient(name, 1)
    assert_same(compute_gradient(name, 5), whole)
    for own in run_threads(lambda parallel: compute_gradient(name, 5, parallel), WORLD):
        assert_same(own, whole)


def test_the_mean_of_means_would_be_another_gradient() -> None:
    """The rows of these tests are such that both bugs would show."""
    rollouts, model = list_rollouts(), copy.deepcopy(MODEL)
    parts = cut_microbatches(collate(rollouts), find_budget(rollouts, 5))
    assert len(parts) == 5
    means = [torch.cat([score_alone(model, rollouts[row]) for row in part]).mean() for part in parts]
    found = []
    for loss in (-torch.stack(means).mean(), -means[0] / 5):
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    whole = compute_gradient("sft", 1)
    for wrong in found:
        assert float((wrong - whole).norm() / whole.norm()) > 0.2
        assert float(torch.cosine_similarity(wrong, whole, 0)) < 0.98
