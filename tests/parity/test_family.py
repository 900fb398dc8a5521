"""KL, entropy, GDPO and dynamic sampling of the online family, the arithmetic written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_closed_forms import batch, loss_and_gradient

from qed.algorithms.base import StepContext
from qed.algorithms.dapo import Dapo
from qed.algorithms.gdpo import Gdpo
from qed.algorithms.grpo import Grpo
from qed.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from qed.algorithms.remax import Remax
from qed.config.resolve import resolve_settings
from qed.config.sampling_settings import SamplingSettings
from qed.data.splits import resolve_reward_names
from qed.errors import UsageError
from qed.rewards.base import load_reward
from qed.rollout.collector import RolloutCollector
from qed.rollout.stages import Stream, assign_advantages
from qed.sampling.base import Sampling
from qed.types import Completion, Grade, Group, Problem, Prompt, Rollout

LOG2 = math.log(2)


def answer(reward: float, tokens: int = 2, **changes: Any) -> Rollout:
    rollout = Rollout(Problem("p", "?", "1"), (0,), (2,) * tokens, (-1.0,) * tokens, "", "stop", **changes)
    rollout.grade = Grade(reward, reward > 0, True, None)
    return rollout


def test_std_over_the_batch() -> None:
    """Rewards 0, 1 and 0, 2: the mean is the group's, the deviation sqrt(11/12) that of all four."""
    groups = [[answer(0.0), answer(1.0)], [answer(0.0), answer(2.0)]]
    assign_advantages(groups, Grpo(std_over="batch", std_epsilon=1e-4))
    scale = math.sqrt(11 / 12) + 1e-4
    assert [r.advantage for group in groups for r in group] == pytest.approx([x / scale for x in (-0.5, 0.5, -1, 1)])


def test_a_kl_in_the_reward_enters_the_statistics_of_the_group() -> None:
    """k1 of 0.5 on both tokens of the second answer, weight 0.1: its reward is 1 - 0.1, that of the first stays 0."""
    apart = {"old_logps": (-1.0, -1.0), "ref_logps": (-1.5, -1.5)}
    group = [answer(0.0, old_logps=(-1.0, -1.0), ref_logps=(-1.0, -1.0)), answer(1.0, **apart)]
    method = Grpo(kl=0.1, kl_place="reward", kl_estimator="k1", normalize_std=False)
    assert method.scored_before_credit
    assert method.reference
    assign_advantages([group], method)
    assert [rollout.advantage for rollout in group] == pytest.approx([-0.45, 0.45])


def test_a_kl_in_the_reward_is_token_by_token_for_returns() -> None:
    """k1 of 1 on the first token and 3 on the second, weight 0.1: rewards -0.1 and 0.7, to come 0.25 and 0.7."""
    group = [answer(1.0, old_logps=(-1.0, -1.0), ref_logps=(-2.0, -4.0))]
    assign_advantages([group], ReinforcePlusPlus(kl=0.1, discount=0.5, whiten=False))
    assert group[0].advantage == pytest.approx((0.25, 0.7))


def test_a_kl_in_the_reward_is_of_sampled_tokens_alone() -> None:
    one = answer(1.0, old_logps=(-1.0, -2.0), ref_logps=(-9.0, -2.5), sampled_mask=(False, True))
    method = ReinforcePlusPlus(kl=0.1, whiten=False)
    assert method.credit([[one]])[0][0] == pytest.approx(1 - 0.1 * 0.5)


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [
        ("k1", LOG2, 1.0),
        ("k2", LOG2**2 / 2, LOG2),
        ("k3", 0.5 + LOG2 - 1, 0.5),
        ("abs", LOG2, 1.0),
        ("k1+", LOG2, LOG2),
        ("k3+", 0.5 + LOG2 - 1, LOG2),
    ],
)
def test_kl_in_the_loss_by_hand(name: Any, value: float, slope: float) -> None:
    """d = log 2 on one token, weight 0.5; with the ratio, which is 2 here, value and slope follow the product rule."""
    columns = {"ref_logps": torch.full((1, 1), -LOG2).double(), "old_logps": torch.full((1, 1), -LOG2).double()}
    loss, gradient = loss_and_gradient(Grpo(kl=0.5, kl_estimator=name), batch([[1]], [0], **columns), torch.zeros(1, 1))
    assert (loss, float(gradient)) == (pytest.approx(0.5 * value), pytest.approx(0.5 * slope))
    weighed = Grpo(kl=0.5, kl_estimator=name, kl_importance=True)
    loss, gradient = loss_and_gradient(weighed, batch([[1]], [0], **columns), torch.zeros(1, 1))
    assert (loss, float(gradient)) == (pytest.approx(value), pytest.approx(slope + value))


