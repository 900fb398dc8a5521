"""A real vLLM for the contract suite: one that is there, or installed into the user's cache; started as a run does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_models import Models

from qed.errors import QedError, UsageError
from qed.serving.install import Vllm, find_vllm, install_vllm
from qed.serving.processes import run_servers
from qed.serving.vllm import VllmOptions, build_vllm_spec

LORA_RANK = 8


@contextmanager
def start(models: Models) -> Iterator[str]:
    """Start vLLM with the first model, and yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        options = VllmOptions(str(models.folder), "policy", "float32", rows=64, threads=1, lora_rank=LORA_RANK)
        with run_servers([build_vllm_spec(find_or_install(), options, Path(folder))]) as [server]:
            yield server.url


def find_or_install() -> Vllm:
    """Return vLLM's environment; the tests are skipped where it cannot be installed."""
    try:
        return find_vllm()
    except UsageError:
        pass
    try:
        return install_vllm(lambda line: None)
    except QedError as error:
        pytest.skip(f"vLLM is not here and cannot be installed: {error}")
