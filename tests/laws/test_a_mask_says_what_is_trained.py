"""The masks of a rollout: a tool's result, an interleaved turn and a given prefix are the same thing to the loss."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import VOCABULARY, make_holes, make_model, make_rollout, prefix_mask
from test_a_loss_is_a_sum import ALL, assert_same, gradient, known_logits, variants
from threaded import run_threads

from qed.algorithms.grpo import Grpo
from qed.algorithms.luffy import Luffy
from qed.algorithms.parts.mixture import OffPolicyAdvantages
from qed.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from qed.algorithms.sft import Sft
from qed.config.plugins import load_algorithm
from qed.config.settings import LearnerSettings
from qed.errors import ModelError
from qed.rollout.append import append_tokens
from qed.rollout.describe import describe_groups
from qed.rollout.stages import assign_advantages, flatten
from qed.training import scoring
from qed.training.batch import Batch, collate, measure_mismatch
from qed.training.learner import Learner
from qed.training.logps import compute_logps
from qed.training.scoring import score_with
from qed.types import Problem, Rollout

SEEDS = st.integers(0, 10**6)
__all__ = ["known_logits"]  # a fixture of these tests too


def with_holes(seed: int, count: int, **options: Any) -> list[Rollout]:
    """Rollouts of which random spans are not trained."""
    source = random.Random(seed)
    return [make_holes(source, make_rollout(source, **options)) for _ in range(count)]


def bare(rollout: Rollout) -> Rollout:
    """The rollout with every token trained, and the same tokens sampled."""
    return replace(rollout, loss_mask=())


def masked_by_hand(rollouts: Sequence[Rollout], dtype: torch.dtype) -> Batch:
    """The batch of rollouts without a loss mask, masked label by label, also behind the prompts that a teacher sees."""
    batch = mask_labels(collate([bare(rollout) for rollout in rollouts], dtype=dtype), rollouts)
    if batch.teacher is None:
        return batch
    shown = [replace(rollout, prompt=rollout.teacher_prompt or rollout.prompt) for rollout in rollouts]
    return replace(batch, teacher=mask_labels(batch.teacher, shown))


def mask_labels(batch: Batch, rollouts: Sequence[Rollout]) -> Batch:
    """The batch with the tokens of each rollout masked that it does not train."""
    mask, expert = batch.mask.clone(), batch.expert.clone()
    for row, rollout in enumerate(rollouts):
        for place, trained in enumerate(rollout.trained):
            label = len(rollout.prompt) - 1 + place
            assert batch.labels[row, label] == rollout.output[place]
            mask[row, label] *= trained
            expert[row, label] *= trained
    return replace(batch, mask=mask, expert=expert)


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    """The model's norms and rotations are float32, so equal in other shapes means equal at that precision."""
    assert float((one - other).norm()) <= 1e-6 * float(other.norm())


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 4), which=st.integers(0, 999))
def test_what_is_not_trained_is_as_if_its_labels_were_masked(name: str, seed: int, count: int, which: int) -> None:
    """Whatever log-probs and advantages stand there, and whoever wrote it."""
    algorithm = variants(name)[which % len(variants(name))]
    rollouts = with_holes(seed, count * algorithm.together)
    found = gradient(algorithm, rollouts, budget=10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qed.training.learner.collate", masked_by_hand)
        assert_same(gradient(algorithm, rollouts, budget=10**6), found)
    source = random.Random(seed)
    assert torch.equal(gradient(algorithm, [disturbed(rollout, source) for rollout in rollouts], 10**6), found)


def disturbed(rollout: Rollout, source: random.Random) -> Rollout:
    """The rollout with other figures at the tokens that are not trained."""

    def anew(values: Sequence[float] | None) -> tuple[float, ...]:
        pairs = zip(values or (), rollout.trained, strict=True)
        return tuple(value if trained else -5 * source.random() for value, trained in pairs)

    advantage = (
        rollout.advantage if isinstance(rollout.advantage, tuple) else (rollout.advantage,) * len(rollout.output)
    )
    return replace(
        rollout,
        advantage=anew(advantage),
        logps=anew(rollout.logps),
        old_logps=anew(rollout.old_logps),
        ref_logps=anew(rollout.ref_logps),
        behaviour=anew(rollout.behaviour) if rollout.behaviour else (),
        sampled_mask=tuple(own == trained for own, trained in zip(rollout.on_policy, rollout.trained, strict=True)),
    )


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 4), budget=st.integers(1, 90), which=st.integers(0, 999))
def test_a_beginning_that_is_not_trained_is_part_of_the_prompt(
    name: str, seed: int, count: int, budget: int, which: int
) -> None:
    """Cut to micro-batches or not."""
    algorithm = variants(name)[which % len(variants(name))]
    source = random.Random(seed)
    rows, moved = [], []
    for _ in range(count * algorithm.together):
        rollout = make_rollout(source)
        first = source.randrange(len(rollout.output))
        rows.append(replace(rollout, loss_mask=prefix_mask(first, len(rollout.output))))
        columns = ("output", "logps", "sampled_mask", "behaviour", "old_logps", "ref_logps")
        rest: dict[str, Any] = {column: getattr(rollout, column)[first:] for column in columns}
        given = rollout.output[:first]
        shown = rollout.teacher_prompt and rollout.teacher_prompt + given
        moved.append(replace(rollout, prompt=rollout.prompt + given, teacher_prompt=shown, **rest))
    assert_same(gradient(algorithm, rows, budget), gradient(algorithm, moved, 10**6))


