"""Law 2: a loss is a sum, so micro-batches, row order, padding and idle rows cannot change the gradient of a step."""

from __future__ import annotations

import copy
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_model, make_rollout
from threaded import run_threads

from qed.algorithms.base import Algorithm, Average, compute_token_weights
from qed.algorithms.parts.corrections import CorrectionKind, RejectionKind
from qed.algorithms.parts.divergences import Divergence
from qed.algorithms.parts.losses import CispoClip
from qed.algorithms.parts.pair_losses import FDivergence, Preference
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.scales import Scale
from qed.algorithms.parts.shaping import Shaping, TokenShaping
from qed.algorithms.parts.surrogates import SurrogateKind
from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.config.settings import LearnerSettings
from qed.rollout.stages import flatten
from qed.training.batch import COLUMNS, Batch, collate, cut_microbatches
from qed.training.learner import Learner
from qed.training.parallel import ALONE, Parallel
from qed.types import Rollout

ALL = sorted(plugins.list_leaves("algorithms"))
AVERAGES = list(get_args(Average))
MODEL = make_model(num_hidden_layers=1)  # the loss lies above the layers
REFERENCE = copy.deepcopy(MODEL)  # whose log-probs are given with the rollouts: it is never computed
# Bounds are such that the rollouts of these tests, whose old log-probs are up to 0.2 above the sampled ones, fall on
# both of their sides.
BOUNDS: dict[str, Any] = {"correction_low": 1.05, "correction_high": 1.5}
REJECTED = {"k1": (0.85, 0.95), "k2": (0.0, 0.005), "k3": (0.0, 0.005)}
SINGLE: list[dict[str, Any]] = [
    *({"surrogate": surrogate} for surrogate in get_args(SurrogateKind)),
    *({"surrogate": "cispo", "cispo_clip": clip} for clip in get_args(CispoClip)),
    *({"correction": correction, **BOUNDS} for correction in get_args(CorrectionKind)),
    *(
        {"rejection": kind, "rejection_low": low, "rejection_high": high}
        for kind in get_args(RejectionKind)
        for low, high in [REJECTED.get(kind[-2:], (0.5, 2.0))]
    ),
    {
        "rejection": ("token_k1", "sequence_mean_k3", "sequence_max_k2"),
        "rejection_low": (0.85, 0.0, 0.0),
        "rejection_high": (0.98, 0.02, 0.02),
    },
    *({"average": "constant", "scale": scale} for scale in get_args(Scale)),
    {"clip_dual": 1.5, "ratio_clamp": 0.5},
    {"offpolicy_limit": 0.1},
    *({"kl": 0.1, "kl_estimator": estimator} for estimator in get_args(Divergence)),
    {"kl": 0.1, "kl_importance": True},
    {"kl": 0.1, "kl_place": "reward", "kl_target": 0.1},
    {"entropy": 0.01, "entropy_target": 1.0},
    {"entropy": 0.01, "entropy_target": 1.0, "entropy_on": False},
    {"top_entropy": 0.4},
    {"top_entropy": 0.4, "kl": 0.1, "entropy": 0.01, "correction": "token_truncate", **BOUNDS},
]
MIXED: list[dict[str, Any]] = [
    {"correction": "token_truncate", "correction_normalize": True, "scale": "trl", **BOUNDS},
    {"correction": "sequence_mask", "correction_normalize": True, "clip_dual": 3.0, **BOUNDS},
    {"correction": "bypass", "rejection": "sequence_mean_k3", "rejection_high": 0.005, "scale": "verl"},
    {"correction": "geometric_mask", "ratio_clamp": 0.5, "offpolicy_limit": 0.1, **BOUNDS},
]
# What an algorithm refuses, because its ratio is to the sampler's log-probs already.
BARRED: dict[str, dict[str, Any]] = {name: {"correction": "none"} for name in ("dppo", "ipo")}
# What pulls at rows without an advantage too.
PULLED: dict[str, dict[str, float]] = {name: {"dppo_square": 0.0} for name in ("dppo", "ipo")}
PULLED |= {"opsd": {"distil": 0.0, "reward": 1.0}}


