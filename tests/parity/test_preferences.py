"""Losses of preference pairs: every recorded case, and numbers small enough for paper."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from making import make_model, make_rollout

from qed.algorithms.dpo import Dpo
from qed.algorithms.online_dpo import OnlineDpo
from qed.algorithms.parts.pair_losses import Preference, compute_score
from qed.config.settings import LearnerSettings
from qed.errors import UsageError
from qed.training.batch import COLUMNS, Batch
from qed.training.learner import Learner
from qed.types import Grade, Problem, Rollout


def batch(mask: torch.Tensor, **columns: torch.Tensor) -> Batch:
    zeros = torch.zeros_like(mask)
    parts: dict[str, Any] = dict.fromkeys(COLUMNS, zeros)
    return Batch(**{**parts, "attention": torch.ones_like(mask), "mask": mask, **columns})


def evaluated(algorithm: Dpo, rows: Batch, logps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Loss, its gradient and metrics of one step that is not cut."""
    rows = rows.with_weights(algorithm.weights(rows, 4))
    rows = algorithm.prepare(rows, logps if algorithm.two_pass else None, None)
    leaf = logps.clone().requires_grad_()
    loss, stats = algorithm.loss(rows, leaf, torch.zeros_like(leaf))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient, {name: float(value) for name, value in stats.items()}


def setting(arguments: dict[str, Any]) -> Dpo:
    """A recorded case's arguments in our words."""
    losses = arguments["loss_type"]
    return Dpo(
        losses=(losses,) if isinstance(losses, str) else tuple(losses),
        loss_weights=tuple(arguments.get("weights") or ()),
        beta=arguments["beta"],
        label_smoothing=arguments["label_smoothing"],
        divergence=arguments["f_div"].removesuffix("_divergence"),
        length_alpha=1.0 if arguments["ld_alpha"] is None else arguments["ld_alpha"],
        weighted=arguments["use_weighting"],
    )


def test_recorded_losses(shared: Path) -> None:
    """All of TRL's cases in value, gradient and metrics; padded places hold what must not be read."""
    vectors = np.load(shared / "vectors" / "trl_dpo.npz")
    cases = json.loads(str(vectors["__cases__"]))
    assert len(cases) == 26
    for case in cases:
        given = {key.split("::")[2]: vectors[key] for key in vectors.files if key.startswith(f"{case}::in::")}
        # Chosen rows stand first there, and by turns with the rejected ones here.
        rows = torch.arange(8).view(2, 4).T.flatten()
        columns = {name: torch.tensor(values).double()[rows] for name, values in given.items()}
        mask = columns["completion_mask"][:, 1:]
        hidden = {
            name: values.where(mask == 1, math.nan) for name, values in columns.items() if values.shape == mask.shape
        }
        told = batch(mask, ref_logps=hidden["ref_per_token_logps"])
        if "log_sum_sq_probs" in hidden:
            told = batch(mask, ref_logps=hidden["ref_per_token_logps"], log_squares=hidden["log_sum_sq_probs"])
        algorithm = setting(json.loads(str(vectors[f"{case}::args"])))
        loss, gradient, stats = evaluated(algorithm, told, hidden["per_token_logps"])
        wanted = json.loads(str(vectors[f"{case}::scalars"]))
        assert float(loss) == pytest.approx(wanted["loss"], rel=1e-4, abs=1e-5), case
        # TRL sums what its callers have masked, so its gradient goes on where nothing is trained.
        expected = vectors[f"{case}::out::grad_per_token_logps"][rows.numpy()] * mask.numpy()
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-5, err_msg=case)
        for side in ("chosen", "rejected"):
            assert stats[f"logps/{side}"] == pytest.approx(wanted[f"metric_logps_{side}"], rel=1e-4, abs=1e-5), case
        if case != "sft":
            for ours, theirs in (("accuracy", "accuracies"), ("chosen", "chosen"), ("margin", "margins")):
                found = stats[f"rewards/{ours}"]
                assert found == pytest.approx(wanted[f"metric_rewards_{theirs}"], rel=1e-4, abs=1e-5), case


