"""The loss of reward models as in TRL's RewardTrainer, and the scores that they then give to answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from making import make_model

from qed.algorithms.reward_model import RewardModel
from qed.config.reward_names import parse_reward
from qed.config.settings import LearnerSettings, ModelSettings
from qed.errors import DataError, UsageError
from qed.loops.scores import mark_scores, measure_ranking, score_replies
from qed.models.load import build_model, prepare_model
from qed.models.precision import compute_in
from qed.models.save import save_model
from qed.models.scalar_head import Calibration, build_scalar_model, write_calibration
from qed.rewards.grader import make_grader
from qed.rewards.model import ModelReward
from qed.training.learner import Learner
from qed.types import Problem, Rollout

EXACT = {"rtol": 0, "atol": 1e-9}


def make_pairs() -> list[list[Rollout]]:
    """Three pairs of replies of unequal lengths; the data gives the second one a margin of its own."""
    replies = [([3, 4, 1], [5, 1]), ([6, 1], [7, 8, 9, 1]), ([10, 1], [11, 1])]
    pairs = []
    for number, pair in enumerate(replies):
        problem = Problem(f"p{number}", "?", "", meta={"margin": 0.4} if number == 1 else {})
        pairs.append([Rollout(problem, [2, 12, 13 + number], output, (), "", "stop") for output in pair])
    return pairs


@pytest.mark.parametrize(("margin", "centre"), [(0.0, 0.0), (0.3, 0.0), (0.2, 0.05)])
def test_the_loss_and_its_gradient_are_those_of_trl(margin: float, centre: float) -> None:
    """The scores by transformers' own forward pass, which reads them at the last token; the loss from its formula."""
    torch.manual_seed(0)
    model = build_scalar_model(make_model())
    torch.nn.init.normal_(model.score.weight)
    pairs = make_pairs()
    with compute_in("cpu", torch.float64):
        rewards = [
            [model(input_ids=torch.tensor([[*reply.prompt, *reply.output]])).logits[0, 0] for reply in pair]
            for pair in pairs
        ]
    chosen, rejected = (torch.stack([pair[side] for pair in rewards]) for side in (0, 1))
    margins = torch.tensor([margin, 0.4, margin], dtype=torch.float64)
    expected = -torch.nn.functional.logsigmoid(chosen - rejected - margins).mean()
    expected = expected + centre * ((chosen + rejected) ** 2).mean()
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    expected = expected.detach()
    for budget in (1, 10**6):
        settings = LearnerSettings(lr=1e-3, tokens_per_microbatch=budget, packing=False)
        learner = Learner(model, RewardModel(margin=margin, centre=centre), settings, precision=torch.float64)
        model.zero_grad()
        stats = learner.accumulate([reply for pair in mark_scores(pairs, margin) for reply in pair])
        assert stats["train/loss"] == pytest.approx(float(expected), abs=1e-9)
        assert stats["rewards/accuracy"] == pytest.approx(float((chosen > rejected).double().mean()))
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(weight.grad, gradient, **EXACT)
    found = score_replies(learner, [reply for pair in mark_scores(pairs, 0) for reply in pair])
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        torch.stack([one for pair in rewards for one in pair]).detach(),
        **EXACT,
    )
    share = float((chosen > rejected).double().mean())
    ranked = measure_ranking(learner, mark_scores(pairs, 0))
    assert ranked["eval/validation/preferred"] == share
    assert ranked["eval/validation/preferred/ci_lo"] < share + 1e-9 < ranked["eval/validation/preferred/ci_hi"] + 2e-9


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A reward model in a folder, with scores of mean 2 and deviation 4 on its training pairs."""
    policy, tokenizer = build_model("new:tiny", ["12+34=46 "] * 50, seed=1)
    model = build_scalar_model(prepare_model(policy, ModelSettings(), torch.device("cpu")))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.score.weight)
    write_calibration(model, Calibration(2.0, 4.0))
    folder = tmp_path_factory.mktemp("saved")
    save_model(model, tokenizer, folder / "calibrated")
    del model.config.score_mean, model.config.score_deviation
    save_model(model, tokenizer, folder / "foreign")
    return folder, model, tokenizer


def answer(tokenizer: Any, question: str, text: str) -> Rollout:
    ids, output = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (question, text))
    problem = Problem("p", question, "46")
    return Rollout(problem, ids, [*output, tokenizer.eos_token_id], (), text, "stop", prompt_text=question)


def test_answers_are_scored_in_batches_as_alone_and_calibrated(saved: tuple[Path, Any, Any]) -> None:
    folder, model, tokenizer = saved
    answers = [answer(tokenizer, "12+34=", text) for text in ("46", "4", "46 46 46", "12")]
    for budget in ("16384", "20"):
        names, options = (f"model:{folder / 'calibrated'}",), (f"model.tokens_per_batch={budget}",)
        grader = make_grader(names, options)
        assert grader.judge is None
        for rollout, grade in zip(answers, grader([answers[:3], answers[3:]])[0], strict=False):
            ids = torch.tensor([[*rollout.prompt, *rollout.output]])
            score = float(model(input_ids=ids).logits[0, 0])
            assert grade.parts == pytest.approx({"model": (score - 2) / 4, "model/score": score}, abs=1e-4)
            assert grade.reward == pytest.approx((score - 2) / 4, abs=1e-4)
            assert not grade.correct


def test_a_foreign_model_reads_its_own_chat_template(saved: tuple[Path, Any, Any]) -> None:
    folder, model, tokenizer = saved
    rollout = answer(tokenizer, "12+34=", "46")
    grade = ModelReward(folder=str(folder / "foreign"))(rollout)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "12+34="}, {"role": "assistant", "content": "46"}], tokenize=False
    )
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    assert grade.reward == pytest.approx(float(model(input_ids=ids).logits[0, 0]), abs=1e-4)


def test_a_score_that_is_not_finite_breaks_only_its_answer(
    saved: tuple[Path, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, tokenizer = saved
    monkeypatch.setattr(ModelReward, "_score", lambda _, rows: [math.nan if len(row) > 9 else 1.0 for row in rows])
    answers = [answer(tokenizer, "12+34=", text) for text in ("4", "12 12 12 12 12 12")]
    good, bad = make_grader((f"model:{folder / 'calibrated'}",))([answers])[0]
    assert (good.tier, bad.tier) == ("model", "error")


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert parse_reward("0.5*model:runs/rm").folder == "runs/rm"
    with pytest.raises(UsageError, match="model:FOLDER"):
        make_grader(("model",))
    with pytest.raises(UsageError, match="cannot be used"):
        make_grader((f"model:{tmp_path}",))
    (tmp_path / "own.py").write_text("def reward(rollout):\n    return None\n", encoding="utf-8")
    with pytest.raises(UsageError, match="would each load the model"):
        make_grader((f"model:{tmp_path}", str(tmp_path / "own.py")))


def build_pair(margin: Any) -> list[Rollout]:
    problem = Problem("p0", "Why?", "", meta={"margin": margin})
    return [Rollout(problem, (5,), (2, 3), (), "", "stop") for _ in range(2)]


@pytest.mark.parametrize(
    ("given", "margin"), [(0.4, 0.4), (2, 2.0), (0, 0.0), (-0.5, -0.5), ("0.4", 0.4), ("", 0.3), (" ", 0.3)], ids=repr
)
def test_a_margin_of_the_data_stands_above_that_of_the_algorithm(given: Any, margin: float) -> None:
    ((chosen, rejected),) = mark_scores([build_pair(given)], 0.3)
    assert (chosen.advantage, rejected.advantage) == (margin, 0.0)


@pytest.mark.parametrize("given", ["big", [1], {"a": 1}, True, math.nan, "nan", math.inf, 10**400], ids=str)
def test_a_margin_that_is_no_finite_number_is_refused(given: Any) -> None:
    with pytest.raises(DataError, match=r"margin of the pair p0 \('Why\?'\) is .* finite number"):
        mark_scores([build_pair(given)], 0.3)