# Settings that take other ways through an algorithm than its defaults do.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "luffy": [
        {"shaping": Shaping(drop_above=0.2)},
        {
            "shaping": Shaping(kind="p_logp", own_kind="regularized", behaviour=True, most=2.0, least=0.1),
            "clip_high": 0.2,
        },
    ],
    "opd": [{"reward": 0.5, "clip_low": 0.2}],
    "prefix_rft": [{"top_prefix": 1.0}, {"top_prefix": 0.5, "top_entropy": 0.5}],
    "uft": [{"hint": 0.0}, {"hint": 0.5, "clip_low": 0.3}],
    "rl_sft": [{"sft": 0.3, "clip_low": 0.2}],
    "chord": [{"phi": False, "mu": 0.3}],
    "hpt": [{"sft": 0.3, "clip_low": 0.2}],
    "srft": [
        {"positive": 1.0, "surrogate": "clip", "clip_low": 0.2},
        {"signs": False, "entropy_over": "token", "sft_slope": 1.0},
    ],
    "opsd": [
        {"reward": 0.5, "skip_tokens": 2, "divergence": "jsd"},
        {"teacher_weights": "live", "divergence": "reverse_kl", "divergence_clip": 1e-3},
        {"divergence": "sampled", "reward": 0.5, "clip_low": 0.2},
    ],
    "exgrpo": [
        {"mixed": True},
        {"mixed": True, "corrected": False},
        {"mixed": True, "shaping": TokenShaping(drop_above=0.2)},
        {
            "mixed": True,
            "shaping": TokenShaping(kind="p_logp", own_kind="regularized", most=2.0, least=0.1),
            "clip_high": 0.2,
        },
    ],
}


