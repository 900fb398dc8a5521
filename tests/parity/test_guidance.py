"""LUFFY's advantages and token losses against recorded ones, and guided groups on numbers small enough for paper."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import prefix_mask
from test_closed_forms import batch, loss_and_gradient

from qed.algorithms.exgrpo import ExGrpo
from qed.algorithms.luffy import Luffy
from qed.algorithms.parts import mixture
from qed.algorithms.parts.guidance import ExpertPrefix
from qed.algorithms.parts.mixture import OffPolicyAdvantages
from qed.algorithms.parts.shaping import Shaping, TokenShaping
from qed.algorithms.rl_sft import RlSft
from qed.errors import UsageError
from qed.training.batch import Batch
from qed.types import Grade, Group, Problem, Rollout

KINDS = {"no_reshape": "none", "pow": "power"}
OFF = ("no_reshape", "logp", "p_logp", "square_root", "p_div_p_0.1", "p_div_p_0.3", "p_div_p_0.5", "pow")
ON = ("no_reshape", "logp", "p_logp", "square_root", "pow", "p_div_p_0.1", "p_div_p_0.5")
LOSSES = (
    *(f"off_{name}" for name in OFF),
    *(f"on_{name}" for name in ON),
    *("paper_luffy", "paper_luffy_all_on", "paper_luffy_all_off", "on_policy_script", "keep_clip_const_norm"),
    *("no_clip_token_mean", "clip_upper_bound_3", "off_max_min_clip", "off_reshape_max_clip", "all_max_clip"),
    *("all_max_clip_const", "target_probs", "target_probs_clipped", "target_probs_reshape_ignored"),
)


def inputs(vectors: Mapping[str, Any], case: str) -> dict[str, torch.Tensor]:
    return {key.split("::")[2]: torch.tensor(vectors[key]) for key in vectors if key.startswith(f"{case}::in::")}


def kind_of(name: str) -> dict[str, Any]:
    """A reshape by its recorded name, as our kind with its constant."""
    if name.startswith("p_div_p_"):
        return {"kind": "regularized", "gamma": float(name.removeprefix("p_div_p_"))}
    return {"kind": KINDS.get(name, name)}


def algorithm_of(args: Mapping[str, Any], behaviour: bool) -> Luffy:
    """The settings that mean what the recorded arguments mean."""
    off, on = kind_of(args["off_policy_reshape"]), kind_of(args["on_policy_reshape"])
    own = args["on_policy_reshape"] != "no_reshape"
    side = "on" if own else "off"
    shaped = Shaping(
        kind=off["kind"],
        own_kind=on["kind"],
        gamma={**on, **off}.get("gamma", 0.1),
        weight=args[f"{side}_policy_reshape_weight"],
        exponent=args[f"{side}_policy_reshape_pow_exp"],
        behaviour=behaviour,
        most=args["off_max_clip"] or 0.0,
        least=args["off_min_clip"] or 0.0,
        drop_above=args["all_max_clip"] or 0.0,
    )
    clip = args["cliprange"]
    bounds = {"clip_low": clip, "clip_high": max(args["clip_upper_bound"] - 1, clip)}
    average = "constant" if args["loss_remove_token_mean"] else "token"
    return Luffy(average=average, shaping=shaped, **({} if args["loss_remove_clip"] else bounds))


def rows_of(found: Mapping[str, torch.Tensor]) -> Batch:
    mask = found["eos_mask"].double()
    known = found.get("target_probs", -torch.ones_like(mask)).double()
    columns = {
        "expert": found["prefix_mask"].double(),
        "behaviour_logps": torch.where(known < 0, torch.nan, known.clamp(min=1e-30).log()),
        "old_logps": found["old_log_prob"].double(),
    }
    rows = batch(found["eos_mask"].tolist(), [0.0] * len(mask), **columns)
    return replace(rows, advantages=found["advantages"].double())


@pytest.mark.parametrize("case", LOSSES)
def test_recorded_token_losses(shared: Path, case: str) -> None:
    """Values, gradients and the shares of bounded tokens. The recorded constant average has no mean over rows."""
    vectors = np.load(shared / "vectors" / "luffy_token_loss.npz")
    args, found = json.loads(str(vectors[f"{case}::args"])), inputs(vectors, case)
    algorithm, rows = algorithm_of(args, behaviour="target_probs" in found), rows_of(found)
    logps = found["log_prob"].double()
    # Ours divides by rows x length, the recorded constant is the padded length alone.
    rows = rows.with_weights(algorithm.weights(rows, 1))
    if algorithm.average == "constant":
        rows = rows.with_weights(rows.mask / rows.mask.shape[1])
    assert algorithm.two_pass is (args["all_max_clip"] is not None)
    rows = algorithm.prepare(rows, logps if algorithm.two_pass else None, None)
    logps.requires_grad_()
    loss, stats = algorithm.loss(rows, logps, torch.zeros_like(logps))
    (gradient,) = torch.autograd.grad(loss, logps)
    expected = json.loads(str(vectors[f"{case}::scalars"]))
    assert float(loss.detach()) == pytest.approx(expected["pg_loss"], rel=1e-6, abs=1e-8)
    np.testing.assert_allclose(gradient, vectors[f"{case}::out::grad_log_prob"], rtol=1e-5, atol=1e-8)
    dropped = found["eos_mask"].double() - rows.mask
    assert float(stats.get("clip/dropped", torch.tensor(0.0))) == float(dropped.sum())
    given = (rows.mask * rows.expert).sum()
    assert float(stats["guidance/token_share"]) == float(given)
    for ours, theirs in (("high", "max"), ("low", "min")):
        held = stats.get(f"guidance/bound_{ours}", torch.tensor(0.0))
        assert float(held / given.clamp(min=1)) == pytest.approx(expected[f"off_ratio_{theirs}_clip_frac"])
    assert all(bool(torch.as_tensor(value).isfinite()) for value in stats.values()), "recorded NaN without own tokens"


def advantages_of(
    found: Mapping[str, torch.Tensor], normalize: bool, rule: str, mixed: OffPolicyAdvantages | None = None
) -> np.ndarray:
    """The advantages of all rows, spread over their tokens."""
    mask = found["eos_mask"].double()
    given = found.get("prefix_mask", torch.zeros_like(mask)).bool()
    own = found.get("on_policy_mask", torch.ones(len(mask))).bool()
    spread = torch.zeros_like(mask)
    for which in set(found["index"].tolist()):
        members = (found["index"] == which).nonzero().flatten()
        rewards = found["token_level_rewards"][members].double().sum(1)
        # The recorded code takes a single answer for its own advantage, which is our split of a lone own answer.
        if rule == "split" or len(members) == 1:
            values = mixture.split_statistics(rewards, own[members], normalize, 1e-6)
        else:
            values = Luffy(normalize_std=normalize).advantages(rewards)
        group = [rollout(int(mask[row].sum()), given=int(given[row].sum())) for row in members.tolist()]
        weighed = (mixed or OffPolicyAdvantages()).weigh(group, values.tolist())
        for row, value in zip(members.tolist(), weighed, strict=True):
            spread[row, : int(mask[row].sum())] = torch.tensor(value, dtype=torch.float64)
    return spread.numpy()


def rollout(length: int, given: int = 0, reward: float = 0.0, stop: str = "stop", source: str = "policy") -> Rollout:
    made = Rollout(Problem("p", "?", "1"), (5,), (2,) * length, (-1.0,) * length, "", stop, source)  # type: ignore[arg-type]
    made.sampled_mask = prefix_mask(given, length)
    made.grade = Grade(reward, reward > 0.5, True, None)
    return made


@pytest.mark.parametrize("std", [0, 1])
@pytest.mark.parametrize("case", ["grpo_binary", "grpo_real", "grpo_singleton", "mixed_binary", "mixed_real"])
def test_recorded_group_advantages(shared: Path, case: str, std: int) -> None:
    vectors = np.load(shared / "vectors" / "luffy_advantages.npz")
    name = f"{case}_std{std}"
    for key in [key for key in vectors if key.startswith(f"{name}::out::advantages")]:
        rule = "split" if key.endswith("split") else "shared"
        ours = advantages_of(inputs(vectors, name), bool(std), rule)
        np.testing.assert_allclose(ours, vectors[key], rtol=1e-4, atol=1e-5)


def test_recorded_advantages_with_a_single_own_answer(shared: Path) -> None:
    vectors = np.load(shared / "vectors" / "luffy_advantages.npz")
    name = "mixed_split_one_on_policy"
    ours = advantages_of(inputs(vectors, name), True, "split")
    np.testing.assert_allclose(ours, vectors[f"{name}::out::advantages_grpo_split"], rtol=1e-4, atol=1e-6)


def test_recorded_plain_rewards(shared: Path) -> None:
    vectors = np.load(shared / "vectors" / "luffy_advantages.npz")
    found = inputs(vectors, "reinforce")
    rewards = Luffy(estimator="none").advantages(found["token_level_rewards"].double().sum(1))
    ours = rewards[:, None] * found["eos_mask"]
    np.testing.assert_allclose(ours, vectors["reinforce::out::advantages"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (2.0, 0.25)])
def test_recorded_weights_of_given_and_sampled_tokens(shared: Path, alpha: float, beta: float) -> None:
    vectors = np.load(shared / "vectors" / "luffy_advantages.npz")
    name = f"prefix_weight_a{alpha}_b{beta}"
    ours = advantages_of(
        inputs(vectors, name), False, "shared", OffPolicyAdvantages(given_weight=alpha, own_weight=beta)
    )
    np.testing.assert_allclose(ours, vectors[f"{name}::out::advantages"], rtol=1e-4, atol=1e-6)


def test_a_group_without_own_answers_has_its_rewards_for_advantages() -> None:
    group: Group = [rollout(3, given=2, reward=reward) for reward in (1.0, 0.0)]
    assert mixture.split_group(group, normalize_std=False, epsilon=1e-6) == [1.0, 0.0]


def test_a_constant_for_given_tokens_and_nothing_for_what_was_cut() -> None:
    """Group of two, w = 3: each given token has 3/2, the sampled ones keep the group's; a cut answer has none."""
    group = [rollout(3, given=2), rollout(2, stop="length")]
    found = OffPolicyAdvantages(given_advantage=3.0, zero_truncated=True).weigh(group, [-0.5, 0.5])
    assert found == [(1.5, 1.5, -0.5), 0.0]
    assert OffPolicyAdvantages().weigh(group, [-0.5, (0.5, 0.25)]) == [-0.5, (0.5, 0.25)]