def test_what_stands_at_masked_places_reaches_neither_kl_nor_entropy() -> None:
    rows = batch([[1, 0]], [0], ref_logps=torch.tensor([[-1.0, math.nan]], dtype=torch.float64))
    algorithm = Grpo(kl=0.5, entropy=0.1)
    rows = rows.with_weights(algorithm.weights(rows, 4))
    loss, _ = algorithm.loss(rows, torch.zeros(1, 2).double(), torch.tensor([[0.3, math.nan]]).double())
    assert float(loss) == pytest.approx(0.5 * (math.exp(-1) + 1 - 1) - 0.1 * 0.3)


def test_entropy_of_tokens_that_others_wrote_is_no_exploration() -> None:
    rows = batch([[1, 1]], [0], expert=torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    algorithm = Grpo(entropy=0.1)
    rows = rows.with_weights(algorithm.weights(rows, 4))
    loss, _ = algorithm.loss(rows, torch.zeros(1, 2).double(), torch.tensor([[5.0, 0.3]]).double())
    assert float(loss) == pytest.approx(-0.1 * 0.3 / 2)


def test_the_kl_by_importance_has_the_ratio_of_the_surrogate() -> None:
    """Log-ratios 0.1, 0.3 and an unknown one, which is 0: k3 is 1/e each, times e^d of a token or of the row's mean."""
    old = torch.tensor([[-0.1, -0.3, math.nan]], dtype=torch.float64)
    rows = batch([[1, 1, 1]], [0], ref_logps=torch.full((1, 3), -1.0, dtype=torch.float64), old_logps=old)
    for surrogate, ratios in (("clip", (0.1, 0.3, 0.0)), ("gspo", (0.4 / 3,) * 3)):
        method = Grpo(kl=1.0, kl_importance=True, surrogate=surrogate)
        loss, gradient = loss_and_gradient(method, rows, torch.zeros(1, 3, dtype=torch.float64))
        factors = [math.exp(ratio) for ratio in ratios]
        assert loss == pytest.approx(sum(factors) / math.e / 3)
        # Both the estimate and the ratio have a gradient: (1 - 1/e) and 1/e of each factor.
        assert gradient[0].tolist() == [pytest.approx(factor / 3) for factor in factors]


@pytest.mark.parametrize(("measured", "expected"), [(0.3, 0.1 * 1.02), (0.11, 0.1 * 1.01), (0.0, 0.1 * 0.98)])
def test_the_kl_is_steered_to_its_target(measured: float, expected: float) -> None:
    """Target 0.1, 100 answers, horizon 1000: an error of at most a fifth changes the weight by at most a fiftieth."""
    method = Grpo(kl=0.1, kl_target=0.1, kl_horizon=1000)
    assert method.adapt({"kl/ref": measured, "train/rows": 100}).regularizer.kl == pytest.approx(expected)
    assert method.adapt({}) is method
    assert Grpo(kl=0.1).adapt({"kl/ref": measured, "train/rows": 100}).regularizer.kl == 0.1


def test_the_entropy_bonus_grows_below_its_target_and_rests_above() -> None:
    method = Grpo(entropy=0.01, entropy_target=0.5)
    low = method.adapt({"policy/entropy": 0.4})
    assert (low.regularizer.entropy, low.regularizer.bonus) == (pytest.approx(0.015), pytest.approx(0.015))
    high = low.adapt({"policy/entropy": 0.6})
    assert (high.regularizer.entropy, high.regularizer.bonus) == (pytest.approx(0.01), 0.0)
    assert high.adapt({"policy/entropy": 0.6}).adapt({"policy/entropy": 0.6}).regularizer.entropy == 0
    back = high.adapt({"policy/entropy": 0.5})
    assert (back.regularizer.entropy, back.regularizer.bonus) == (pytest.approx(0.005), pytest.approx(0.005))
    assert Grpo(entropy=0.01).adapt({"policy/entropy": 0.4}).regularizer.bonus == 0.01


def test_only_tokens_of_high_entropy_keep_the_policy_loss() -> None:
    """Entropies 1 to 5 over two rows, share 0.4: the 0.6-quantile is 3.4, so 4 and 5 stay; weights are untouched."""
    rows = batch([[1, 1, 1], [1, 1, 0]], [2, -1])
    entropy = torch.tensor([[1.0, 5.0, 2.0], [4.0, 3.0, 99.0]], dtype=torch.float64)
    method = Grpo(top_entropy=0.4)
    rows = rows.with_weights(method.weights(rows, 4))
    found = method.prepare(rows, entropy, entropy)
    assert found.advantages.tolist() == [[0, 2, 0], [-1, 0, 0]]
    assert torch.equal(found.weights, rows.weights)
    assert method.two_pass
    assert not Grpo().two_pass


def gdpo_answer(parts: dict[str, float], weights: dict[str, float]) -> Rollout:
    rollout = answer(0.0)
    rollout.grade = Grade(0.0, False, True, None, parts, weights=weights)
    return rollout


def test_gdpo_normalises_each_part_by_itself() -> None:
    """Rewards 0, 1 and 0, 100 have the normalised values -+1/sqrt 2 both; weights 1 and 2; the third has none.
    A group whose parts are equal gets 0; the deviation of the four sums -+3/sqrt 2, 0, 0 is sqrt 3."""
    weights = {"a": 1.0, "b": 2.0, "c": 0.0}
    group = [gdpo_answer({"a": 0, "b": 0, "c": 7}, weights), gdpo_answer({"a": 1, "b": 100, "c": 0}, weights)]
    equal = [gdpo_answer({"a": 1, "b": 1, "c": 7}, weights), gdpo_answer({"a": 1, "b": 1, "c": 0}, weights)]
    assign_advantages([group, equal], Gdpo(std_epsilon=0.0))
    expected = 3 / math.sqrt(2) / math.sqrt(3)
    assert [r.advantage for r in group + equal] == pytest.approx([-expected, expected, 0, 0])
    assert [r.advantage for r in equal] == [0, 0]


def test_gdpo_reads_the_weights_of_a_sum_of_rewards() -> None:
    (grade,) = load_reward(["boxed", "0.5*overlong"], max_tokens=100).grade([answer(0.0, 95)])
    assert grade.weights == {"boxed": 1.0, "overlong": 0.5}
    missing = [gdpo_answer({"a": 0.0}, {"a": 1.0}), gdpo_answer({"a": 1.0}, {"a": 1.0}), gdpo_answer({}, {})]
    assign_advantages([missing], Gdpo())
    assert missing[2].advantage == 0
    alone = [answer(0.0), answer(1.0), answer(1.0)]
    assign_advantages([alone], Gdpo())
    assert [r.advantage > 0 for r in alone] == [False, True, True]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"discount": 0.9}, "has an effect only with the estimators returns"),
        ({"std_over": "batch", "normalize_std": False}, "std_over=batch"),
        ({"kl_target": 0.1}, "must start above 0"),
        ({"kl_importance": True, "kl_place": "reward"}, "no ratio"),
        ({"estimator": "gdpo", "kl_place": "reward"}, "kl_place=loss"),
        ({"top_entropy": 0.0}, "top_entropy"),
        ({"max_rounds": 0}, "max_rounds"),
    ],
)
def test_settings_that_no_run_can_mean(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Grpo(**settings)


def test_a_lone_answer_is_refused_at_the_start() -> None:
    for command in (["grpo"], ["pipeline", "--rl.method", "rloo"]):
        with pytest.raises(UsageError, match=r"sampling\.group_size is 1"):
            resolve_settings(command[0], [*command[1:], "--sampling.group_size", "1"])
    resolve_settings("remax", ["--sampling.group_size", "1"])


def test_dapo_adds_the_overlong_reward_to_the_prompts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_reward_names(resolve_settings("dapo", []).settings.data) == ("think_answer", "overlong")
    chosen = resolve_settings("dapo", ["--data.reward", "2*auto,boxed", "--data.prompt", "r1_zero"]).settings.data
    assert resolve_reward_names(chosen) == ("2*r1_zero", "boxed")
    assert resolve_reward_names(resolve_settings("grpo", []).settings.data) == ("think_answer",)


class Reads:
    """A template of which every problem is one token."""

    stop = ()

    def prompt(self, problem: Problem) -> Prompt:
        return Prompt(problem.question)

    def tokens(self, prompt: Prompt) -> tuple[int, ...]:
        return (int(prompt.text),)

    def read(self, prompt: Prompt, tokens: Sequence[int], min_tokens: int = 0) -> str:
        return str(tokens[0])


class Answers:
    """Writes a token that follows from the draw; greedy answers are token 9."""

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Completion]]:
        return [
            [Completion((9 if sampling.temperature == 0 else seed % 2,), (-1.0,), "stop") for seed in own]
            for own in seeds
        ]

    def load(self, weights: Any, version: int) -> None:
        """Nothing."""