@pytest.mark.parametrize("surrogate", ["clip", "plain", "cispo", "sapo", "dppo", "sft"])
@settings(max_examples=4, deadline=None)
@given(seed=SEEDS)
def test_an_answer_in_two_turns_is_two_answers(surrogate: Any, seed: int) -> None:
    """The first turn, and the second behind the first and what was said in between: with the mean over tokens they add
    up to the answer that holds all three."""
    source = random.Random(seed)
    turns = [make_rollout(source, advantage=0.7) for _ in range(3)]
    said = turns[1].output
    zeros = (0.0,) * len(said)
    both = replace(
        turns[0],
        output=turns[0].output + said + turns[2].output,
        logps=turns[0].logps + zeros + turns[2].logps,
        old_logps=(turns[0].old_logps or ()) + zeros + (turns[2].old_logps or ()),
        ref_logps=(turns[0].ref_logps or ()) + zeros + (turns[2].ref_logps or ()),
        sampled_mask=turns[0].on_policy + (False,) * len(said) + turns[2].on_policy,
        loss_mask=(True,) * len(turns[0].output) + (False,) * len(said) + (True,) * len(turns[2].output),
        behaviour=(),
    )
    apart = [replace(turns[0], behaviour=()), replace(turns[2], behaviour=())]
    apart[1].prompt = turns[0].prompt + turns[0].output + said
    algorithm = Sft() if surrogate == "sft" else Grpo(average="token", surrogate=surrogate, kl=0.1, entropy=0.01)
    assert_close(gradient(algorithm, [both], 10**6), gradient(algorithm, apart, 10**6))


def test_grpo_with_a_tools_result_by_hand() -> None:
    """Two own tokens, a result of three, one own token: A / 3 for each own one, and nothing for the others."""
    rollout = Rollout(Problem("p", "?", "1"), (4, 5), (2, 3), (-1.0, -2.0), "", "stop", advantage=1.5)
    rollout = append_tokens(rollout, (7, 8, 9), sampled=False, trained=False)
    rollout = append_tokens(rollout, (1,), (-0.5,))
    assert rollout.loss_mask == rollout.sampled_mask == (True, True, False, False, False, True)
    assert rollout.logps == (-1.0, -2.0, 0.0, 0.0, 0.0, -0.5)
    assert (rollout.given, rollout.trained_count, rollout.is_on_policy) == (0, 3, True)
    batch = collate([rollout], dtype=torch.float64)
    algorithm = Grpo(clip_high=9.0)
    batch = batch.with_weights(algorithm.weights(batch, 99))
    logps = (batch.old_logps + 0.25).requires_grad_()
    loss, _ = algorithm.loss(batch, logps, torch.zeros_like(logps))
    (slope,) = torch.autograd.grad(loss, logps)
    each = -1.5 * math.exp(0.25) / 3
    assert float(loss.detach()) == pytest.approx(3 * each)
    assert slope.tolist() == [[0, pytest.approx(each), pytest.approx(each), 0, 0, 0, pytest.approx(each)]]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=4, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 6), budget=st.integers(1, 90))
