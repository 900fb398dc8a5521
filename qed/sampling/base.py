"""The sampler interface: token ids in, token ids and log-probs out, and new weights after an update.

A sampler works with tokens and weights, not with problems or rewards. The learner reads the sampled ids and log-probs
unchanged, including the end token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

from torch import nn

from qed.config.sampling_settings import SamplingSettings
from qed.errors import UsageError
from qed.types import Completion

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy, with the log-probs of temperature 1.

    After the temperature, `top_k` keeps that many of the most likely tokens, `top_p` the smallest set whose
    probabilities reach that sum, `min_p` those with at least that share of the largest probability; in this order, as
    in transformers. vLLM applies min-p first, which matters only together with top-p. Log-probs are those of the
    truncated distribution.

    The first `min_tokens` tokens of an answer cannot end it: end tokens, and single tokens that contain a stop string,
    have probability 0, and a longer stop string completed by them is ordinary text. `record` requests the `support` of
    completions, without which a learner cannot compute the log-probs of a truncated distribution.
    """

    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    record: bool = False

    @property
    def whole(self) -> bool:
        """Return whether the distribution is not truncated, so that every token can be sampled."""
        return self.top_p >= 1 and self.top_k == 0 and self.min_p == 0


class PromptRequest(NamedTuple):
    """A prompt with a seed for each answer; the parameters are those of the tokens still to be sampled."""

    prompt: Sequence[int]
    seeds: Sequence[int]
    sampling: Sampling


class PromptBatch(NamedTuple):
    """A request to `Sampler.generate`: prompts to complete with the same parameters."""

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[Sequence[int]]
    sampling: Sampling
    prefix_lengths: Sequence[int] = ()

    @property
    def longest(self) -> int:
        """The largest number of tokens that a prompt and its answer may have."""
        return max(map(len, self.prompts), default=0) + self.sampling.max_tokens

    def list_prompts(self) -> Iterator[PromptRequest]:
        """Yield the prompts, with sampling parameters adjusted for answer tokens that are already given."""
        lengths = self.prefix_lengths or [0] * len(self.prompts)
        for prompt, seeds, given in zip(self.prompts, self.seeds, lengths, strict=True):
            most, least = self.sampling.max_tokens - given, max(0, self.sampling.min_tokens - given)
            yield PromptRequest(prompt, seeds, replace(self.sampling, max_tokens=most, min_tokens=least))


def build_sampling(settings: SamplingSettings, stop: tuple[str, ...] = ()) -> Sampling:
    """Build the sampling parameters of training; `stop` holds the stop strings of the prompt template and the user."""
    sampling = Sampling(
        settings.temperature,
        settings.max_tokens,
        stop,
        top_p=settings.top_p,
        top_k=max(0, settings.top_k),
        min_p=settings.min_p,
        min_tokens=settings.min_tokens,
    )
    return replace(sampling, record=not sampling.whole or sampling.min_tokens > 0)


def require_support(completion: Completion, sampling: Sampling) -> None:
    """Require that a completion has the support if it was requested.

    Raises:
        UsageError: the sampler cannot record it.
    """
    if sampling.record and completion.support is None:
        raise UsageError(
            "The sampler does not report which tokens sampling.top_p, top_k, min_p and min_tokens left at each "
            "position, so the learner cannot compute the log-probs that the answers were sampled with. A custom "
            "sampler must fill Completion.support if Sampling.record is set; --sampling.sampler native and hf do."
        )


def has_exact_logps(sampler: Sampler) -> bool:
    """Return a sampler's `exact_logps`; False if it has no such attribute."""
    return bool(getattr(sampler, "exact_logps", False))


def is_remote(sampler: Sampler) -> bool:
    """Return whether a sampler samples with copies of the weights outside of this process."""
    return bool(getattr(sampler, "remote", False))


def load_remote(sampler: Sampler, weights: nn.Module, version: int) -> None:
    """Load weights into a remote sampler that has another version; an in-process sampler reads the current ones."""
    if is_remote(sampler) and getattr(sampler, "version", None) != version:
        sampler.load(weights, version)


def keep_prefixes(sampler: Sampler) -> AbstractContextManager[None]:
    """Within the context, let a sampler cache its computations for answers that later calls continue, if it can."""
    keep = getattr(sampler, "keep_prefixes", None)
    return nullcontext() if keep is None else keep()


def generate_batches(sampler: Sampler, batches: Sequence[PromptBatch]) -> list[list[list[Completion]]]:
    """Return what `generate` returns for each batch.

    The sampler completes all batches together if the class that defines its `generate` also defines `generate_batches`;
    one that wraps a sampler or overrides only `generate` gets one batch after another.
    """
    kind = next((kind for kind in type(sampler).__mro__ if "generate" in vars(kind)), object)
    if len(batches) > 1 and "generate_batches" in vars(kind):
        found: list[list[list[Completion]]] = sampler.generate_batches(batches)  # type: ignore[attr-defined]
        return found
    # A custom sampler may not support prefixes.
    return [sampler.generate(*(batch if any(batch.prefix_lengths) else batch[:3])) for batch in batches]


def share_work(sampler: Sampler, compute: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """Compute a list from items; if ranks share the sampler, each does its part and all get the same results."""
    share = getattr(sampler, "share_work", None)
    return compute(items) if share is None else share(compute, items)


class Sampler(Protocol):
    """Generates completions of prompts with the weights it has loaded."""

    @property
    def exact_logps(self) -> bool:
        """Return whether its log-probs equal the learner's up to float32 rounding, so that their ratio is 1."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix_lengths: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """Generate one completion for each seed of each prompt; its random numbers depend only on its seed.

        Args:
            prompts: token ids.
            seeds: for each prompt, one seed per completion.
            sampling: temperature, maximum length and stop strings.
            prefix_lengths: for each prompt, how many of its last tokens are already part of the answer. They count
                towards `max_tokens`, and only the continuation is returned. Empty means 0 for all prompts.
        """
        ...

    def load(self, weights: nn.Module, version: int) -> None:
        """Use these weights for sampling from now on; `version` is the step that produced them."""
        ...
