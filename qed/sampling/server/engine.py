"""What vLLM and SGLang servers have in common: one request per answer, and adapters named name@version."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from qed.errors import QedError
from qed.net.deadlines import CancelScope
from qed.sampling.base import Sampling
from qed.sampling.server.dialect import Job, Server, ServerLost
from qed.types import Completion

KEPT_ADAPTERS = 2  # per run: the one that running answers may still use, and the newest


class EngineServer(Server):
    """A server of an engine other than qed's."""

    adapters: tuple[str, ...] = ()  # loaded adapters, the newest last

    @abstractmethod
    def complete_one(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, scope: CancelScope | None
    ) -> Completion:
        """Sample one answer; see `complete`."""

    def complete(
        self, job: Job, on_progress: Callable[[], None], scope: CancelScope | None = None
    ) -> list[list[Completion]]:
        """Sample the answers of a job, one request each; see `Server.complete`."""
        return [
            [self.complete_one(prompt, seed, sampling, scope) for seed in seeds]
            for prompt, seeds, sampling in job.list_prompts()
        ]

    def use_adapter(self, name: str, unload_route: str) -> None:
        """Sample with this loaded adapter from now on, and unload the oldest ones."""
        self.adapters = (*(each for each in self.adapters if each != name), name)
        self.adapter, self.version = name, int(name.rpartition("@")[2])
        for old in self.adapters[:-KEPT_ADAPTERS]:
            with suppress(QedError, ServerLost):
                self.ask("POST", unload_route, {"lora_name": old})
        self.adapters = self.adapters[-KEPT_ADAPTERS:]


def read_named_version(reply: Mapping[str, Any]) -> int | None:
    """Return the weight version in a reply; None if it has none or it is not a number."""
    named = str(reply.get("weight_version"))
    return int(named) if named.isdecimal() else None
