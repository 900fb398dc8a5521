"""Law 2 over processes: ranks that share a step's rows, over gloo, take the step of one process.

One group of processes checks all cases, because each begins as a copy of this one, and models are sharded in place.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from making import make_model, make_rollout
from ranks import gather_from_ranks
from torch import Tensor

from qed.config.plugins import load_algorithm
from qed.config.ranks_settings import ParallelSettings
from qed.config.settings import LearnerSettings, ModelSettings
from qed.models import lora
from qed.models.load import prepare_model
from qed.training.joining import join_ranks
from qed.training.learner import Learner
from qed.training.parallel import ALONE, Parallel, read_full
from qed.types import Rollout

WORLD, STEPS = 3, 2
MIXED = {"kl": 0.1, "entropy": 0.01, "correction": "token_truncate", "correction_normalize": True}
# The algorithm and its settings, and those of the learner.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sft": ("sft", {}, {}),
    "grpo": ("grpo", MIXED, {}),
    "grpo in rows": ("grpo", MIXED, {"packing": False}),
    "grpo in two passes": ("grpo", {"top_entropy": 0.4}, {}),
    "pairs": ("dpo", {}, {}),
    "luffy": ("luffy", {}, {}),
    "opd": ("opd", {"divergence": "jsd", "reward": 0.5}, {}),
    "opsd": ("opsd", {"reward": 0.5}, {}),
    "opsd live": ("opsd", {"teacher_weights": "live", "divergence": "reverse_kl"}, {}),
    "clipped": ("grpo", MIXED, {"clip_norm": 0.01}),
    "skipped": ("grpo", MIXED, {"skip_norm": 1e-9}),
}
SHARDS = ("none", "grads", "full")
MODELS = ("tied", "untied", "adapted", "recomputing")


def build(kind: str) -> Any:
    model: Any = make_model(tie_word_embeddings=kind != "untied")
    if kind == "recomputing":
        model = prepare_model(
            model, ModelSettings(gradient_checkpointing=True, precision="float64"), torch.device("cpu")
        )
    if kind == "adapted":
        model = lora.add_adapters(model, ModelSettings(lora_rank=2), 0)
        for number, (name, weight) in enumerate(model.named_parameters()):
            if "lora_B" in name:
                torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(number))
        model.to(torch.float64)
    return model


def list_rollouts(step: int) -> list[Rollout]:
    """Rows of several lengths; in the last step fewer than there are ranks."""
    source = random.Random(step)
    return [make_rollout(source, advantage=source.choice([-1.0, 0.5])) for _ in range(2 if step == STEPS - 1 else 8)]


def train(name: str, kind: str, parallel: Parallel) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Some steps of a case: their metrics, and the weights behind them."""
    algorithm, settings, learning = CASES[name]
    learner = Learner(
        build(kind),
        load_algorithm(algorithm)(**settings),
        LearnerSettings(lr=1e-2, tokens_per_microbatch=40, **learning),
        length=11,
        precision=torch.float64,
        parallel=parallel,
    )
    metrics = []
    for step in range(STEPS):
        rollouts = copy.deepcopy(list_rollouts(step))
        learner.score(rollouts, old=True)
        metrics.append(learner.update(rollouts, step))
        metrics[-1].pop("train/computed_tokens")  # of which there are more where a shared prompt is cut apart
    return metrics, {name: read_full(weight).detach().clone() for name, weight in learner.model.state_dict().items()}


def list_cases() -> list[tuple[str, str]]:
    """Every case with one model, and a case without and with a teacher with every model."""
    return [(name, "tied") for name in CASES] + [(name, kind) for name in ("grpo", "opsd") for kind in MODELS[1:]]


def train_as_rank() -> dict[tuple[str, str, str], Any]:
    """What a rank makes of all cases, each way to shard."""
    found = {}
    for shard in SHARDS:
        parallel = join_ranks("cpu", ParallelSettings(shard=shard), 60.0)  # type: ignore[arg-type]
        found.update({(shard, *case): train(*case, parallel) for case in list_cases()})
    return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What several ranks made of all cases."""
    return gather_from_ranks(train_as_rank, WORLD, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone() -> Callable[[str, str], Any]:
    """What one process makes of a case."""
    return lambda name, kind: train(name, kind, ALONE)


@pytest.mark.xdist_group("ranks share a step")  # else each worker would start its own ranks
@pytest.mark.parametrize(("name", "kind"), list_cases())
def test_ranks_take_the_steps_of_one_process(
    shared: Any, alone: Callable[[str, str], Any], name: str, kind: str
) -> None:
    metrics, weights = alone(name, kind)
    for shard in SHARDS:
        own_metrics, own_weights = shared[shard, name, kind]
        for before, after in zip(metrics, own_metrics, strict=True):
            assert before == pytest.approx(after, rel=1e-8, abs=1e-10), shard
        torch.testing.assert_close(own_weights, weights, rtol=1e-8, atol=1e-10)
