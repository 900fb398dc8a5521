"""The model of an engine: load it as the learner's process does, load new weights, and score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qed.config.settings import ModelSettings, can_sample_at, is_temperature
from qed.errors import UsageError
from qed.models import adapters, load, lora, threads, weights_folder
from qed.models.precision import read_precision
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native import make
from qed.sampling.native.kept import KeptPrefixes
from qed.sampling.native.sampler import NativeSampler
from qed.serving.messages import EngineInfo, ModelSource, Scored, Scoring
from qed.training.scoring import list_most_likely, score_with
from qed.types import Problem, Rollout


class EngineModel:
    """A model, its tokenizer and its samplers.

    Args:
        source: the model, and how it computes.

    Raises:
        QedError: the model cannot be loaded.
    """

    def __init__(self, source: ModelSource) -> None:
        threads.set_threads(source.threads, source.matmul_precision)
        self.source, self.settings = source, source.model
        self.device = load.pick_device(self.settings.device)
        self.precision = read_precision(self.settings)
        self.version = source.version
        model: Any
        model, self.tokenizer = _load(self.settings)
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)
        if source.weights:
            weights_folder.load_weights(model, self.settings, Path(source.weights), source.version)
        self.model: Any = load.prepare_model(model, replace(self.settings, gradient_checkpointing=False), self.device)
        self.ends = source.ends or load.find_end_ids(self.model, self.tokenizer, source.chat)
        self.window = load.read_window(self.model)
        self.sampler = self.build_sampler()  # for complete batches, as in the learner's process
        self.session = ""  # the session whose answers are kept

    def build_sampler(self) -> HFSampler:
        """Build the native sampler, or the hf sampler for a model that it does not support."""
        return make(self.model, self.tokenizer, self.ends, self.source.rows_per_batch, self.precision)

    def describe(self, process: int) -> EngineInfo:
        """Describe the engine that runs in a process."""
        return EngineInfo(
            model=self.settings.name,
            window=self.window,
            ends=self.ends,
            precision=self.settings.precision,
            device=str(self.device),
            threads=torch.get_num_threads(),
            exact_logps=self.sampler.exact_logps,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            handed_over=self.sampler.handed_over,
            vocabulary=self.vocabulary,
            process=process,
        )

    def update(self, folder: str, version: int) -> None:
        """Load the weights of a complete folder, or raise ModelError and keep the current ones."""
        self.keep_for("")
        weights_folder.load_weights(self.model, self.settings, Path(folder), version)
        self.version = version

    def keep_for(self, session: str) -> None:
        """Keep the state of answers between the batches of a session; drop that of another session."""
        if session != self.session and isinstance(self.sampler, NativeSampler):
            self.session, self.sampler.kept = session, KeptPrefixes() if session else None

    def sleep(self) -> None:
        """Move the weights from the device to the CPU, and free the device's memory."""
        self.keep_for("")
        if self.device.type != "cpu":
            self.model.to("cpu")
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Move the weights back to the device."""
        self.model = self.model.to(self.device)

    def require_fitting(self, prompt: Any, length: int) -> None:
        """Check that a prompt can be continued by `length` tokens.

        Raises:
            UsageError: it is empty, has ids outside of the vocabulary, or is too long.
        """
        if not prompt:
            raise UsageError("The prompt has no tokens, but the model needs at least one.")
        if len(prompt) + length > self.window:
            raise UsageError(
                f"The prompt has {len(prompt):,} tokens and the answer may have {length:,}: together more than the "
                f"{self.window:,} of the model's window. Shorten the prompt or ask for fewer tokens."
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocabulary:
            raise UsageError(
                f"The prompt has a token id outside of the model's vocabulary, 0 to {self.vocabulary - 1}."
            )

    def require_valid(self, sampling: Sampling, seeds: Sequence[int], ends: Sequence[int] = ()) -> None:
        """Check parameters that would make a step fail for all answers that share it.

        Raises:
            UsageError: a parameter is out of range.
        """
        valid = {
            "max_tokens must be at least 1": sampling.max_tokens >= 1,
            "temperature must be 0, or a finite number of at least 1e-6": is_temperature(sampling.temperature),
            "top_p must lie in (0, 1]": 0 < sampling.top_p <= 1,
            "top_k must not be negative": sampling.top_k >= 0,
            "min_p must lie in [0, 1]": 0 <= sampling.min_p <= 1,
            "a stop string must not be empty": all(sampling.stop),
            "a seed must have 64 bits": all(-(2**63) <= seed < 2**63 for seed in seeds),
            "end tokens must be ids of the model": all(0 <= end < self.vocabulary for end in ends),
        }
        for rule, holds in valid.items():
            if not holds:
                raise UsageError(f"The request cannot be sampled: {rule}.")

    def score(self, scoring: Scoring) -> list[Scored]:
        """Compute the log-probs of outputs with the learner's own code."""
        if not can_sample_at(scoring.temperature):
            raise UsageError(f"The temperature of log-probs must be at least 1e-6, not {scoring.temperature}.")
        pairs = list(zip(scoring.prompts, scoring.outputs, strict=True))
        for prompt, output in pairs:
            self.require_fitting([*prompt, *output], 0)
        rows = [_build_row(prompt, output) for prompt, output in pairs if output]
        logps = iter(score_with(self.model, scoring.temperature)(rows, self.precision) if rows else [])
        scored = []
        for prompt, output in pairs:
            top = self._list_top(prompt, output, scoring) if output and scoring.top_logps else []
            scored.append(Scored(next(logps) if output else (), top, self.version))
        return scored

    def _list_top(self, prompt: Any, output: Any, scoring: Scoring) -> list[list[tuple[int, float]]]:
        return list_most_likely(self.model, prompt, output, scoring.temperature, scoring.top_logps, self.precision)


def _load(settings: ModelSettings) -> tuple[Any, Any]:
    """Load a model and its tokenizer; an adapter folder's adapter stays unmerged if its base model is known."""
    folder = Path(settings.name)
    if adapters.is_adapter(settings.name) and not adapters.find_base(folder).merged:
        base = adapters.find_base(folder)
        model, tokenizer = load.load_model(replace(settings, name=base.name, revision=base.revision))
        if adapters.has_tokenizer(folder):
            tokenizer, _ = load.load_tokenizer(settings.name)
        weights_folder.load_adapter(model, settings, folder)
        return model, tokenizer
    model, tokenizer = load.load_model(settings)
    if settings.lora_rank > 0:
        model = lora.add_adapters(model, settings, 0)
    return model, tokenizer


def _build_row(prompt: Any, output: Any) -> Rollout:
    return Rollout(Problem("", "", ""), prompt, output, (0.0,) * len(output), "", "stop")