def test_cuts_order_and_ranks_change_nothing_beside_holes(name: str, seed: int, count: int, budget: int) -> None:
    algorithm = load_algorithm(name)()
    rollouts = with_holes(seed, count * algorithm.together)
    whole = gradient(algorithm, rollouts, 10**6)
    assert_same(gradient(algorithm, rollouts, budget), whole)
    assert_same(gradient(algorithm, rollouts[-algorithm.together :] + rollouts[: -algorithm.together], budget), whole)
    for shared in run_threads(lambda parallel: gradient(algorithm, rollouts, budget, parallel=parallel), 2):
        assert_same(shared, whole)


@pytest.mark.parametrize("name", ["grpo", "gspo", "luffy", "exgrpo", "sft", "dpo"])
@pytest.mark.parametrize("budget", [60, 10**6])
def test_packing_changes_nothing_beside_holes(name: str, budget: int) -> None:
    """Also where rows of one prompt begin with the same tokens that are not trained, or with some of them."""
    rollouts = with_holes(3, 12, longest=14)
    for number, rollout in enumerate(rollouts[:8]):
        rollout.prompt = (3, 1, 4, 1, 5, 9, 2, 6, 5)
        if number < 4:
            rollout.output = (7, 8, *rollout.output)[: len(rollout.output)]
            rollout.loss_mask = prefix_mask(1 + number % 2, len(rollout.output))[: len(rollout.output)]
    algorithm = load_algorithm(name)()
    packed, alone = gradient(algorithm, rollouts, budget, packing=True), gradient(algorithm, rollouts, budget)
    assert_close(packed, alone)


@given(seed=SEEDS, length=st.integers(0, 3))
def test_scores_stand_at_the_tokens_that_they_are_of(seed: int, length: int) -> None:
    """Of trained tokens the log-probs of the model, of the others 0; also without a prompt, where the first token is no
    label."""
    source, model = random.Random(seed), make_model()
    rows = [make_holes(source, make_rollout(source)) for _ in range(3)]
    rows[0].prompt = rows[0].prompt[: length or len(rows[0].output) < 2]
    Learner(model, Grpo(), LearnerSettings(tokens_per_microbatch=20)).score(rows, old=True)
    for rollout in rows:
        with torch.no_grad():
            logits = model(torch.tensor([rollout.prompt + rollout.output])).logits[0].log_softmax(-1)
        for place, (score, trained) in enumerate(zip(rollout.old_logps or (), rollout.trained, strict=True)):
            before = len(rollout.prompt) + place - 1
            own = float(logits[before, rollout.output[place]]) if trained and before >= 0 else 0.0
            assert score == pytest.approx(own, abs=1e-5)
        again = collate([rollout], dtype=torch.float64)
        with torch.no_grad():
            logps, _ = compute_logps(model, again, 1.0)
        torch.testing.assert_close(again.old_logps, logps, rtol=1e-5, atol=1e-5)


METHODS = [
    Grpo(),
    Grpo(kl=0.1, kl_place="reward", normalize_std=False),
    Grpo(estimator="opo"),
    Grpo(whiten=True, estimator="leave_one_out"),
    ReinforcePlusPlus(),
    ReinforcePlusPlus(discount=0.8, kl=0.1),
    Grpo(estimator="remax", kl=0.1, kl_place="reward"),
    Luffy(mixture=OffPolicyAdvantages(given_weight=0.5, own_weight=2.0)),
    Luffy(mixture=OffPolicyAdvantages(statistics="split", given_advantage=3.0)),
]


@pytest.mark.parametrize("method", METHODS, ids=range(len(METHODS)))
@given(seed=SEEDS)
def test_credit_passes_over_what_is_not_trained(method: Grpo, seed: int) -> None:
    """A trained token has the advantage that it has in an answer without the others: lengths, discounts, whitening and
    a KL in the reward are of trained tokens."""
    groups = [with_holes(seed, 4), with_holes(seed + 1, 3)]
    for group in groups:
        group[-1].source = "greedy"
    without = [[trained_alone(rollout) for rollout in group] for group in groups]
    assign_advantages(groups, method)
    assign_advantages(without, method)
    for rollout, alone in zip(flatten(groups), flatten(without), strict=True):
        assert of_tokens(rollout) == pytest.approx(of_tokens(alone))
        assert not isinstance(rollout.advantage, tuple) or len(rollout.advantage) == len(rollout.output)