class Grades:
    """Even problems can be solved, odd ones never."""

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        return [
            [Grade(float(right), right, True, None) for r in group for right in [self._right(r)]] for group in groups
        ]

    def _right(self, rollout: Rollout) -> bool:
        return int(rollout.problem.question) % 2 == 0 and rollout.output[0] == 1

    def close(self) -> None:
        """Nothing."""


def gatherer(problems: Sequence[int], group_size: int = 6) -> RolloutCollector:
    stream = Stream([Problem(str(number), str(number), "1") for number in problems], 0, "problems")
    settings = SamplingSettings(problems_per_step=3, group_size=group_size, max_tokens=1)
    return RolloutCollector(stream, Answers(), Reads(), Grades(), settings, lambda rollouts: [])  # type: ignore[arg-type]


def test_dynamic_sampling_goes_on_until_the_step_is_full_and_keeps_the_surplus() -> None:
    source, method = gatherer(range(8)), Dapo()
    seen: list[int] = []
    for step in range(1, 4):
        before = len(source.surplus)
        gathered = source.collect(method, StepContext(step, 9, 0))
        assert len(gathered.groups) == 3
        assert all(int(group[0].problem.question) % 2 == 0 for group in gathered.groups)
        assert gathered.counts["groups/rounds"] > 1
        assert len(gathered.sampled) == 3 * gathered.counts["groups/rounds"]
        assert before + len(gathered.sampled) == 3 + gathered.counts["groups/dropped"] + len(source.surplus)
        seen += [id(group) for group in gathered.groups]
    assert len(set(seen)) == 9


def test_dynamic_sampling_stops_at_its_cap() -> None:
    gathered = gatherer([1, 3, 5]).collect(Dapo(max_rounds=4), StepContext(1, 9, 0))
    assert gathered.groups == []
    assert gathered.counts == {"groups/rounds": 4, "groups/kept": 0, "groups/dropped": 12}
    plain = gatherer([1, 3, 5]).collect(Dapo(dynamic_sampling=False), StepContext(1, 9, 0))
    assert plain.counts == {"groups/rounds": 1, "groups/kept": 3, "groups/dropped": 0}


def test_remax_samples_one_greedy_answer_beside_each_group() -> None:
    gathered = gatherer(range(4), group_size=1).collect(Remax(), StepContext(1, 9, 0))
    for group in gathered.groups:
        assert [rollout.source for rollout in group] == ["policy", "greedy"]
        assert [rollout.index for rollout in group] == [0, 1]
        assert group[1].output == (9,)
        assert group[1].grade is not None
    assert all(len(group) == 1 for group in gatherer(range(4), 1).collect(Dapo(), StepContext(1, 9, 0)).groups)
