"""Law 3: what the sampler wrote is what the learner reads, end token included; masks are made by position."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import VOCABULARY, make_model, make_rollout

from qed.algorithms.grpo import Grpo
from qed.config.settings import LearnerSettings
from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.training.batch import collate
from qed.training.learner import Learner
from qed.training.logps import compute_logps
from qed.types import Problem, Rollout


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6), pad=st.integers(0, VOCABULARY - 1))
def test_a_batch_holds_every_sampled_token_at_its_place(seed: int, count: int, pad: int) -> None:
    """Also when the pad id is the end id, or stands in the answer itself."""
    source = random.Random(seed)
    rollouts = [make_rollout(source) for _ in range(count)]
    batch = collate(rollouts, pad=pad, dtype=torch.float64)
    for row, rollout in enumerate(rollouts):
        chosen = batch.mask[row].bool()
        assert tuple(batch.labels[row][chosen].tolist()) == rollout.output
        assert tuple(batch.sampled_logps[row][chosen].tolist()) == rollout.logps
        assert tuple(batch.old_logps[row][chosen].tolist()) == rollout.old_logps
        assert tuple(batch.ref_logps[row][chosen].tolist()) == rollout.ref_logps
        read = tuple(batch.inputs[row][batch.attention[row].bool()].tolist())
        assert read == (rollout.prompt + rollout.output)[:-1]


def test_the_learner_finds_the_log_probs_that_the_sampler_wrote() -> None:
    """Same ids, same positions, same temperature: padded left for sampling, right for learning."""
    model = make_model(dtype=torch.float32)
    sampler = HFSampler(model, tokenizer=None, ends=(1,))
    prompts = [(5,), (3, 4, 5, 6, 7, 8), (9, 2)]
    seeds = [[derive_seed("kept", which, number) for number in range(6)] for which in range(len(prompts))]
    sampled = sampler.generate(prompts, seeds, Sampling(temperature=1.3, max_tokens=7))
    rollouts = [
        Rollout(Problem("p", "?", "1"), prompt, answer.tokens, answer.logps, "", answer.stop_reason)
        for prompt, group in zip(prompts, sampled, strict=True)
        for answer in group
    ]
    assert {rollout.stop_reason for rollout in rollouts} == {"stop", "length"}
    for rollout in rollouts:
        assert len(rollout.output) == len(rollout.logps) <= 7
        assert (rollout.output[-1] == 1) == (rollout.stop_reason == "stop")
        assert 1 not in rollout.output[:-1]
    batch = collate(rollouts)
    with torch.no_grad():
        logps, _ = compute_logps(model, batch, temperature=1.3)
    torch.testing.assert_close(logps, batch.sampled_logps, rtol=1e-4, atol=1e-5)


def test_scoring_writes_one_log_prob_for_each_token_whatever_the_cut() -> None:
    model = make_model()
    rollouts = [make_rollout(random.Random(seed)) for seed in range(5)]
    for rollout in rollouts:
        rollout.old_logps = None
    scores = []
    for budget in (1, 10**6):
        learner = Learner(model, Grpo(kl=0.1), LearnerSettings(tokens_per_microbatch=budget), temperature=0.7)
        learner.score(rollouts, old=True)
        assert all(len(rollout.old_logps or ()) == len(rollout.output) for rollout in rollouts)
        # The reference is a copy of the policy as it stood, so before any update the two agree on the same prompt.
        alike = [rollout.old_logps == rollout.ref_logps for rollout in rollouts]
        assert alike == [not rollout.teacher_prompt for rollout in rollouts]
        scores.append(torch.tensor([value for rollout in rollouts for value in rollout.old_logps or ()]))
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-9, atol=1e-10)


def test_a_single_update_takes_the_sampled_log_probs() -> None:
    """With one optimizer step the policy is still the one that sampled, and nothing is computed twice."""
    rollouts = [make_rollout(random.Random(seed)) for seed in range(3)]
    for rollout in rollouts:
        rollout.old_logps = None
    Learner(make_model(), Grpo(), LearnerSettings()).score(rollouts, old=False)
    assert all(rollout.old_logps is None for rollout in rollouts)
    batch = collate(rollouts)
    assert torch.equal(batch.old_logps, batch.sampled_logps)


def test_an_answer_of_an_older_policy_is_compared_with_that_one() -> None:
    """Whatever was scored since; but where its sampler told no log-probs, or where all of it was given, the score
    stays."""
    sampled = Rollout(Problem("p", "?", "1"), (0,), (2, 3), (-1.0, -2.0), "", "stop", version=3)
    rows = [
        sampled,
        replace(sampled, logps=(0.0, -2.0), sampled_mask=(False, True)),
        replace(sampled, version=4),
        replace(sampled, logps=(-1.0, math.nan)),
        replace(sampled, logps=(0.0, 0.0), sampled_mask=(False, False)),
    ]
    Learner(make_model(), Grpo(), LearnerSettings()).score(rows, old=True, version=4)
    assert [row.old_logps is None for row in rows] == [True, True, False, False, False]
    assert collate(rows[:1]).old_logps[0, -2:].tolist() == [-1.0, -2.0]