@pytest.fixture(scope="module", autouse=True)
def known_logits() -> Iterator[None]:
    """Each of a thousand learners asks whether it knows the logits of the one model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qed.training.learner.require_known_logits", lambda model: None)
        yield


def variants(name: str) -> list[Algorithm]:
    """An algorithm with each average, with KL and entropy or each loss of preference pairs where it has them, and what
    else its family can be set to."""
    kind = load_algorithm(name)
    extras: list[dict[str, Any]] = [{}]
    if issubclass(kind, PolicyGradient):
        extras += [{"kl": 0.1, "entropy": 0.01}]
    if name == "dpo":  # its leaves differ in where pairs come from alone
        extras += [{"losses": (loss,), "label_smoothing": 0.1} for loss in get_args(Preference)]
        extras += [{"divergence": divergence} for divergence in get_args(FDivergence)]
        extras += [{"losses": ("bco_pair", "aot_unpaired", "sft"), "loss_weights": (0.5, 2.0, 1.0)}]
        extras += [{"losses": ("sigmoid", "sft"), "weighted": True, "length_alpha": 0.3}]
    extras += SETTINGS.get(name, [])
    if not issubclass(kind, PolicyGradient) or name == "grpo":
        plain = [kind(average=average, **extra) for average in AVERAGES for extra in extras]
        plain += [kind(average="constant", average_length=3)]
    else:
        # Each average and each setting by itself on one leaf, because the leaves differ in their defaults alone.
        plain = [kind(**extra) for extra in extras]
    if not issubclass(kind, PolicyGradient):
        return plain
    which = ALL.index(name) % len(MIXED)
    chosen = list(zip(AVERAGES, MIXED, strict=True)) if name == "grpo" else [(AVERAGES[which], MIXED[which])]
    mixed = [kind(**{"average": average, **extra, **BARRED.get(name, {})}) for average, extra in chosen]
    return plain + mixed + ([kind(**extra) for extra in SINGLE] if name == "grpo" else [])


def bundles(source: random.Random, algorithm: Algorithm, count: int, **options: Any) -> list[list[Rollout]]:
    """So many times the rows that belong together."""
    return [[make_rollout(source, **options) for _ in range(algorithm.together)] for _ in range(count)]


def gradient(
    algorithm: Algorithm,
    rollouts: Sequence[Rollout],
    budget: int,
    *,
    parallel: Parallel = ALONE,
    packing: bool = False,
) -> torch.Tensor:
    """The gradient of one step, all parameters in one vector."""
    settings = LearnerSettings(tokens_per_microbatch=budget, packing=packing)
    # Ranks are processes, and each has a model of its own.
    model = MODEL if parallel.world == 1 else copy.deepcopy(MODEL)
    reference = REFERENCE if algorithm.reference and parallel.world == 1 else None
    learner = Learner(model, algorithm, settings, temperature=0.7, length=11, reference=reference, parallel=parallel)
    learner.optimizer.zero_grad(set_to_none=True)
    learner.accumulate(rollouts)
    return torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in learner.parameters])


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 7), budget=st.integers(1, 90), which=st.integers(0, 999))
def test_cuts_and_order_change_nothing(name: str, seed: int, count: int, budget: int, which: int) -> None:
    source = random.Random(seed)
    algorithm = variants(name)[which % len(variants(name))]
    rows = bundles(source, algorithm, count)
    whole = gradient(algorithm, flatten(rows), budget=10**6)
    assert_same(gradient(algorithm, flatten(rows), budget), whole)
    assert_same(gradient(algorithm, flatten(source.sample(rows, count)), budget), whole)


@pytest.mark.parametrize("name", ALL)
def test_ranks_add_up(name: str) -> None:
    """Two ranks have the gradient of one process; and so have five, of which not each has a micro-batch."""
    rollouts = [make_rollout(random.Random(seed)) for seed in range(4)]
    algorithm = load_algorithm(name)()
    alone = gradient(algorithm, rollouts, budget=20)
    for world in (2, 5):
        for own in run_threads(lambda parallel: gradient(algorithm, rollouts, 20, parallel=parallel), world):
            assert_same(own, alone)


@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row alone, without a padded place, gives what one wide batch gives, also with the last bundle first; and it
    does not matter what is padded with."""
    rollouts = [make_rollout(random.Random(seed), longest=3 + 3 * seed) for seed in range(4)]
    for algorithm in variants(name):
        whole = gradient(algorithm, rollouts, budget=10**6)
        assert_same(gradient(algorithm, rollouts, budget=1), whole)
        turned = rollouts[-algorithm.together :] + rollouts[: -algorithm.together]
        assert_same(gradient(algorithm, turned, budget=1), whole)
        with monkeypatch.context() as patch:
            patch.setattr("qed.training.learner.collate", lambda rows, dtype: collate(rows, pad=7, dtype=dtype))
            assert_same(gradient(algorithm, rollouts, budget=10**6), whole)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("budget", [60, 10**6])
def test_packing_changes_nothing(name: str, budget: int) -> None:
    """Rows that are computed side by side, behind one prompt where they share it, have the gradient that they have each
    alone."""
    rollouts = [make_rollout(random.Random(seed), longest=2 + 3 * (seed % 5)) for seed in range(12)]
    for number, rollout in enumerate(rollouts[:8]):
        rollout.prompt = (3, 1, 4, 1, 5, 9, 2, 6, 5) if number < 4 else (2, 7, 1, 8, 2, 8, 1, 8)
    algorithm = load_algorithm(name)()  # which rows share a computation does not depend on what the loss is
    packed, alone = gradient(algorithm, rollouts, budget, packing=True), gradient(algorithm, rollouts, budget)
    # The model's norms and rotations are float32, so equal means equal at that precision.
    assert float((packed - alone).norm()) <= 1e-6 * float(alone.norm())