def two_pairs() -> tuple[Batch, torch.Tensor]:
    """c = 2, r = -1 (of two tokens and one), then c = 0, r = 1."""
    mask = torch.tensor([[1, 1], [1, 0], [1, 0], [1, 0]]).double()
    logps = torch.tensor([[-1.0, -1.0], [-3.0, 0.0], [-2.0, 0.0], [-1.0, 0.0]]).double()
    return batch(mask, ref_logps=torch.tensor([[-2.0, -2.0], [-2.0, 0.0], [-2.0, 0.0], [-2.0, 0.0]]).double()), logps


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (Dpo(beta=0.5), -(log_sigmoid(1.5) + log_sigmoid(-0.5)) / 2),
        (
            Dpo(losses=("cdpo",), beta=0.5, label_smoothing=0.2),
            -(0.8 * log_sigmoid(1.5) + 0.2 * log_sigmoid(-1.5) + 0.8 * log_sigmoid(-0.5) + 0.2 * log_sigmoid(0.5)) / 2,
        ),
        (Dpo(losses=("ipo",), beta=0.5), ((2 / 2 + 1 - 1) ** 2 + (0 - 1 - 1) ** 2) / 2),
        (Dpo(losses=("ipo_sum",), beta=0.5), ((3 - 1) ** 2 + (-1 - 1) ** 2) / 2),
        (Dpo(losses=("hinge",), beta=0.5), (0 + 1.5) / 2),
        (Dpo(losses=("sft",)), (1 + 1 + 2) / 3),
        (Dpo(losses=("sft",), average="sequence"), (1 + 2) / 2),
        (Dpo(losses=("hinge", "sft"), loss_weights=(1, 0.5), beta=0.5), 0.75 + 0.5 * 4 / 3),
        # c sorts to 0, 2 and r to -1, 1: the differences are 1 and 1.
        (Dpo(losses=("aot_unpaired",), beta=0.5), -log_sigmoid(0.5)),
        # Margins of the policy are 1 and -1 (sorted -1, 1), of the reference -2 and 0: the differences are 1 and 1.
        (Dpo(losses=("aot",), beta=0.5), -log_sigmoid(0.5)),
        # The second of the longer answer's two tokens counts half: c = 1.5, d = 2.5.
        (Dpo(losses=("ipo_sum",), beta=0.5, length_alpha=0.5), ((2.5 - 1) ** 2 + (-1 - 1) ** 2) / 2),
    ],
)
def test_losses_by_hand(algorithm: Dpo, expected: float) -> None:
    loss, _, stats = evaluated(algorithm, *two_pairs())
    assert float(loss) == pytest.approx(expected)
    if algorithm.reference:
        assert stats["rewards/accuracy"] == 0.5
        longer = 3 if algorithm.length_alpha == 1 else 2.5
        assert stats["rewards/margin"] == pytest.approx(algorithm.beta * (longer - 1) / 2)


@pytest.mark.parametrize("loss", get_args(Preference))
def test_no_loss_overflows(loss: str) -> None:
    """Log-ratios of hundreds are common where answers are long; float32 must bear them."""
    mask = torch.ones(2, 50)
    for distance in (-40.0, -1.0, 0.0, 1.0, 40.0):
        logps = torch.stack([torch.full((50,), -1.0 + distance), torch.full((50,), -1.0 - distance)])
        for divergence in ("reverse_kl", "forward_kl", "js", "alpha"):
            if loss != "aot" or divergence == "reverse_kl":
                algorithm = Dpo(losses=(loss,), divergence=divergence)  # type: ignore[arg-type]
                value, gradient, _ = evaluated(algorithm, batch(mask, ref_logps=-mask), logps)
                assert math.isfinite(value) or loss in ("sppo_hard", "ipo", "ipo_sum"), (distance, divergence)
                assert gradient.isfinite().all() or not math.isfinite(value), (distance, divergence)


def test_alpha_divergence_meets_the_others_at_its_ends() -> None:
    x = torch.linspace(-2, 2, 9).double()
    torch.testing.assert_close(compute_score(x, "alpha", 1.0), x)
    torch.testing.assert_close(compute_score(x, "alpha", 0.0), compute_score(x, "forward_kl", 0.5))
    torch.testing.assert_close(compute_score(x, "alpha", 1 + 1e-9), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"losses": ()},
        {"losses": ("sigmoid", "sft"), "loss_weights": (1.0,)},
        {"beta": 0.0},
        {"label_smoothing": 0.5},
        {"length_alpha": 1.5},
        {"losses": ("aot", "aot_unpaired")},
        {"losses": ("aot",), "weighted": True},
        {"losses": ("aot",), "divergence": "js"},
    ],
)
def test_settings_that_no_run_can_mean_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"algorithm\."):
        Dpo(**settings)


def test_a_policy_that_is_its_reference_has_no_margin() -> None:
    """The reference is scored with the same tokens and temperature: the first loss is log 2 and nothing is preferred,
    whether the reference is kept or was scored beforehand."""
    rollouts = [make_rollout(random.Random(seed)) for seed in range(6)]
    for beforehand in (False, True):
        for rollout in rollouts:
            rollout.ref_logps, rollout.teacher_prompt = None, ()
        model = make_model()
        learner = Learner(model, Dpo(precompute_reference=beforehand), LearnerSettings(), temperature=0.7)
        assert (learner.reference is None) is beforehand
        learner.score(rollouts, old=False, reference=model if beforehand else None)
        stats = learner.accumulate(rollouts)
        assert stats["train/loss"] == pytest.approx(math.log(2), abs=1e-12)
        assert stats["rewards/margin"] == pytest.approx(0, abs=1e-12)
        assert stats["logps/chosen"] == pytest.approx(
            sum(sum(rollout.ref_logps or ()) for rollout in rollouts[0::2]) / 3
        )


def test_right_answers_are_paired_with_wrong_ones() -> None:
    def answer(token: int, correct: bool, tier: str = "string") -> Rollout:
        rollout = Rollout(Problem("p", "?", "1"), (0,), (token,), (-1.0,), "", "stop")
        rollout.grade = Grade(float(correct), correct, True, None, tier=tier)
        return rollout

    group = [answer(1, True), answer(1, True), answer(2, False), answer(3, True), answer(4, False, "timeout")]
    more = [answer(5, False), answer(6, False), answer(7, True), answer(8, True)]

    def tokens(algorithm: OnlineDpo) -> list[int]:
        return [rollout.output[0] for rollout in algorithm.rows([group, more, group[:2]])]

    assert tokens(OnlineDpo()) == [1, 2, 7, 5, 8, 6]
    assert tokens(OnlineDpo(pairs_per_problem=1)) == [1, 2, 7, 5]
    assert tokens(OnlineDpo(pairs_per_problem=0)) == [1, 2, 7, 5, 8, 6], "0 takes all pairs"
