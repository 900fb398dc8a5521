"""Samples on inference servers that are already running: of qed, vLLM or SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from qed.config.phases import Settings
from qed.errors import UsageError
from qed.sampling.server.sampler import ServerSampler

__all__ = ["ServerSampler", "connect", "make"]


def connect(
    model: Any, tokenizer: Any, ends: Sequence[int], rows_per_batch: int, precision: torch.dtype, settings: Settings
) -> ServerSampler:
    """Build this sampler for the servers at `sampling.url`.

    Raises:
        UsageError: there is no address, or no server answers at one.
    """
    if not settings.sampling.url:
        raise UsageError(
            "The sampler server needs the addresses of servers: --sampling.url http://127.0.0.1:8000. qed serve MODEL "
            "starts one and prints its address."
        )
    sampler = ServerSampler(tokenizer, ends, rows_per_batch, precision, settings.sampling.request_seconds)
    sampler.set_servers(settings.sampling.url)
    return sampler


def make(*_: Any) -> NoReturn:
    """Raise: this sampler cannot be built without addresses, for example to measure in-process samplers."""
    raise UsageError("The sampler server has no model in this process; use --sampling.sampler native or hf here.")