def test_a_wrong_trace_stays_out_unless_it_is_asked_for() -> None:
    group = [rollout(3, given=3, source="expert"), rollout(2, reward=1.0), rollout(2, given=1)]
    assert Luffy().filter_groups([group]) == [group[1:]]
    kept = Luffy(guidance=ExpertPrefix(wrong_traces="keep"))
    assert kept.filter_groups([group]) == [group]
    group[0].grade = Grade(1.0, True, True, None)
    assert Luffy().filter_groups([group]) == [group]


def test_the_shaped_gradient_is_the_published_one() -> None:
    """gamma p / (p + gamma)^2: 0.25 at p = gamma, 0.1/1.21 at p = 1, and unknown behaviour is no behaviour."""
    rows = batch([[1, 1]], [1.0], expert=torch.ones(1, 2, dtype=torch.float64))
    rows = rows.with_weights(torch.ones(1, 2, dtype=torch.float64))
    for behaviour in (False, True):
        logps = torch.tensor([[math.log(0.1), 0.0]], dtype=torch.float64, requires_grad=True)
        loss, _ = Luffy(shaping=Shaping(behaviour=behaviour)).loss(rows, logps, torch.zeros_like(logps))
        (gradient,) = torch.autograd.grad(loss, logps)
        assert gradient.tolist() == [[pytest.approx(-0.25), pytest.approx(-0.1 / 1.21)]]