@pytest.mark.parametrize("name", ALL)
def test_rows_that_are_not_live_count_but_add_nothing(name: str) -> None:
    """Computing every row gives the gradient of the live ones, also where a row without an advantage is given."""
    rollouts = [make_rollout(random.Random(seed), advantage=0.0 if seed % 2 else None) for seed in range(6)]
    assert any(rollout.given and not rollout.advantage for rollout in rollouts)
    for algorithm in variants(name):
        everything = type("Everything", (type(algorithm),), {"has_gradient": lambda self, batch: batch.mask.any(1)})
        computed = everything(**{field.name: getattr(algorithm, field.name) for field in fields(algorithm)})
        assert_same(gradient(algorithm, rollouts, 40), gradient(computed, rollouts, 40))


def test_a_micro_batch_is_computed_beside_the_live_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of all rows is gone by then, and no copy holds more places than it shows."""
    rollouts = [make_rollout(random.Random(seed), advantage=float(seed < 4), longest=3 + 5 * seed) for seed in range(6)]
    learner = Learner(MODEL, load_algorithm("grpo")(), LearnerSettings(tokens_per_microbatch=20, packing=False))
    collated, backward, seen = Learner.collate, Learner._backward, []
    whole: list[weakref.ref[torch.Tensor]] = []

    def collating(self: Learner, rows: Sequence[Rollout]) -> Batch:
        found = collated(self, rows)
        whole.extend(weakref.ref(getattr(found, name)) for name in COLUMNS)
        return found

    def computing(self: Learner, part: Batch) -> Any:
        columns = [getattr(part, name) for name in COLUMNS]
        seen.append(all(column.untyped_storage().nbytes() == column.nbytes for column in columns))
        seen.append(all(one() is None for one in whole))
        return backward(self, part)

    monkeypatch.setattr(Learner, "collate", collating)
    monkeypatch.setattr(Learner, "_backward", computing)
    learner.optimizer.zero_grad()
    assert learner.accumulate(rollouts)["train/live_rows"] == 4
    assert len(seen) > 2
    assert all(seen)


# These imitate what is given whatever it earned.
IMITATING = {"chord", "hpt", "relift", "rl_sft", "srft", "uft"}


@pytest.mark.parametrize("name", [name for name in ALL if load_algorithm(name).by_advantage and name not in IMITATING])
def test_zero_advantage_gives_zero_gradient(name: str) -> None:
    rollouts = [make_rollout(random.Random(seed), advantage=0.0) for seed in range(4)]
    for average in AVERAGES:
        assert not gradient(load_algorithm(name)(average=average, **PULLED.get(name, {})), rollouts, 40).any()


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8), length=st.integers(1, 20))
def test_weights_are_what_each_average_promises(lengths: list[int], length: int) -> None:
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.float64)
    for row, count in enumerate(lengths):
        mask[row, :count] = 1
    token, sequence, constant = (
        compute_token_weights(mask, average, length) for average in ("token", "sequence", "constant")
    )
    torch.testing.assert_close(token.sum(), torch.tensor(1.0).double())
    torch.testing.assert_close(sequence.sum(1), torch.full((len(lengths),), 1 / len(lengths)).double())
    torch.testing.assert_close(constant.sum(1), mask.sum(1) / (len(lengths) * length))
    for weights in (token, sequence, constant):
        assert not weights[mask == 0].any()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12), budget=st.integers(1, 120))
def test_a_cut_keeps_every_row_whole_and_within_the_budget(seed: int, count: int, budget: int) -> None:
    source = random.Random(seed)
    batch = collate([make_rollout(source) for _ in range(count)])
    parts = cut_microbatches(batch, budget)
    assert sorted(row for part in parts for row in part) == list(range(count))
    for part in parts:
        piece = batch.select(part)
        assert piece.inputs.numel() <= budget or len(part) == 1
        assert (piece.attention.sum(1) == batch.attention[part].sum(1)).all()
