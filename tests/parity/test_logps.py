"""A batch has the log-probs of the model's own logits, in any precision; positions are right; samples follow them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from making import make_model, make_rollout
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.training import logps as logps_module
from qed.training.batch import collate
from qed.training.logps import compute_logps
from qed.types import Problem, Rollout

SMALL = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def families() -> dict[str, nn.Module]:
    """One small random model of each family; GPT-2 has absolute positions."""
    torch.manual_seed(1)
    common = {**SMALL, "num_key_value_heads": 2, "initializer_range": 0.3}
    return {
        "qwen2": make_model(),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**common, head_dim=4)).double().eval(),
        "llama": LlamaForCausalLM(LlamaConfig(**common)).double().eval(),
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=16, n_layer=2, n_head=4, n_positions=64))
        .double()
        .eval(),
    }


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "gpt2"])
def test_a_batch_equals_the_models_own_logits_row_by_row(family: str) -> None:
    """Padding on the right leaves every position where it is, for rotary and for absolute embeddings."""
    model = families()[family]
    rollouts = [make_rollout(random.Random(seed)) for seed in range(5)]
    batch = collate(rollouts, pad=3, dtype=torch.float64)
    logps, _ = compute_logps(model, batch, temperature=0.8)
    for row, rollout in enumerate(rollouts):
        ids = torch.tensor([rollout.prompt + rollout.output])
        log_probs = (model(ids).logits[0, :-1] / 0.8).log_softmax(-1)
        own = log_probs.gather(-1, ids[0, 1:, None]).squeeze(-1)[len(rollout.prompt) - 1 :]
        torch.testing.assert_close(logps[row][batch.mask[row].bool()], own, rtol=1e-8, atol=1e-9)
    assert not logps[batch.mask == 0].any()


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "gpt2"])
def test_the_sampler_is_greedy_as_the_model_is(family: str) -> None:
    """Temperature 0 takes the most likely token of a forward pass without padding or cache, and reports its
    log-prob."""
    model = families()[family]
    prompts = [(5,), (3, 4, 5, 6, 7, 8), (9, 2, 11)]
    answers = HFSampler(model, None, ends=(1, 2)).generate(prompts, [[0]] * 3, Sampling(temperature=0.0, max_tokens=8))
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        ids = list(prompt)
        for token, logp in zip(answer.tokens, answer.logps, strict=True):
            log_probs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            assert token == int(log_probs.argmax())
            assert logp == pytest.approx(float(log_probs[token].detach()), abs=1e-4)
            ids.append(token)
        assert (answer.tokens[-1] in (1, 2)) == (answer.stop_reason == "stop")


def test_autocast_reaches_both_passes() -> None:
    """In bfloat16 gradients stay near those of float32, and the sampler agrees with the learner."""
    model = make_model(dtype=torch.float32)
    batch = collate([make_rollout(random.Random(seed)) for seed in range(5)])
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            logps, _ = compute_logps(model, batch, 1.0)
        assert logps.dtype == torch.float32
        logps.sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    difference = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    assert 0 < difference < 0.15
    seen: list[torch.dtype] = []
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.MonkeyPatch.context() as patch:
        fused = logps_module.compute_linear_scores
        patch.setattr(logps_module, "compute_linear_scores", lambda h, *rest: seen.append(h.dtype) or fused(h, *rest))
        compute_logps(model, batch, 1.0)
    assert seen == [torch.bfloat16], "a backward pass by hand sees no autocast, so it must be given the precision"
    sampler = HFSampler(model, None, ends=(1,), precision=torch.bfloat16)
    (answers,) = sampler.generate([(4, 7)], [[derive_seed("half", n) for n in range(20)]], Sampling(1.0, 6))
    rollouts = [Rollout(Problem("p", "?", "1"), (4, 7), a.tokens, a.logps, "", a.stop_reason) for a in answers]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logps, _ = compute_logps(model, collate(rollouts), 1.0)
    assert (logps - collate(rollouts).sampled_logps).abs().max() < 0.1


def test_samples_follow_the_distribution() -> None:
    """20,000 draws of one token at temperature 1.5 against the softmax, by chi-square with 22 degrees of freedom."""
    model = make_model()
    sampling = Sampling(temperature=1.5, max_tokens=1)
    seeds = [[derive_seed("frequency", number) for number in range(20_000)]]
    (answers,) = HFSampler(model, None, ends=(1,), rows_per_batch=20_000).generate([(4, 7)], seeds, sampling)
    expected = (model(torch.tensor([[4, 7]])).logits[0, -1] / 1.5).softmax(-1).detach().numpy() * len(answers)
    counted = np.bincount([answer.tokens[0] for answer in answers], minlength=23)
    assert ((counted - expected) ** 2 / expected).sum() < 48.3  # the 99.9 % quantile
    for answer in answers[:50]:
        assert answer.logps[0] == pytest.approx(float(np.log(expected[answer.tokens[0]] / len(answers))), abs=1e-4)


def test_stop_strings_end_an_answer_and_are_kept() -> None:
    class Letters:
        """A tokenizer of single letters."""

        def batch_decode(self, rows: torch.Tensor, skip_special_tokens: bool) -> list[str]:
            return ["".join(chr(97 + int(token)) for token in row) for row in rows]

    model = make_model()
    seeds = [[derive_seed("stop", number) for number in range(200)]]
    sampling = Sampling(temperature=2.0, max_tokens=20, stop=("ab", "c"))
    (answers,) = HFSampler(model, Letters(), ends=(22,), rows_per_batch=64).generate([(4,)], seeds, sampling)
    for answer in answers:
        text = "".join(chr(97 + token) for token in answer.tokens)
        ends = text.endswith(("ab", "c", "w"))
        assert ends == (answer.stop_reason == "stop")
        assert not any(stop in text[:-1] for stop in ("ab", "c", "w"))
        assert len(answer.tokens) == 20 or ends
    assert {answer.stop_reason for answer in answers} == {"stop", "length"}


def test_the_models_own_sampling_habits_are_left_out_and_kept() -> None:
    """A checkpoint that asks for top-k 1 and a repetition penalty is sampled at full width, and saves its habits
    unchanged."""
    model = make_model()
    model.generation_config.update(do_sample=True, top_k=1, repetition_penalty=3.0, temperature=0.1)
    habits = model.generation_config.to_dict()
    seeds = [[derive_seed("habits", number) for number in range(300)]]
    (answers,) = HFSampler(model, None, ends=(1,)).generate([(4,)], seeds, Sampling(temperature=1.0, max_tokens=1))
    assert len({answer.tokens for answer in answers}) > 5
    assert model.generation_config.to_dict() == habits