def test_rl_with_an_sft_loss_has_two_averages() -> None:
    """Rows: a trace of two tokens, a begun answer of two, own answers of two and one; length 4, sft = 0.5.

    The four tokens of the first two rows weigh 0.5/4 each; own tokens 1/(2 rows x 4), with A = 1 and -1 at ratio 1.
    """
    rows = batch([[1, 1], [1, 1], [1, 1], [1, 0]], [9.0, 9.0, 1.0, -1.0])
    logps = torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [-0.5, -0.5], [-0.5, 0.0]], dtype=torch.float64)
    given = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 0]], dtype=torch.float64)
    old = logps * torch.tensor([[0.0], [0.0], [1.0], [1.0]], dtype=torch.float64)
    rows = replace(rows, expert=given, old_logps=old)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        loss, gradient = loss_and_gradient(RlSft(sft=0.5), rows.select(order), logps[order])
        assert loss == pytest.approx(0.5 * (1 + 2 + 3 + 4) / 4 - (1 + 1 - 1) / 8)
        expected = torch.tensor([[-0.125] * 2, [-0.125] * 2, [-0.125] * 2, [0.125, 0.0]], dtype=torch.float64)
        torch.testing.assert_close(gradient, expected[order])
    alone = replace(rows, expert=rows.mask)
    assert loss_and_gradient(RlSft(), alone, logps)[1].isfinite().all(), "nothing but traces"
    assert RlSft().has_gradient(replace(rows, advantages=rows.advantages * 0)).tolist() == [True, True, False, False]


