"""Running engines for the contract suite, and how they get weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from engine_models import Models, mark_complete
from stand_in import StandIn

from qed.sampling.server import ServerSampler
from qed.sampling.server.dialect import Server

START_SECONDS = 120.0
REQUEST_SECONDS = 60.0


@dataclass
class Engine:
    """A running server: how it is reached, how close its log-probs are, and the models behind it.

    `stand_in` is the server itself where it lives in this process.
    """

    dialect: str
    url: str
    models: Models
    tolerance: float
    stand_in: StandIn | None = None
    process: subprocess.Popen[bytes] | None = None
    samplers: list[ServerSampler] = field(default_factory=list)

    def connect(self, *more: str, rows: int = 16, seconds: float = REQUEST_SECONDS) -> ServerSampler:
        """A sampler on this server, and on others."""
        sampler = ServerSampler(self.models.tokenizer, self.models.ends, rows, torch.float32, seconds)
        sampler.set_servers([self.url, *more])
        self.samplers.append(sampler)
        return sampler

    def reset(self) -> None:
        """Give the server its first weights again."""
        for sampler in self.samplers:
            sampler.close()
        self.samplers.clear()
        (server,) = self.connect().servers
        with suppress(Exception):
            server.resume()
        # vLLM does not name its weights to a client that has not loaded them.
        if self.dialect == "vllm" or server.read_version() not in (None, 0):
            update(server, self.models.folder, 0)


def update(server: Server, folder: Path, version: int, adapter: str = "") -> None:
    """Give a server new weights, or an adapter by its name, as a run does."""
    server.pause("wait", 30)
    try:
        if folder.exists():
            mark_complete(folder, version, "adapter" if adapter else "full")
        if adapter:
            server.load_adapter(f"{adapter}@{version}", folder)
        else:
            server.load_weights(folder, version)
        server.clear_caches()
    finally:
        server.resume()


@contextmanager
def start_native(models: Models) -> Iterator[Engine]:
    """Start qed's own server on the first model."""
    command = [sys.executable, "-m", "qed", "serve", str(models.folder), "--json", "--precision", "float32"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [*command, "--threads", "1", "--device", "cpu"], stdout=subprocess.PIPE, start_new_session=True, env=environment
    )
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith(b"{")), None)
        timer.cancel()
        assert line is not None, "qed serve did not start"
        # Nothing reads further lines, and a full pipe must not stop the server.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield Engine("native", json.loads(line)["url"], models, 2e-5, process=process)
    finally:
        timer.cancel()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
