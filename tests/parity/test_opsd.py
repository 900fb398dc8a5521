"""OPSD: its loss in closed form, who learns from the teacher, and what the teacher is shown."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from families import make_family
from making import VOCABULARY, make_model, make_rollout

from qed.algorithms.opd import Opd
from qed.algorithms.opsd import Opsd
from qed.config.settings import LearnerSettings
from qed.data.prompts import chat, r1_zero
from qed.data.prompts.base import PromptTemplate
from qed.errors import UsageError
from qed.models.load import build_model
from qed.rollout.replay import decode_rollout, encode_rollout
from qed.rollout.teacher_prompts import show_demonstrations, word_problem
from qed.training.learner import Learner
from qed.types import Problem, Rollout

TEMPERATURE = 0.7
PROBLEM = Problem("p", "What is 1 + 2?", "3", "One and two make {question} three.")


def draw(seed: int, shown: bool) -> Rollout:
    """An answer of the policy alone, to a problem whose demonstration the teacher sees or not."""
    source = random.Random(seed)
    prompt = tuple(source.randrange(VOCABULARY) for _ in range(7)) if shown else ()
    return replace(make_rollout(source, 0.0), sampled_mask=(), behaviour=(), teacher_prompt=prompt)


def compute_log_probs(model: Any, prompt: Any, output: Any) -> torch.Tensor:
    """The whole distributions at the tokens of an output, from a plain forward pass."""
    ids = torch.tensor([[*prompt, *output]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return (logits / TEMPERATURE).log_softmax(-1)


def compute_expected(policy: Any, teacher: Any, rows: list[Rollout], clip: float, skip: int) -> torch.Tensor:
    """The mean over rows of each row's mean divergence KL(teacher || policy), clipped token by token."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        p = compute_log_probs(policy, row.prompt, row.output)
        with torch.no_grad():
            q = compute_log_probs(teacher, row.teacher_prompt, row.output)
        terms = (q.exp() * (q - p)).clamp(max=clip).sum(-1)
        total = total + terms[skip:].sum() / len(row.output)
    return total / len(rows)


def make_learner(**settings: Any) -> Learner:
    """A learner whose policy has moved away from the start, which is the teacher unless it is the policy itself."""
    learner = Learner(make_model(), Opsd(**settings), LearnerSettings(), temperature=TEMPERATURE, length=11)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.add_(0.05 * torch.randn_like(parameter))
    learner.optimizer.zero_grad(set_to_none=True)
    return learner


@pytest.mark.parametrize("teacher", ["start", "live"])
@pytest.mark.parametrize(("clip", "skip"), [(0.05, 0), (math.inf, 2)])
def test_the_loss_is_the_divergence_to_the_policy_with_the_demonstration(teacher: str, clip: float, skip: int) -> None:
    learner = make_learner(teacher_weights=teacher, divergence_clip=clip, skip_tokens=skip)
    policy = copy.deepcopy(learner.model)
    rows = [draw(seed, shown=True) for seed in range(4)]
    sums = learner.accumulate(learner.algorithm.rows([rows]))
    expected = compute_expected(policy, learner.reference or copy.deepcopy(policy), rows, clip, skip)
    expected.backward()
    for own, other in zip(learner.model.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert sums is not None


def test_problems_without_a_demonstration_stay_out_of_the_divergence() -> None:
    shown, plain = [draw(seed, shown=True) for seed in range(2)], [draw(seed, shown=False) for seed in range(2, 5)]
    assert Opsd().rows([shown, plain]) == [*shown, *plain]
    learner = make_learner(reward=0.5)
    learner.accumulate(plain)
    assert all(not parameter.grad.any() for parameter in learner.parameters if parameter.grad is not None)
    found, expected = make_learner(reward=0.5), make_learner()
    found.accumulate([*shown, *plain])
    expected.accumulate(shown)
    # The average is over all rows. Norms of the model are computed in float32, so that a factor rounds.
    for own, other in zip(found.parameters, expected.parameters, strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad * 5 / 2, other.grad, rtol=1e-5, atol=1e-6)
    unrewarded = make_learner()
    unrewarded.accumulate([*shown, *plain])
    for own, other in zip(unrewarded.parameters, expected.parameters, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-12)


def test_sampled_tokens_are_paid_by_what_the_teacher_thinks_of_them() -> None:
    learner = make_learner(divergence="sampled", teacher_weights="live", skip_tokens=1)
    rows = [replace(draw(seed, shown=seed < 2), old_logps=None, ref_logps=None) for seed in range(3)]
    learner.score(rows, old=True)
    (advantages,) = learner.algorithm.credit([rows])
    for row, advantage in zip(rows[:2], advantages, strict=False):
        p = compute_log_probs(learner.model, row.prompt, row.output)
        q = compute_log_probs(learner.model, row.teacher_prompt, row.output)
        gained = (q - p).gather(1, torch.tensor(row.output)[:, None])[:, 0]
        gained[0] = 0
        values = advantage if isinstance(advantage, tuple) else (advantage,) * len(row.output)
        torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), gained, rtol=1e-9, atol=1e-9)
    assert advantages[2] == 0