def test_rl_with_an_sft_loss_takes_the_statistics_of_own_answers() -> None:
    group = [rollout(3, given=3, reward=1.0, source="expert"), rollout(2, reward=1.0), rollout(2)]
    assert RlSft().credit([group]) == [[0.5, 0.5, -0.5]]


def test_replayed_tokens_weigh_by_their_shaped_ratio() -> None:
    """r = e^-1 and e^-2 over 0.5: a weight of r/(r + 0.1), its gradient 0.1 r/(r + 0.1)^2; fresh ones are unclipped."""
    recorded, now = math.log(0.5), torch.tensor([[-1.0, -2.0], [-1.0, -2.0]])
    given = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    behaviour = torch.full((2, 2), recorded, dtype=torch.float64).where(given.bool(), torch.nan)
    rows = batch([[1, 1], [1, 1]], [2.0, 1.0], expert=given, behaviour_logps=behaviour)
    loss, gradient = loss_and_gradient(ExGrpo(mixed=True), rows, now)
    ratios = [math.exp(value) / 0.5 for value in (-1, -2)]
    weights = [r / (r + 0.1) for r in ratios]
    assert loss == pytest.approx(-(2 * sum(weights) + math.exp(-1) + math.exp(-2)) / 8)
    slopes = [0.1 * r / (r + 0.1) ** 2 for r in ratios]
    assert gradient[0].tolist() == [pytest.approx(-2 * slope / 8) for slope in slopes]
    assert gradient[1].tolist() == [pytest.approx(-math.exp(value) / 8) for value in (-1, -2)]
    assert not loss_and_gradient(ExGrpo(), rows, -now)[1][1].any(), "clipped until replay begins"
    loss, gradient = loss_and_gradient(ExGrpo(mixed=True, corrected=False), replace(rows, old_logps=now.double()), now)
    assert gradient[0].tolist() == [pytest.approx(-2 * 0.1 / 1.1**2 / 8)] * 2


@pytest.mark.parametrize(
    ("settings", "weight", "slope"),
    [
        ({"kind": "none"}, lambda r: r, lambda r: r),
        ({"kind": "square_root"}, math.sqrt, lambda r: math.sqrt(r) / 2),
        ({"kind": "power", "exponent": 0.3}, lambda r: r**0.3, lambda r: 0.3 * r**0.3),
        ({"kind": "logp", "weight": 0.2}, lambda r: 0.2 * math.log(r), lambda r: 0.2),
        ({"kind": "p_logp", "weight": 0.2}, lambda r: r + 0.2 * math.log(r), lambda r: r + 0.2),
        ({"gamma": 0.5}, lambda r: r / (r + 0.5), lambda r: 0.5 * r / (r + 0.5) ** 2),
        ({"kind": "none", "most": 0.5}, lambda r: min(r, 0.5), lambda r: r * (r < 0.5)),
        ({"kind": "none", "least": 0.5}, lambda r: max(r, 0.5), lambda r: r * (r > 0.5)),
    ],
)
def test_replayed_tokens_have_every_shape_of_their_ratio(
    settings: dict[str, Any], weight: Callable[[float], float], slope: Callable[[float], float]
) -> None:
    """r = 2/e and 2/e^2 to what was recorded; the slope is by log pi, and 0 beyond a bound."""
    given = torch.ones(1, 2, dtype=torch.float64)
    rows = batch([[1, 1]], [2.0], expert=given, behaviour_logps=given * math.log(0.5))
    algorithm = ExGrpo(mixed=True, shaping=TokenShaping(**settings))
    loss, gradient = loss_and_gradient(algorithm, rows, torch.tensor([[-1.0, -2.0]]))
    ratios = [2 * math.exp(value) for value in (-1, -2)]
    assert loss == pytest.approx(-2 * sum(map(weight, ratios)) / 4)
    assert gradient[0].tolist() == [pytest.approx(-2 * slope(ratio) / 4) for ratio in ratios]


