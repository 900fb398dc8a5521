"""qed's own server: batches bit-identical to the in-process native sampler, and routes for training."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qed.errors import DataError, Diverged, ModelError, QedError, UsageError
from qed.net.deadlines import CancelScope
from qed.sampling.base import PromptBatch, Sampling
from qed.sampling.server import openai
from qed.sampling.server.checks import Answer, read_completion
from qed.sampling.server.dialect import (
    LOADING,
    MAX_REPLY,
    AskAgain,
    Job,
    Mode,
    NotDrained,
    Server,
    ServerLost,
    find_status,
)
from qed.types import Completion, Support

KINDS = {kind.__name__: kind for kind in (Diverged, UsageError, ModelError, DataError)}


class NativeServer(Server):
    """A server started by `qed serve` with the engine `native`."""

    dialect = "native"
    batches = True

    def complete(
        self, job: Job, on_progress: Callable[[], None], scope: CancelScope | None = None
    ) -> list[list[Completion]]:
        """Sample a batch as the in-process native sampler would; see `Server.complete`."""
        content = {"batches": [*map(_describe_batch, job.batches)], "session": job.session}
        with self.fly(scope) as flight:
            lines = self.client.stream(
                "/qed/batch", content, silence=self.seconds, max_bytes=MAX_REPLY, scopes=flight.scopes
            )
            with closing(lines):  # type: ignore[type-var]
                for line in lines:
                    reply = self._read_line(line)
                    if "completions" in reply:
                        return self._read_batch(job, reply)
                    on_progress()
        raise ServerLost(f"{self.client.name} ended its reply before the answers")

    def score(
        self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Return log-probs computed by the learner's own code with the server's weights; see `Server.score`."""
        content = {"prompts": [*map(list, prompts)], "outputs": [*map(list, outputs)], "temperature": temperature}
        logps: list[list[float]] = self.ask("POST", "/qed/score", content, self.seconds)["logps"]
        return logps

    def stream(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, on_tokens: Callable[[list[int]], None]
    ) -> Completion:
        """Sample one answer and stream it as it grows; see `Server.stream`."""
        return openai.stream(self, self.capabilities.model, prompt, seed, sampling, on_tokens)

    def alive(self, seconds: float) -> None:
        """Send a request through the engine's loop that computes nothing; see `Server.alive`."""
        self.ask("GET", "/health", seconds=seconds)

    def load_weights(self, folder: Path, version: int) -> None:
        """Load weights, all or nothing; see `Server.load_weights`."""
        content = {"folder": str(Path(folder).resolve()), "version": version}
        self.version = int(self.ask("POST", "/qed/update", content, LOADING)["version"])

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter onto the served base model; see `Server.load_adapter`."""
        self.load_weights(folder, int(name.rpartition("@")[2]))

    def clear_caches(self) -> None:
        """Clear cached prompts; between batches, this engine keeps only those of a session."""
        self.ask("POST", "/reset_prefix_cache")

    def read_version(self) -> int | None:
        """Return the version reported by the server."""
        card = self.ask("GET", "/v1/models")["data"][0]
        self.version = int(card["qed"]["weight_version"])
        return self.version

    def _pause(self, mode: Mode, seconds: float) -> None:
        try:
            self.ask("POST", f"/pause?mode={mode}&timeout={seconds:g}", seconds=seconds + 10)
        except QedError as error:
            if find_status(error) == 409:
                raise NotDrained(f"The server {self.url} has not finished its answers in {seconds:g} s.") from error
            raise

    def _resume(self) -> None:
        self.ask("POST", "/resume")

    def _read_line(self, line: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(line)
        except ValueError as error:
            raise ServerLost(f"{self.client.name} ended its reply in the middle of a line") from error
        failure = reply.get("error")
        if failure is None:
            return dict(reply)
        kind, message = failure.get("type"), f"The server {self.url} cannot sample: {failure.get('message')}"
        if kind == "AnswerAborted":
            raise AskAgain
        if kind == "EngineDied":
            raise ServerLost(message, "busy")  # it restarts its engine by itself
        raise KINDS.get(kind, QedError)(message)

    def _read_batch(self, job: Job, reply: dict[str, Any]) -> list[list[Completion]]:
        version, rows, asked = int(reply["version"]), reply["completions"], list(job.list_prompts())
        if [len(row) for row in rows] != [len(each.seeds) for each in asked]:
            raise QedError(f"The server {self.url} returned a different number of answers than requested.")
        return [
            [self._read_answer(each.sampling, answer, version) for answer in row]
            for each, row in zip(asked, rows, strict=True)
        ]

    def _read_answer(self, sampling: Sampling, answer: dict[str, Any], version: int) -> Completion:
        found = answer.get("support")
        support = Support(array("i", found["counts"]), array("i", found["ids"])) if found else None
        tokens, logps, reason = answer["tokens"], answer["logps"], answer["stop_reason"]
        return read_completion(self.url, self.reader, sampling, Answer(tokens, logps, reason, support, version))


def _describe_batch(batch: PromptBatch) -> dict[str, Any]:
    return {
        "prompts": [*map(list, batch.prompts)],
        "seeds": [*map(list, batch.seeds)],
        "sampling": asdict(batch.sampling),
        "prefix_lengths": list(batch.prefix_lengths),
    }