def trained_alone(rollout: Rollout) -> Rollout:
    """The rollout without the tokens that are not trained."""
    columns: dict[str, Any] = {}
    for column in ("output", "logps", "sampled_mask", "behaviour", "old_logps", "ref_logps"):
        columns[column] = tuple(compress(getattr(rollout, column), rollout.trained))
    return replace(rollout, loss_mask=(), **columns)


def of_tokens(rollout: Rollout) -> list[float]:
    """The advantages of the trained tokens."""
    own = rollout.advantage if isinstance(rollout.advantage, tuple) else (rollout.advantage,) * len(rollout.output)
    return list(compress(own, rollout.trained))


@given(seed=SEEDS)
def test_an_answer_written_turn_by_turn_has_a_mask_for_every_token(seed: int) -> None:
    source = random.Random(seed)
    rollout = Rollout(Problem("p", "?", "1"), (5,), (), (), "", "length")
    expected: list[tuple[int, float, bool, bool]] = []
    for _ in range(source.randint(0, 4)):
        tokens = [source.randrange(VOCABULARY) for _ in range(source.randint(0, 3))]
        own, trained = source.choice([(True, True), (False, False), (False, True), (True, False)])
        logps = [-source.random() for _ in tokens] if own else []
        rollout = append_tokens(rollout, tokens, logps, sampled=own, trained=trained)
        expected += zip(tokens, logps or [0.0] * len(tokens), [own] * len(tokens), [trained] * len(tokens), strict=True)
    own_mask = rollout.sampled_mask or (True,) * len(rollout.output)
    assert list(zip(rollout.output, rollout.logps, own_mask, rollout.trained, strict=True)) == expected
    assert rollout.on_policy == tuple(own and trained for _, _, own, trained in expected)
    assert rollout.off_policy == tuple(trained and not own for _, _, own, trained in expected)
    assert (rollout.sampled_mask == ()) == all(own for _, _, own, _ in expected)
    with pytest.raises(ValueError, match="one per token"):
        replace(rollout, loss_mask=(True,) * (len(rollout.output) + 1))


def test_what_a_sampler_wrote_is_compared_where_it_is_trained() -> None:
    """A log-prob of exactly 0 is one; a given token, a tool's, an unknown one and a demonstration's are none."""
    own = Rollout(Problem("p", "?", "1"), (4,), (2, 3), (0.0, math.nan), "", "stop")
    given_one = replace(own, logps=(0.0, -1.0), sampled_mask=(False, True))
    tool = replace(own, logps=(-1.0, -1.0), loss_mask=(True, False))
    demonstration = replace(own, logps=(), source="demonstration")
    batch = collate([own, given_one, tool, demonstration], dtype=torch.float64)
    found = measure_mismatch(torch.full_like(batch.mask, -3.0), batch)
    assert float(found["mismatch/logp"]) == 3 + 2 + 2


def test_figures_of_a_step_count_what_is_trained() -> None:
    """A tool's result in an answer leaves it the policy's own, and no token longer."""
    own, tool, guided = (make_rollout(random.Random(1), longest=9) for _ in range(3))
    for rollout in (own, tool, guided):
        rollout.output, rollout.sampled_mask = (2,) * 6, ()
    tool.sampled_mask = tool.loss_mask = (True, True, False, False, False, True)
    guided.sampled_mask = prefix_mask(4, 6)
    found = describe_groups([[own, tool, guided]])
    assert (found["length/mean"], found["length/total"]) == (4.5, 9)


def test_models_that_are_scored_by_their_logits_have_the_same_log_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rollouts = make_model(), with_holes(3, 6)
    expected = score_with(model, 1.0)(rollouts, torch.float64)
    monkeypatch.setattr(scoring, "split_head", refuse_head)
    found = score_with(model, 1.0)(rollouts, torch.float64)
    assert [len(row) for row in found] == [rollout.trained_count for rollout in rollouts]
    assert found == [pytest.approx(row) for row in expected]


def refuse_head(model: Any) -> None:
    raise ModelError("unknown head")
