"""A vLLM server that the run starts next to the learner; requires `qed serve --install vllm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from qed.config.phases import Settings
from qed.errors import UsageError
from qed.sampling.server.sampler import ServerSampler


def connect(
    model: Any, tokenizer: Any, ends: Sequence[int], rows_per_batch: int, precision: torch.dtype, settings: Settings
) -> ServerSampler:
    """Build this sampler without servers; the run starts them and sets them with `ServerSampler.set_servers`."""
    return ServerSampler(tokenizer, ends, rows_per_batch, precision, settings.sampling.request_seconds)


def make(*_: Any) -> NoReturn:
    """Raise: this sampler cannot be built without a run, for example to measure in-process samplers."""
    raise UsageError("The sampler vllm has no model in this process; use --sampling.sampler native or hf here.")
