"""What a real vLLM does under load, and when it is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from engine_models import Models

from qed.sampling.base import Sampling
from qed.sampling.server import ServerSampler
from qed.sampling.server.dialect import Server
from qed.serving.processes import ServerProcess, run_servers

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def process(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A vLLM that is killed."""
    import real_vllm  # noqa: PLC0415 -- it looks for vLLM

    with run_servers([real_vllm.describe(models, tmp_path_factory.mktemp("logs"))]) as [server]:
        yield server


@pytest.fixture
def sampler(models: Models, process: ServerProcess) -> Iterator[ServerSampler]:
    """A sampler on it."""
    sampler = ServerSampler(models.tokenizer, models.ends, 64, torch.float32, 120.0)
    sampler.set_servers([process.url])
    yield sampler
    sampler.close()


def test_many_long_prompts_with_seeds_are_answered(models: Models, sampler: ServerSampler) -> None:
    """More tokens than vLLM reads in a step: prompts read in parts would end its engine on a CPU."""
    chosen = random.Random(0)
    prompts = [[chosen.randrange(4, 250) for _ in range(chosen.randrange(5, 450))] for _ in range(64)]
    rows = sampler.generate(prompts, [[number] for number in range(64)], Sampling(1.0, 8))
    assert all(row[0].tokens for row in rows)
    assert not sampler.counts


def test_a_kill_in_the_middle_of_a_batch_changes_nothing(
    models: Models, sampler: ServerSampler, process: ServerProcess
) -> None:
    """The server is started again, and what was lost is asked again with the same seeds."""
    prompts, seeds = [[4, 9, 11, 30, 31], [12]], [list(range(8)), list(range(8, 16))]
    sampling = Sampling(1.0, 400, min_tokens=300)
    expected = sampler.generate(prompts, seeds, sampling)
    killer = threading.Timer(0.3, os.killpg, (process.group, signal.SIGKILL))
    lost: list[str] = []

    def revive(server: Server) -> None:
        lost.append(server.url)
        process.restart()
        sampler.replace_server(0, process.url)

    sampler.on_lost = revive
    killer.start()
    found = sampler.generate(prompts, seeds, sampling)
    killer.join()
    assert lost
    assert process.restarts == 1
    assert [[answer.tokens for answer in row] for row in found] == [
        [answer.tokens for answer in row] for row in expected
    ]
