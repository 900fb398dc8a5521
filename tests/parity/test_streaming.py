"""A streamed answer is the answer that a batch gives, of either sampler, and grows token by token."""

from __future__ import annotations

import pytest
import torch
from making import make_model

from qed.models.load import build_model
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.types import Completion

PROMPT, SEED = (3, 4, 5), 7


@pytest.mark.parametrize("kind", [HFSampler, NativeSampler])
@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, 12), Sampling(0.0, 12), Sampling(0.7, 30, top_p=0.9, top_k=5)], ids=str
)
def test_what_streams_is_what_is_generated(kind: type[HFSampler], sampling: Sampling) -> None:
    sampler = kind(make_model(dtype=torch.float32), None, (1,))
    seen: list[list[int]] = []
    streamed = sampler.stream(PROMPT, SEED, sampling, seen.append)
    ((completion,),) = sampler.generate([PROMPT], [[SEED]], sampling)
    assert (streamed.tokens, streamed.stop_reason) == (completion.tokens, completion.stop_reason)
    assert streamed.logps == pytest.approx(completion.logps, abs=1e-5)
    assert [len(tokens) for tokens in seen] == list(range(1, len(streamed.tokens) + 1))
    assert all(tuple(tokens) == streamed.tokens[: len(tokens)] for tokens in seen)


@pytest.mark.parametrize("kind", [HFSampler, NativeSampler])
def test_a_stop_string_ends_a_stream(kind: type[HFSampler]) -> None:
    model, tokenizer = build_model("new:tiny", ["one two 1 2 3"], seed=0)
    sampler = kind(model.eval(), tokenizer, (tokenizer.eos_token_id,))

    def stream(stop: tuple[str, ...]) -> Completion:
        return sampler.stream(PROMPT, SEED, Sampling(1.0, 40, stop), lambda _: None)

    whole = tokenizer.decode(stream(()).tokens)
    stop = next(character for character in whole[3:] if character != "\ufffd")
    completion = stream((stop,))
    assert completion.stop_reason == "stop"
    assert stop in tokenizer.decode(completion.tokens)
    assert completion == sampler.generate([PROMPT], [[SEED]], Sampling(1.0, 40, (stop,)))[0][0]


def test_an_exception_ends_the_sampling_and_the_sampler_goes_on() -> None:
    sampler = NativeSampler(make_model(dtype=torch.float32), None, (1,))

    def stop(tokens: list[int]) -> None:
        if tokens:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampler.stream(PROMPT, SEED, Sampling(1.0, 12), stop)
    assert torch.is_grad_enabled()
    assert sampler.generate([PROMPT], [[SEED]], Sampling(1.0, 12))