@pytest.mark.parametrize("leaf", [chat, r1_zero])
def test_the_teacher_sees_the_prompt_of_the_run_with_the_demonstration(leaf: Any) -> None:
    _, tokenizer = build_model("new:tiny", ["What is 1 + 2? One and two make three."], seed=0)
    template = PromptTemplate(leaf, tokenizer, (tokenizer.eos_token_id,))
    wording = "{question} A solution: {demonstration} Now you."
    text = word_problem(PROBLEM, template, wording)
    plain = template.prompt(PROBLEM).text
    before, _, after = plain.partition(PROBLEM.question)
    assert text is not None
    assert text.startswith(before)
    assert text.endswith(after)
    # What the demonstration says in braces is its own.
    assert PROBLEM.solution in text
    assert "What is 1 + 2? A solution: " in text
    counts: Counter[str] = Counter()
    row = Rollout(PROBLEM, template.tokens(template.prompt(PROBLEM)), (5, 6), (-1.0, -1.0), "", "stop")
    bare = replace(PROBLEM, id="bare", solution="", answer="")
    groups = [[row, row], [replace(row, problem=bare)]]
    show_demonstrations(groups, template, wording, 500, counts)
    assert groups[0][1].teacher_prompt == template.tokens(template.make_prompt(text))
    assert not groups[1][0].teacher_prompt
    assert counts == {"guidance/traces": 1, "guidance/without_trace": 1, "guidance/too_long": 0}
    show_demonstrations([[row]], template, wording, 3, counts)
    assert counts["guidance/too_long"] == 1
    assert decode_rollout(encode_rollout(groups[0][1]), {"p": PROBLEM}) == groups[0][1]


def test_a_prompt_that_the_data_has_rendered_keeps_its_form() -> None:
    _, tokenizer = build_model("new:tiny", ["What is 1 + 2?"], seed=0)
    template = PromptTemplate(r1_zero, tokenizer, (tokenizer.eos_token_id,))
    rendered = replace(PROBLEM, meta={"rendered": "Asked: What is 1 + 2?\nAnswer:"})
    text = word_problem(rendered, template, "{demonstration} {question}")
    assert text is not None
    assert text.startswith("Asked: ")
    assert text.endswith("What is 1 + 2?\nAnswer:")
    assert word_problem(replace(rendered, question="Another?"), template, "{demonstration} {question}") is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wording": "{question}"}, "{demonstration}"),
        ({"teacher_mix": 0.0}, "algorithm.teacher_mix"),
        ({"skip_tokens": -1}, "algorithm.skip_tokens"),
        ({"divergence_clip": 0.0}, "algorithm.divergence_clip"),
        ({"teacher_top_k": 5}, "Set algorithm.divergence_clip=inf"),
        ({"teacher_top_k": 5, "divergence_clip": math.inf, "divergence": "sampled"}, "log-probs of sampled tokens"),
        ({"kl": 0.1, "reference_every": 2}, "here it is the teacher"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Opsd(**settings)


def test_the_teacher_of_opd_does_not_move() -> None:
    with pytest.raises(UsageError, match="here it is the teacher"):
        Opd(teacher="folder", kl=0.1, reference_every=2)


def test_a_teacher_of_another_family_may_not_pack_its_rows() -> None:
    """Attention with a cap on its logits, as the teacher's, is not packed; the policy's could be."""
    policy, teacher = make_family("gemma").double(), make_family("gemma2", window=8).double()
    rows = [replace(draw(seed, shown=False), output=(5, 6, 7, 8)[: 2 + seed], logps=()) for seed in range(3)]
    rows = [replace(row, loss_mask=(), old_logps=None, ref_logps=None) for row in rows]
    algorithm = Opd(teacher="folder", divergence="forward_kl")
    assert Learner(make_family("gemma").double(), algorithm, LearnerSettings()).packing
    learner = Learner(policy, algorithm, LearnerSettings(), temperature=TEMPERATURE, reference=teacher)
    assert not learner.packing
    loss = learner.accumulate(rows)["train/loss"]
    assert loss > 0
    for row in rows:
        row.teacher_prompt = row.prompt
    tokens = sum(len(row.output) for row in rows)
    parts = [compute_expected(policy, teacher, [row], math.inf, 0) * len(row.output) / tokens for row in rows]
    assert loss == pytest.approx(sum(float(part.detach()) for part in parts), rel=1e-5)
