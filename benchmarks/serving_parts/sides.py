"""The sides of the comparison: a server with many concurrent clients, and the sampler in a separate process."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qed.guards.parents import build_child_command
from qed.net.client import HttpClient
from qed.randomness import derive_seed
from qed.serving.install import find_vllm
from qed.serving.processes import ServerProcess, ServerSpec, copy_environment, run_servers
from qed.serving.vllm import VllmOptions, build_vllm_spec

SECONDS = 600.0  # timeout of a request
MODEL = "bench"


class Learner:
    """A run that samples on qed's server: one request for all answers, as sent by `sampling.servers`.

    Args:
        server: the server.
        prompts: token ids of the prompts.
        told: options of the benchmark.
    """

    def __init__(self, server: ServerProcess, prompts: Sequence[Sequence[int]], told: dict[str, Any]) -> None:
        self.prompts, self.told, self.number = prompts, told, 0
        self.client = HttpClient(server.url)

    def round(self) -> dict[str, Any]:
        """Sample every group once, with new seeds."""
        told, self.number = self.told, self.number + 1
        seeds = [
            [derive_seed(self.number, which, place) for place in range(told["group"])]
            for which in range(len(self.prompts))
        ]
        body = {"prompts": self.prompts, "seeds": seeds, "sampling": {"temperature": 1.0, "max_tokens": told["tokens"]}}
        began = time.perf_counter()
        *_, last = self.client.stream("/qed/batch", body, silence=SECONDS, max_bytes=2**28)
        wall = time.perf_counter() - began
        lengths = [len(answer["tokens"]) for group in json.loads(last)["completions"] for answer in group]
        return {"wall": wall, "tokens": sum(lengths), "rows": len(lengths), "longest": max(lengths)}


class Clients:
    """Clients of a server, each with one request at a time; arguments as for `Learner`."""

    def __init__(self, server: ServerProcess, prompts: Sequence[Sequence[int]], told: dict[str, Any]) -> None:
        self.prompts, self.told, self.number = prompts, told, 0
        self.client = HttpClient(server.url)

    def round(self) -> dict[str, Any]:
        """Sample every group once, with new seeds and one request per answer."""
        told, self.number = self.told, self.number + 1
        wanted = [
            (prompt, derive_seed(self.number, which, place))
            for which, prompt in enumerate(self.prompts)
            for place in range(told["group"])
        ]
        began = time.perf_counter()
        with ThreadPoolExecutor(told["clients"]) as pool:
            lengths = list(pool.map(lambda each: self._ask(*each), wanted))
        wall = time.perf_counter() - began
        return {"wall": wall, "tokens": sum(lengths), "rows": len(lengths), "longest": max(lengths)}

    def _ask(self, prompt: Sequence[int], seed: int) -> int:
        body = {
            "model": MODEL,
            "prompt": list(prompt),
            "max_tokens": self.told["tokens"],
            "temperature": 1.0,
            "seed": seed,
            "logprobs": 0,
            "return_token_ids": True,
        }
        reply = self.client.ask("POST", "/v1/completions", body, seconds=SECONDS)
        return len(reply["choices"][0]["token_ids"])


def build_native(folder: Path, told: dict[str, Any], logs: Path) -> ServerSpec:
    """Return how to start `qed serve`, with as many concurrent answers as there are clients."""
    options = ["--name", MODEL, "--precision", told["precision"], "--threads", told["threads"], "--device", "cpu"]
    command = ["serve", folder / "hf", *options, "--rows-per-batch", told["clients"], "--json"]
    words = build_child_command([str(word) for word in command])
    return ServerSpec("qed serve", lambda port: [*words, "--port", str(port)], copy_environment(), logs)


def build_vllm(folder: Path, told: dict[str, Any], logs: Path) -> ServerSpec:
    """Return how to start vLLM, in the environment of --python."""
    options = VllmOptions(
        str(folder / "hf"), MODEL, dtype=told["precision"], rows=told["clients"], threads=told["threads"]
    )
    return build_vllm_spec(find_vllm(told["python"]), options, logs)


@contextmanager
def serve(spec: ServerSpec) -> Any:
    """Run a server within the context."""
    with run_servers([spec]) as (server,):
        yield server
