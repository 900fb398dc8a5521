"""SGLang's dialect: its route for token ids, pauses, and weights from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qed.errors import QedError, UsageError
from qed.net.deadlines import CancelScope
from qed.sampling.base import Sampling
from qed.sampling.server.checks import Answer, read_completion
from qed.sampling.server.dialect import LOADING, MAX_REPLY, AskAgain, Mode, NotDrained
from qed.sampling.server.engine import EngineServer, read_named_version
from qed.types import Completion

SEED_BITS = 31  # its kernels hash 32-bit seeds, and negative ones are rejected


class SglangServer(EngineServer):
    """A server of SGLang; with --enable-deterministic-inference its answers are reproducible by seed."""

    dialect = "sglang"

    def complete_one(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, scope: CancelScope | None
    ) -> Completion:
        """Sample one answer; see `Server.complete`."""
        body: dict[str, Any] = {
            "input_ids": list(prompt),
            "sampling_params": self._build_parameters(seed, sampling),
            "return_logprob": True,
        }
        with self.fly(scope) as flight:
            if flight.adapter:
                body["lora_path"] = flight.adapter
            reply = self.client.ask(
                "POST", "/generate", body, seconds=self.seconds, max_bytes=MAX_REPLY, scopes=flight.scopes
            )
        try:
            meta = reply["meta_info"]
            reason = meta["finish_reason"]["type"]
            if reason == "abort":
                raise AskAgain
            rows = meta["output_token_logprobs"]
            logps, tokens = [row[0] for row in rows], [int(row[1]) for row in rows]
            if meta.get("prompt_tokens", len(prompt)) != len(prompt):
                raise QedError(f"The server {self.url} answered a different prompt than it was sent.")
        except (KeyError, TypeError, IndexError) as error:
            raise QedError(f"The reply of the server {self.url} is not SGLang's: {str(reply)[:200]}") from error
        named = read_named_version(meta)
        version = flight.version if named is None or flight.adapter is not None else named
        return read_completion(self.url, self.reader, sampling, Answer(tokens, logps, reason, None, version))

    def _build_parameters(self, seed: int, sampling: Sampling) -> dict[str, Any]:
        greedy = sampling.temperature == 0
        return {
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "top_p": 1.0 if greedy else sampling.top_p,
            "top_k": -1 if greedy or not sampling.top_k else sampling.top_k,
            "min_p": 0.0 if greedy else sampling.min_p,
            "stop": list(sampling.stop),
            "stop_token_ids": list(self.reader.find_ends(sampling.stop)),
            "ignore_eos": True,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "sampling_seed": seed & ((1 << SEED_BITS) - 1),
        }

    def score(
        self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Return the log-probs of outputs, scored as part of a prompt; see `Server.score`."""
        if temperature != 1:
            raise UsageError(f"The server {self.url} scores only at temperature 1.")
        scored = []
        for prompt, output in zip(prompts, outputs, strict=True):
            body: dict[str, Any] = {
                "input_ids": [*prompt, *output],
                "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
                "return_logprob": True,
                "logprob_start_len": 0,
                **({"lora_path": self.adapter} if self.adapter else {}),
            }
            rows = self.ask("POST", "/generate", body, self.seconds)["meta_info"]["input_token_logprobs"]
            if len(rows) != len(prompt) + len(output):
                raise QedError(f"The server {self.url} returned {len(rows)} log-probs for {len(prompt) + len(output)}.")
            scored.append([float(row[0]) for row in rows[len(prompt) :]])
        return scored

    def alive(self, seconds: float) -> None:
        """Let the engine sample one token; see `Server.alive`."""
        self.ask("GET", "/health" if self.paused else "/health_generate", seconds=seconds)

    def load_weights(self, folder: Path, version: int) -> None:
        """Load weights, and clear the cache; see `Server.load_weights`."""
        path = str(Path(folder).resolve())
        body = {"model_path": path, "flush_cache": True, "weight_version": str(version)}
        self._require(self.ask("POST", "/update_weights_from_disk", body, LOADING), f"load the weights in {path}")
        self.version, self.adapter = version, None

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter, and unload all but the last two; see `Server.load_adapter`."""
        path = str(Path(folder).resolve())
        if name not in self.adapters:
            body = {"lora_name": name, "lora_path": path}
            self._require(self.ask("POST", "/load_lora_adapter", body, LOADING), f"load the adapter in {path}")
        self.use_adapter(name, "/unload_lora_adapter")

    def clear_caches(self) -> None:
        """Clear cached prompts; see `Server.clear_caches`."""
        self.ask("POST", "/flush_cache")

    def sleep(self) -> None:
        """Free the device's memory; see `Server.sleep`."""
        self.ask("POST", "/release_memory_occupation", {})

    def wake(self) -> None:
        """Allocate the device's memory again; see `Server.wake`."""
        self.ask("POST", "/resume_memory_occupation", {})

    def read_version(self) -> int | None:
        """Return the version reported by the server."""
        if self.adapter is None:
            self.version = read_named_version(self.ask("GET", "/get_model_info"))
        return self.version

    def _require(self, reply: Any, what: str) -> None:
        if not (isinstance(reply, dict) and reply.get("success")):
            message = reply.get("message") or reply.get("error_message") if isinstance(reply, dict) else reply
            raise QedError(f"The server {self.url} cannot {what}: {message}")

    def _pause(self, mode: Mode, seconds: float) -> None:
        # SGLang's pause ends or freezes running answers, so wait for them here; no new ones are sent.
        if mode == "wait" and not self.wait_for_flights(seconds):
            raise NotDrained(f"The server {self.url} has not finished its answers in {seconds:g} s.")
        self.ask("POST", "/pause_generation", {"mode": "abort"}, seconds)

    def _resume(self) -> None:
        self.ask("POST", "/continue_generation", {})
