"""vLLM's dialect: one request per answer, weights by folder through development routes, adapters by name@version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qed.errors import QedError, UsageError
from qed.net.deadlines import CancelScope
from qed.sampling.base import Sampling
from qed.sampling.server import openai
from qed.sampling.server.dialect import LOADING, Mode, NotDrained, ServerLost, find_status, has_timed_out
from qed.sampling.server.engine import EngineServer, read_named_version
from qed.types import Completion

DEV_MODE = "It accepts weights only if started with VLLM_SERVER_DEV_MODE=1, on loopback, as the sampler vllm does."


class VllmServer(EngineServer):
    """A server of vLLM, started with --logprobs-mode processed_logprobs."""

    dialect = "vllm"
    folder: str = ""  # of its current weights; empty for those that it was started with

    def complete_one(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, scope: CancelScope | None
    ) -> Completion:
        """Sample one answer; see `Server.complete`."""
        return openai.complete(self, self.capabilities.model, prompt, seed, sampling, scope)

    def score(
        self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Return the log-probs of outputs, scored as part of a prompt; see `Server.score`.

        Raises:
            UsageError: the temperature is not 1; vLLM applies none to prompts.
        """
        if temperature != 1:
            raise UsageError(
                f"The server {self.url} scores only at temperature 1, because vLLM does not divide the logits of a "
                f"prompt by the temperature, and single log-probs cannot be converted to temperature {temperature:g}."
            )
        return [self._score(list(prompt), list(output)) for prompt, output in zip(prompts, outputs, strict=True)]

    def _score(self, prompt: list[int], output: list[int]) -> list[float]:
        ids = prompt + output
        if not prompt or len(ids) >= self.capabilities.window:
            raise UsageError(f"The server {self.url} scores sequences of 2 to {self.capabilities.window - 1} tokens.")
        model = self.adapter or self.capabilities.model
        body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        reply = self.ask("POST", openai.ROUTE, body, self.seconds)
        found = reply["choices"][0]["prompt_logprobs"]
        if reply["choices"][0]["finish_reason"] == "abort" or len(found or ()) != len(ids):
            raise ServerLost(f"{self.client.name} returned no log-probs of a prompt", "busy")
        return [float(found[place][str(ids[place])]["logprob"]) for place in range(len(prompt), len(ids))]

    def stream(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, on_tokens: Callable[[list[int]], None]
    ) -> Completion:
        """Sample one answer and stream it as it grows; see `Server.stream`."""
        return openai.stream(self, self.capabilities.model, prompt, seed, sampling, on_tokens)

    def alive(self, seconds: float) -> None:
        """Let the engine sample one token, because its health route bypasses the scheduler; see `Server.alive`."""
        self.ask("GET", "/health", seconds=seconds)
        if not self.paused:
            body = {"model": self.capabilities.model, "prompt": [0], "max_tokens": 1}
            self.ask("POST", openai.ROUTE, body, seconds)

    def load_weights(self, folder: Path, version: int) -> None:
        """Load weights, or the previous ones again if that fails; see `Server.load_weights`."""
        path = str(Path(folder).resolve())
        try:
            self._reload(path)
        except QedError as error:
            # The failure may have left the engine without some tensors, so the next answer would crash it.
            try:
                self._reload(self.folder or self.capabilities.details["root"])
            except QedError as again:
                raise ServerLost(f"{self.client.name} has lost its weights: {again}") from error
            raise QedError(f"The server {self.url} cannot load the weights in {path}: {error}") from error
        self.folder, self.version, self.adapter = path, version, None
        with suppress(QedError):  # only newer versions of vLLM store it
            self.ask("POST", "/update_weight_version", {"new_version": str(version)})

    def _reload(self, path: str) -> None:
        # vLLM's reload leaves the old output layer on a CPU if it is tied to the embeddings; servers started by a run
        # have a worker that avoids this.
        own = str(self.capabilities.details["worker"]).endswith("FolderWeights")
        body: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        if own:
            body = {"method": "reload_folder", "kwargs": {"folder": path}}
        try:
            self.ask("POST", "/collective_rpc", body, LOADING)
        except ServerLost as error:
            if find_status(error) == 500:
                raise QedError(str(error)) from error
            raise
        except QedError as error:
            raise QedError(f"{error} {DEV_MODE}" if find_status(error) == 404 else str(error)) from error

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter, and unload the oldest; see `Server.load_adapter`."""
        path = str(Path(folder).resolve())
        if name not in self.adapters:
            try:
                self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}, LOADING)
            except QedError as error:
                if "already been loaded" not in str(error):
                    raise
            except ServerLost as error:
                # Success is reported as text, not JSON. An adapter that does not fit is rejected with status 500, and
                # the engine stays alive.
                if find_status(error) != 200:
                    raise QedError(f"The server {self.url} cannot load the adapter in {path}: {error}") from error
        self.use_adapter(name, "/v1/unload_lora_adapter")

    def clear_caches(self) -> None:
        """Clear cached prompts; see `Server.clear_caches`.

        Raises:
            QedError: it did not, because answers are running.
        """
        reply = self.ask("POST", "/reset_prefix_cache")
        if isinstance(reply, dict) and reply.get("success") is False:
            raise QedError(f"The server {self.url} did not clear its prefix cache, because answers are running.")

    def read_version(self) -> int | None:
        """Return the version reported by the server, or the adapter's; None if it has been restarted since."""
        if self.adapter is None:
            with suppress(QedError, ServerLost):
                self.version = read_named_version(self.ask("GET", "/weight_info"))
        else:
            served = {card["id"] for card in self.ask("GET", "/v1/models")["data"]}
            self.version = self.version if self.adapter in served else None
        return self.version

    def _pause(self, mode: Mode, seconds: float) -> None:
        try:
            self.ask("POST", f"/pause?mode={mode}&clear_cache=true", seconds=seconds)
        except ServerLost as error:
            if mode == "wait" and has_timed_out(error):
                raise NotDrained(f"The server {self.url} has not finished its answers in {seconds:g} s.") from error
            raise
        except QedError as error:
            raise QedError(f"{error} {DEV_MODE}" if find_status(error) == 404 else str(error)) from error

    def _resume(self) -> None:
        self.ask("POST", "/resume")
