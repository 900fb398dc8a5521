"""A healthy sampler agrees with the learner in any family and precision; one that is broken does not, whatever breaks
it."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from making import make_model

from qed.errors import UsageError
from qed.rollout.agreement import score_independently
from qed.rollout.sampler_check import (
    LONGEST,
    TOKENS,
    Options,
    SamplerCheck,
    check_sampler,
    choose_prompts,
    require_agreement,
)
from qed.sampling.base import Sampling, has_exact_logps
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.training import attention
from qed.training.scoring import Score, score_with
from qed.types import Completion, Problem, Rollout

VOCABULARY, WINDOW = 97, 8
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 1}
OPT = {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3}
# Each with what its configuration has beside the shape, and the sampler; windows are the reference's.
FAMILIES: dict[str, tuple[str, dict[str, Any], type[HFSampler]]] = {
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, NativeSampler),
    "qwen3": ("Qwen3", {"head_dim": 8}, NativeSampler),
    "llama": ("Llama", {}, NativeSampler),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "initializer_range": 0.3, **GPT2}, NativeSampler),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}, NativeSampler),
    "olmo2": ("Olmo2", {}, NativeSampler),
    "stablelm": ("StableLm", {}, NativeSampler),
    "opt": ("OPT", OPT, NativeSampler),
    "mistral": ("Mistral", {"sliding_window": WINDOW}, HFSampler),
    "phi3": ("Phi3", {"sliding_window": WINDOW}, HFSampler),
    "starcoder2": ("Starcoder2", {"sliding_window": WINDOW}, HFSampler),
}
TEMPERATURE = 0.7
PRECISIONS = [torch.float32, torch.bfloat16]


def family(name: str) -> Any:
    kind, more, _ = FAMILIES[name]
    shape = more if name == "gpt2" else {**SHAPE, **more}
    torch.manual_seed(0)
    build = getattr(transformers, "GPT2LMHeadModel" if name == "gpt2" else f"{kind}ForCausalLM")
    return build(getattr(transformers, f"{kind}Config")(**shape)).eval()


def prompts() -> list[tuple[int, ...]]:
    source = random.Random(0)
    return [tuple(source.randrange(3, VOCABULARY) for _ in range(length)) for length in (5, 21, 40)]


def compare(sampler: Any, model: Any, precision: torch.dtype, score: Score | None = None) -> SamplerCheck:
    batches = choose_prompts(prompts(), 100, 256)
    score = score or score_with(model, TEMPERATURE)
    return check_sampler(sampler, score, batches, Sampling(TEMPERATURE, 100, top_p=0.5), precision, ("test",))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_healthy_sampler_agrees(name: str, precision: torch.dtype) -> None:
    """Also where it is asked for a cut distribution, whose log-probs are others: the comparison is of the whole one."""
    model = family(name)
    sampler = FAMILIES[name][2](model, None, ends=(1,), precision=precision)
    check = compare(sampler, model, precision)
    assert check.passed, check
    assert check.tokens > 50
    assert has_exact_logps(sampler) == (precision == torch.float32)
    require_agreement(check, sampler, Options())
    assert compare(sampler, model, precision, score_independently(model, TEMPERATURE)).passed


@pytest.mark.parametrize("precision", PRECISIONS)
def test_packed_rows_are_scored_too(precision: torch.dtype) -> None:
    model = family("qwen3")
    sampler = HFSampler(model, None, ends=(1,), precision=precision)
    assert compare(sampler, model, precision, score_with(model, TEMPERATURE, packing=True)).passed


def test_prompts_are_compared_once_and_by_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers in C++ compute the sampler's prompts, so that a fault of theirs would be in both sides."""
    model, seen = family("llama"), list[int]()
    score, prompt = score_independently(model, TEMPERATURE), prompts()[-1]
    rows = [Rollout(Problem("", "", ""), prompt, (4 + number, 5), (0.0,) * 2, "", "length") for number in range(3)]
    score(rows[:1], torch.float32)  # which first tries whether rows can be packed
    forward = type(model.model).forward

    def count_and_compute(body: Any, **given: Any) -> Any:
        seen.append(given["input_ids"].numel())
        return forward(body, **given)

    monkeypatch.setattr(type(model.model), "forward", count_and_compute)
    monkeypatch.setattr(attention, "compute_compiled_states", lambda *_: pytest.fail("layers in C++ were called"))
    found = score(rows, torch.float32)
    assert sum(seen) < 2 * len(prompt)
    for one, other in zip(found, score_with(model, TEMPERATURE)(rows, torch.float32), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_weights_of_several_precisions_are_compared() -> None:
    """Adapters stay in float32 beside weights in bfloat16: only the precision of the comparison can compute both."""
    model = family("llama").to(torch.bfloat16)
    for layer in model.model.layers:
        layer.input_layernorm.float()
    rows = [Rollout(Problem("", "", ""), prompts()[0], (4, 5), (0.0,) * 2, "", "length")]
    with pytest.raises(RuntimeError, match="dtype"):
        model(input_ids=torch.tensor([[4, 5]]))
    (found,) = score_independently(model, TEMPERATURE)(rows, torch.bfloat16)
    (expected,) = score_with(model, TEMPERATURE)(rows, torch.bfloat16)
    assert found == pytest.approx(expected, abs=0.2)


class Blind:
    """A model whose generation does not see which columns are padding."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def generate(self, attention_mask: torch.Tensor, **given: Any) -> Any:
        return self.model.generate(attention_mask=torch.ones_like(attention_mask), **given)


class Faulty(HFSampler):
    """A sampler whose answers are changed on their way."""

    change: Callable[[Completion], Completion] = staticmethod(lambda answer: answer)
    temperature: float | None = None

    def generate(self, *asked: Any) -> list[list[Completion]]:
        texts, seeds, sampling, *given = asked
        if self.temperature is not None:
            sampling = replace(sampling, temperature=self.temperature)
        found = super().generate(texts, seeds, sampling, *given)
        return [[type(self).change(answer) for answer in some] for some in found]


class Shifted(Faulty):
    change = staticmethod(lambda answer: replace(answer, logps=(0.0, *answer.logps[:-1])))


def changed_weights(model: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_(change(weight))
    return other


def without_window(model: Any) -> Any:
    config = copy.deepcopy(model.config)
    config.sliding_window = None
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    return other


def scaled(model: Any) -> Any:
    other = copy.deepcopy(model)
    head = other.get_output_embeddings()
    head.register_forward_hook(lambda _module, _inputs, logits: 1.3 * logits)
    return other


def broken(kind: str, model: Any, precision: torch.dtype) -> HFSampler:
    if kind == "temperature":
        sampler = Faulty(model, None, ends=(1,), precision=precision)
        sampler.temperature = 1.0
        return sampler
    if kind == "shifted":
        return Shifted(model, None, ends=(1,), precision=precision)
    noise = torch.Generator().manual_seed(1)
    other = {
        "padding": lambda: Blind(model),
        "window": lambda: without_window(model),
        "stale": lambda: changed_weights(model, lambda w: w + 0.05 * torch.randn(w.shape, generator=noise)),
        "scaled": lambda: scaled(model),
    }[kind]()
    return HFSampler(other, None, ends=(1,), precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["padding", "window", "shifted", "temperature", "stale", "scaled"])
def test_a_broken_sampler_is_found(kind: str, precision: torch.dtype) -> None:
    model = family("mistral")
    sampler = broken(kind, model, precision)
    check = compare(sampler, model, precision)
    assert not check.passed, check
    assert not compare(sampler, model, precision, score_independently(model, TEMPERATURE)).passed
    with pytest.raises(UsageError, match="log-probs are not the model's own"):
        require_agreement(check, sampler, Options())
    if kind == "window":
        assert check.prompt_length > WINDOW


def test_the_message_names_the_way_out() -> None:
    model = family("llama")
    check = compare(broken("shifted", model, torch.float32), model, torch.float32)
    native = NativeSampler(model, None, ends=(1,))
    with pytest.raises(UsageError, match=r"--sampler hf(.|\n)*--preflight false"):
        require_agreement(check, native, Options("--sampler", "--precision", "--preflight false"))
    with pytest.raises(UsageError, match=r"transformers' own generate(.|\n)*--model\.precision float32") as refused:
        require_agreement(check, HFSampler(model, None, ends=(1,)), Options())
    assert "hf," not in str(refused.value)


def test_log_probs_that_are_not_told_are_not_compared() -> None:
    """A sampler may not know a log-prob, which is NaN; one that is infinite is wrong."""

    class Silent(Faulty):
        change = staticmethod(lambda answer: replace(answer, logps=(math.nan,) * len(answer.logps)))

    class Certain(Faulty):
        change = staticmethod(lambda answer: replace(answer, logps=(-math.inf, *answer.logps[1:])))

    model = family("llama")
    check = compare(Silent(model, None, ends=(1,)), model, torch.float32)
    assert check.passed
    assert check.tokens == 0
    check = compare(Certain(model, None, ends=(1,)), model, torch.float32)
    assert not check.passed
    assert "Infinity" not in json.dumps(check.fields)


def test_capped_logits_are_compared_too() -> None:
    """Where the learner does not know a model's output layer, its scores come from the model's own logits."""
    shape = {**SHAPE, "head_dim": 8, "sliding_window": WINDOW, "final_logit_softcapping": 2.0}
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**shape)).eval()
    assert compare(HFSampler(model, None, ends=(1,)), model, torch.float32).passed


def test_it_leaves_no_trace() -> None:
    """The model, its mode and the global generator are as they were, and the same draws give the same figures."""
    model = make_model(dtype=torch.float32, vocab_size=VOCABULARY, max_position_embeddings=256).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    sampler = NativeSampler(model, None, ends=(1,))
    found = [compare(sampler, model, torch.float32) for _ in range(2)]
    assert found[0] == found[1]
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "window", "expected"),
    [
        ([5, 21, 40], 100, 256, [[40 + 100 - TOKENS], [2, 21, 40]]),
        ([5, 21, 40], 100, 90, [[90 - TOKENS], [2, 21, 40]]),
        ([7], 4, 1 << 30, [[3, 7]]),
        ([12] * 3, TOKENS, 512, [[4, 12]]),
        ([5], 100_000, 1 << 30, [[LONGEST - TOKENS], [2, 5]]),
        ([50, 60], 20, 40, []),
        ([], 20, 40, []),
    ],
)
def test_short_and_long_prompts_are_asked(
    lengths: Sequence[int], max_tokens: int, window: int, expected: list[list[int]]
) -> None:
    """A far one by itself, as long as prompt and answer of the run may be together; nothing beyond the window."""
    source = random.Random(0)
    some = [tuple(source.randrange(VOCABULARY) for _ in range(length)) for length in lengths]
    if len(set(lengths)) == 1:
        some = some[:1] * len(some)
    assert [[len(one) for one in batch] for batch in choose_prompts(some, max_tokens, window)] == expected
