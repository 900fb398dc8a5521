"""A setting is said to have no effect exactly where another value of it changes nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from making import make_rollout

from qed.algorithms.exgrpo import ExGrpo
from qed.algorithms.luffy import Luffy
from qed.algorithms.opsd import Opsd
from qed.algorithms.parts import corrections, crediting, estimators
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.corrections import Correction, CorrectionKind
from qed.algorithms.parts.distillation import Distillation, Kind
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate, SurrogateKind, policy_loss
from qed.config.keys import list_origins
from qed.config.resolve import resolve_settings
from qed.config.unread import describe_unread
from qed.training.batch import collate
from qed.types import Grade, Rollout

CLIPS = {"clip_low": 0.5, "clip_high": 0.5, "clip_dual": 1.5, "ratio_clamp": 0.1}
OTHERS = {
    "cispo_clip": "above",
    "sapo_temperatures": (2.0, 3.0),
    "vespo_shape": (1.0, 1.0, 1.0, 1.0),
    "dppo_square": 2.0,
}
ESTIMATORS = [name for name in get_args(estimators.Estimator) if name not in ("gae", "remax")]


@pytest.mark.parametrize("kind", get_args(SurrogateKind))
def test_settings_of_a_surrogate(kind: SurrogateKind) -> None:
    generator = torch.Generator().manual_seed(3)
    old = -3 * torch.rand(8, 3, generator=generator, dtype=torch.float64)
    # Ratios of rows on both sides of 1, with tokens of their own around them.
    ratios = torch.tensor([-1.0, -0.5, 0.5, 1.0], dtype=torch.float64).repeat(2)[:, None]
    logps = old + ratios + 0.2 * torch.rand(8, 3, generator=generator, dtype=torch.float64)
    advantages, mask = torch.ones(8, 3, dtype=torch.float64), torch.ones(8, 3)
    advantages[4:] = -1
    settings = Surrogate(kind)

    def compute(chosen: Surrogate) -> torch.Tensor:
        leaf = logps.clone().requires_grad_()
        loss, _ = policy_loss(leaf, old, advantages, mask, chosen)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        return torch.stack([loss.detach(), gradient])

    changed = {name: compute(replace(settings, **{name: value})) for name, value in {**CLIPS, **OTHERS}.items()}  # type: ignore[arg-type]
    same = {name for name, found in changed.items() if torch.equal(found, compute(settings))}
    assert same == settings.unread.keys()


@pytest.mark.parametrize("own_kind", ["none", "logp"])
@pytest.mark.parametrize("kind", [Luffy, ExGrpo])
def test_settings_of_a_surrogate_beside_shaping(kind: Any, own_kind: Any) -> None:
    source = random.Random(3)
    rows = [make_rollout(source, advantage) for advantage in (1.0, -1.0) for _ in range(12)]
    for row in rows:
        row.old_logps = tuple(value + source.choice([-1.0, -0.5, 0.5, 1.0]) for value in row.logps)
    batch = collate(rows, dtype=torch.float64)
    trained = batch.mask.bool()
    settings = kind(shaping=replace(kind().shaping, own_kind=own_kind))

    def compute(**changes: Any) -> torch.Tensor:
        logps = batch.behaviour_logps.nan_to_num().requires_grad_()
        terms, _ = replace(settings, surrogate=replace(settings.surrogate, **changes)).terms(batch, logps)
        (gradient,) = torch.autograd.grad(terms[trained].sum(), logps)
        return torch.stack([terms.detach()[trained], gradient[trained]])

    same = {name for name, value in {**CLIPS, **OTHERS}.items() if torch.equal(compute(**{name: value}), compute())}
    assert same == {path.removeprefix("surrogate.") for path in settings.unread if path.startswith("surrogate.")}


def test_a_lower_clip_of_cispo_that_clips_above() -> None:
    assert "clip_low" not in Surrogate("cispo").unread
    assert Surrogate("cispo", cispo_clip="trl").unread["clip_low"] == "cispo_clip=trl"


def make_group(seed: int) -> list[Rollout]:
    source = random.Random(seed)
    rewards = [source.choice([0.0, 0.5, 1.0, 3.0]) for _ in range(5)]
    grades = [Grade(x, x > 0, True, None, {"a": x, "b": x * x / 3}, weights={"a": 1.0, "b": 1.0}) for x in rewards]
    return [replace(make_rollout(source), grade=grade, ref_logps=None) for grade in grades]


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_settings_of_an_estimator(estimator: Any, divides: bool) -> None:
    groups = [make_group(seed) for seed in range(4)]
    settings = AdvantageEstimator(estimator, normalize_std=divides)

    def compute(chosen: AdvantageEstimator) -> Any:
        method = PolicyGradient(advantage=chosen)
        return crediting.compute_advantages(groups, chosen, method.regularizer, method.advantages)

    changes: dict[str, Any] = {"normalize_std": not divides, "std_epsilon": 0.5}
    if estimator == "group" and divides:  # elsewhere it is refused
        changes["std_over"] = "batch"
    same = {name for name, value in changes.items() if compute(replace(settings, **{name: value})) == compute(settings)}
    assert same == settings.unread.keys() & changes.keys()


@pytest.mark.parametrize("rejection", ["none", "token_k1"])
@pytest.mark.parametrize("kind", get_args(CorrectionKind))
def test_settings_of_a_correction(kind: CorrectionKind, rejection: Any) -> None:
    source = random.Random(5)
    rows = [make_rollout(source, 1.0) for _ in range(24)]
    for row in rows:
        row.old_logps = tuple(value + source.choice([-0.4, 0.4]) * source.random() for value in row.logps)
    batch = collate(rows, dtype=torch.float64)
    settings = Correction(kind, rejection=(rejection,))

    def compute(chosen: Correction) -> torch.Tensor:
        return corrections.apply_correction(batch, chosen, in_ratio=False).advantages

    changes = {"low": 0.95, "high": 0.97, "normalize": True, "rejection_low": (0.99,), "rejection_high": (1.01,)}
    same = {
        name
        for name, value in changes.items()
        if torch.equal(compute(replace(settings, **{name: value})), compute(settings))  # type: ignore[arg-type]
    }
    assert same == settings.unread.keys()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sapo", "--algorithm.clip_high", "0.3"], ["algorithm.clip_high (command line) has no effect with"]),
        (["rloo", "--algorithm.normalize_std", "true"], ["algorithm.normalize_std (command line) has no effect with"]),
        (["grpo", "--algorithm.clip_high", "0.3"], []),
        (["luffy", "--algorithm.clip_high", "0.3"], []),
        (["luffy", "--algorithm.cispo_clip", "trl"], ["algorithm.cispo_clip (command line) has no effect"]),
        (["pipeline", "--rl.algorithm.kl_estimator", "k1"], ["rl.algorithm.kl_estimator (command line) has no effect"]),
        (["pipeline", "--rl.algorithm.kl_estimator", "k1", "--rl.algorithm.kl", "0.1"], []),
        (
            ["opd", "--algorithm.teacher", "new:tiny", "--algorithm.beta", "0.3"],
            ["algorithm.distillation.beta (command line)"],
        ),
        (["opd", "--algorithm.normalize_std", "false"], ["algorithm.normalize_std (command line) has no effect"]),
        (["opd", "--algorithm.normalize_std", "false", "--algorithm.reward", "1"], []),
        (["opd", "--algorithm.clip_high", "0.3"], []),
        (["opd", "--algorithm.kl", "0.1", "--algorithm.reward", "1", "--algorithm.kl_place", "reward"], []),
        (
            ["opd", "--algorithm.kl", "0.1", "--algorithm.kl_place", "reward"],
            ["algorithm.kl (command line) has no effect", "algorithm.kl_place (command line) has no effect"],
        ),
        (["opsd", "--algorithm.clip_high", "0.3"], ["algorithm.clip_high (command line) has no effect"]),
        (["opsd", "--algorithm.surrogate.kind", "dppo", "--algorithm.dppo_square", "0.5"], []),
        (["opsd", "--algorithm.kl_importance", "true", "--algorithm.kl", "0.1", "--algorithm.surrogate", "gspo"], []),
        (["opd", "--algorithm.estimator", "remax"], []),
        (["ppo", "--algorithm.coefficient", "0.3"], ["algorithm.critic.coefficient (command line) has"]),
        (["ppo", "--algorithm.coefficient", "0.3", "--algorithm.trunk", "policy"], []),
        (["sft", "--algorithm.average_length", "7"], ["algorithm.average_length (command line) has no effect"]),
        (
            ["grpo", "--prompt", "r1_zero", "--data.prompt_options", "working_out.reasoning_start=<a>"],
            ["data.prompt_options working_out.reasoning_start=<a> (command line) has no effect with data.prompt"],
        ),
        (["grpo", "--prompt", "working-out", "--data.prompt_options", "working_out.reasoning_start=<a>"], []),
        (["grpo", "--data.prompt_options", "working_out.reasoning_start=<a>"], []),
        (["grpo", "--model.lora_alpha", "8"], ["model.lora_alpha (command line) has no effect with model.lora_rank 0"]),
        (["grpo", "--model.lora_rank", "4", "--model.lora_alpha", "8"], []),
    ],
)
def test_only_given_settings_are_described(arguments: list[str], expected: list[str]) -> None:
    resolved = resolve_settings(arguments[0], arguments[1:])
    lines = describe_unread(resolved.settings, list_origins(resolved.settings, resolved.origins))
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))


def test_options_of_a_prompt_of_ones_own_have_an_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-own.py").touch()
    resolved = resolve_settings("grpo", ["--prompt", "my-own.py", "--data.prompt_options", "my-own.py.start=<a>"])
    assert describe_unread(resolved.settings, list_origins(resolved.settings, resolved.origins)) == []


def test_a_file_that_lists_every_setting_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text("method: sapo\nalgorithm:\n  surrogate: {kind: sapo, clip_low: 0.2, clip_high: 0.4}\n")
    resolved = resolve_settings("sapo", [str(file)])
    (line,) = describe_unread(resolved.settings, list_origins(resolved.settings, resolved.origins))
    assert line == f"algorithm.clip_high ({file}:3) has no effect with algorithm.surrogate=sapo."


@pytest.mark.parametrize("divergence", get_args(Kind))
@pytest.mark.parametrize("distil", [0.0, 1.0])
def test_settings_of_a_distillation(divergence: Kind, distil: float) -> None:
    settings = Distillation(divergence, distil=distil, reward=1.0)
    changes = {"beta": 0.3, "divergence_clip": 0.01}
    if divergence != "sampled":  # elsewhere it is refused
        changes["teacher_top_k"] = 3
    same = {
        name
        for name, value in changes.items()
        if replace(settings, **{name: value}).over_vocabulary == settings.over_vocabulary  # type: ignore[arg-type]
    }
    assert same == settings.unread.keys() & changes.keys()


def test_what_a_derived_distillation_may_read_is_not_described() -> None:
    """A method of one's own may read a part that qed's does not."""

    @dataclass(frozen=True)
    class Mine(Opsd):
        def credit(self, groups: Any) -> Any:
            return super().credit(groups)

    assert {name.partition(".")[0] for name in Opsd().unread} >= {"advantage", "surrogate", "distillation"}
    assert not {name.partition(".")[0] for name in Mine().unread} & {"advantage", "distillation"}
    assert "surrogate.clip_low" in Opsd().unread.keys() - Mine().unread.keys()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--skip_sft", "--sft.learner.lr", "0.5"], ["sft.learner.lr (command line) has no effect with skip_sft."]),
        (["--skip_rl", "--rl.learner.steps", "5"], ["rl.learner.steps (command line) has no effect with skip_rl."]),
        (["--skip_sft", "--steps", "3", "--rl.learner.lr", "0.5"], []),
        (["--sft.learner.lr", "0.5"], []),
    ],
)
def test_options_of_a_skipped_phase(arguments: list[str], expected: list[str]) -> None:
    resolved = resolve_settings("pipeline", arguments)
    assert describe_unread(resolved.settings, list_origins(resolved.settings, resolved.origins)) == expected