def test_the_ratio_of_fresh_tokens_can_be_shaped_beside_a_replay() -> None:
    """As in LUFFY, and clipped until replay begins; likely tokens are dropped from the average too."""
    rows = batch([[1, 1]], [1.0], old_logps=torch.tensor([[math.log(0.25), math.log(0.5)]], dtype=torch.float64))
    now = torch.tensor([[math.log(0.64), math.log(0.5)]])
    shaped = ExGrpo(own_kind="square_root", mixed=True)
    assert shaped.has_ratio
    assert loss_and_gradient(shaped, rows, now)[0] == pytest.approx(-(1.6 + 1) / 4)
    early = ExGrpo(own_kind="square_root", clip_high=0.2)
    assert loss_and_gradient(early, rows, now)[0] == pytest.approx(-(1.2 + 1) / 4)
    dropping = ExGrpo(drop_above=0.6, average="token", mixed=True)
    assert dropping.two_pass
    weighted = rows.with_weights(dropping.weights(rows, 4))
    kept = dropping.prepare(weighted, now.double(), None)
    loss, stats = dropping.loss(kept, now.double(), torch.zeros(1, 2, dtype=torch.float64))
    assert float(loss) == pytest.approx(-1.0)
    assert float(stats["clip/dropped"]) == 1


def test_rows_far_off_policy_are_dropped_beside_a_shaped_ratio_too() -> None:
    """The sampled token of the first row is 0.7 below what sampled it, the second row 0.1; the first token is given."""
    old, expert = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    rows = batch([[1, 1], [1, 1]], [-1.0, -1.0], sampled_logps=old.where(expert == 0, math.nan), old_logps=old)
    rows, now = replace(rows, expert=expert), torch.tensor([[-0.7, -0.7], [-0.1, -0.1]])
    for kind in (Luffy, ExGrpo):
        for own_kind in ("none", "square_root"):
            algorithm = kind(own_kind=own_kind, offpolicy_limit=0.5)
            assert (loss_and_gradient(algorithm, rows, now)[1] != 0).tolist() == [[True, False], [True, True]]


def test_given_tokens_add_nothing_to_the_kl_and_to_the_entropy_bonus() -> None:
    rows = batch([[1, 1]], [0.0], expert=torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    rows = replace(rows, ref_logps=torch.tensor([[5.0, math.log(2)]], dtype=torch.float64))
    rows = rows.with_weights(torch.ones(1, 2, dtype=torch.float64))
    entropy = torch.tensor([[7.0, 0.25]], dtype=torch.float64)
    for name, value in (("k3", 1 - math.log(2)), ("k1", -math.log(2)), ("abs", math.log(2))):
        for kind in (Luffy, ExGrpo):
            logps = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
            loss, _ = kind(kl=1.0, entropy=1.0, kl_estimator=name).loss(rows, logps, entropy)
            assert float(loss.detach()) == pytest.approx(value - 0.25)
            assert torch.autograd.grad(loss, logps)[0][0, 0] == 0


def test_what_could_not_be_graded_is_in_no_statistic_of_own_answers() -> None:
    group = [rollout(3, given=3, reward=1.0, source="expert"), rollout(2, reward=1.0), rollout(2), rollout(2)]
    group[3].grade = Grade(0.0, False, False, None, tier="error")
    assert RlSft().credit([group]) == [[0.5, 0.5, -0.5, 0.0]]


@pytest.mark.parametrize("settings", [{"estimator": "opo"}, {"whiten": True}, {"kl": 0.1, "kl_place": "reward"}])
def test_settings_that_own_statistics_do_not_read(settings: dict[str, Any]) -> None:
    for make in (RlSft, lambda **own: Luffy(mixture=OffPolicyAdvantages(statistics="split"), **own)):
        with pytest.raises(UsageError, match="sampled answers"):
            make(**settings)


def test_log_probs_that_nobody_knows_leave_the_ratio_at_one() -> None:
    """Of a fresh token (NaN) and of a replayed one that was neither recorded nor scored (0)."""
    given = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    unknown = {"expert": given, "behaviour_logps": given * math.nan}
    rows = batch([[1, 1]], [1.0], **unknown, old_logps=torch.tensor([[0.0, math.nan]], dtype=torch.float64))
    now = torch.tensor([[-2.0, -3.0]], dtype=torch.float64)
    for corrected in (True, False):
        loss, gradient = loss_and_gradient(ExGrpo(mixed=True, corrected=corrected), rows, now)
        assert loss == pytest.approx(-(1 / 1.1 + 1) / 4)
        assert gradient[0].tolist() == [pytest.approx(-0.1 / 1.1**2 / 4), pytest.approx(-1 / 4)]
    found, _ = loss_and_gradient(Luffy(shaping=Shaping(kind="none", own_kind="square_root")), rows, now)
    assert found == pytest.approx(-(math.exp(-2) + 1) / 4)
