"""A teacher served by a server, which scores the tokens of the policy's answers: one request per row of all ranks."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qed.config.phases import Settings
from qed.errors import Interrupted, ModelError, QedError, ServersGone, UsageError
from qed.guards.redaction import redact
from qed.loops.setup import Setup
from qed.models.load import load_tokenizer, read_window
from qed.models.precision import read_precision
from qed.runs.run import Row, read_lines
from qed.sampling.base import build_sampling
from qed.sampling.server.dialect import Server
from qed.sampling.server.sampler import ServerSampler
from qed.training.parallel import Parallel
from qed.types import Rollout

PROBES = 16  # problems whose prompts both tokenizers encode
PROBE_TOKENS = 64  # of the probe, the text by which a teacher is recognised
# Largest mean difference of the probe's log-probs that rounding explains: in float32, and in other precisions.
EXACT, ROUNDED = 0.01, 0.1
Scored = tuple[Sequence[int], Sequence[int]]


class ServedTeacher:
    """Requests the log-probs of rollouts from a server, each time with those of a probe that identifies the teacher.

    Args:
        servers: client of the teacher's server.
        temperature: sampling temperature, at which the teacher also scores.
        parallel: the ranks, of which only the first sends requests.
        probe: prompt and output of the probe text; without it the teacher is not identified.
    """

    def __init__(
        self, servers: ServerSampler, temperature: float, parallel: Parallel, probe: Scored | None = None
    ) -> None:
        self.servers, self.temperature, self.parallel, self.probe = servers, temperature, parallel, probe
        self.known: list[float] = []  # log-probs of the probe

    def __call__(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """Return the log-probs of the rollouts' outputs; every rank calls this with the same rollouts.

        Raises:
            QedError: the server has been unavailable for longer than sampling.request_seconds.
        """
        rows = [(rollout.prompt, rollout.output) for rollout in rollouts]
        return self.parallel.run_on_first(lambda: self.ask(rows))

    def ask(self, rows: Sequence[Scored]) -> list[list[float]]:
        """Return the teacher's log-probs of outputs given their prompts; only the first rank may call this.

        Raises:
            UsageError: the server cannot score, or has another model or other weights than before.
            QedError: the server is unavailable.
        """
        scored = self._score([*rows, *([self.probe] if self.probe else [])])
        if self.probe is not None:
            self.recognise(scored.pop())
        return scored

    def recognise(self, logps: Sequence[float]) -> None:
        """Compare log-probs of the probe with the first ones, which may come from an earlier attempt of the run.

        Raises:
            UsageError: they differ by more than rounding.
        """
        self.known = self.known or list(logps)
        (server,) = self.servers.servers
        distance = sum(abs(one - other) for one, other in zip(logps, self.known, strict=True)) / len(self.known)
        if distance > (EXACT if server.capabilities.precision == "float32" else ROUNDED):
            raise UsageError(
                f"The teacher's server {server.url} has another model or other weights than before: its log-probs of "
                f"the same text differ by {distance:.3g} on average. Was it started with another model, or has a run "
                "sent it weights? Serve the original teacher there and resume the run, or start a new run."
            )

    def _score(self, rows: Sequence[Scored]) -> list[list[float]]:
        try:
            return self.servers.score(rows, self.temperature)
        except UsageError as error:
            raise UsageError(f"The teacher cannot score: {error}") from error
        except Interrupted:
            raise
        except QedError as error:
            kind = ServersGone if isinstance(error, ServersGone) else QedError
            raise kind(f"The teacher cannot score: {error}") from error


def open_teacher(setup: Setup, settings: Settings) -> ServedTeacher | None:
    """Connect to the teacher's server and record what it serves; return None if the teacher is not a server.

    Raises:
        UsageError: no server answers, the tokenizers differ, or it cannot score as the policy samples.
    """
    if not settings.algorithm.teacher_server[0]:
        return None
    servers = ServerSampler(
        setup.tokenizer,
        (),
        settings.sampling.rows_per_batch,
        read_precision(settings.model),
        settings.sampling.request_seconds,
    )
    teacher = ServedTeacher(servers, settings.sampling.temperature, setup.parallel)
    setup.parallel.run_on_first(lambda: _connect(setup, settings, teacher))
    return teacher


def _connect(setup: Setup, settings: Settings, teacher: ServedTeacher) -> None:
    """Query the server's capabilities, compare tokenizers, and score the probe as the run will."""
    address, model = settings.algorithm.teacher_server
    _require_whole(settings, address)
    teacher.servers.set_servers([address], model, samples=False)
    (server,) = teacher.servers.servers
    require_own_weights(setup, settings, server)
    texts = [setup.template.prompt(problem).text for problem in setup.problems[:PROBES]]
    compared = compare_tokenizers(server, setup.tokenizer, texts)
    # Engines need space for one token after those that they score.
    require_room(setup, settings, f"server {address}", server.capabilities.window - (not server.batches))
    ids = setup.template.tokens(setup.template.prompt(setup.problems[0]))
    # A prompt of one token leaves no token to score.
    teacher.probe = (ids[:1], ids[1 : 1 + PROBE_TOKENS]) if len(ids) > 1 else None
    known = server.capabilities
    about = {
        "url": redact(server.url),
        "model": model or known.model,
        "probe": list(ids[: 1 + PROBE_TOKENS]),
        "temperature": teacher.temperature,
    }
    teacher.known = _read_probe(setup, about)
    teacher.ask([])
    setup.run.event(
        "teacher",
        **about,
        engine=f"{known.engine} {known.engine_version}",
        weights=known.details.get("root", known.model),
        tokenizer=compared,
        probe_logps=[round(value, 5) for value in teacher.known],
    )
    setup.console.say(
        f"The teacher is {model or known.model} at {server.url} ({known.engine}). Tokenizers: {compared}."
    )


def _read_probe(setup: Setup, about: Row) -> list[float]:
    """Return the teacher's probe log-probs of an earlier attempt; empty without any, or if the teacher may change."""
    file = setup.run.folder / "events.jsonl"
    if not file.exists() or any(key.endswith("algorithm.teacher") for key in setup.launch.allow_change):
        return []
    told = [row for row in read_lines(file) if row.get("event") == "teacher" and row.items() >= about.items()]
    return list(map(float, told[-1]["probe_logps"])) if told else []


def require_own_weights(setup: Setup, settings: Settings, server: Server) -> None:
    """Reject a server whose weights a run has replaced, or will replace.

    Raises:
        UsageError: the server has or will have a run's weights.
    """
    samplers = setup.sampler.servers if isinstance(setup.sampler, ServerSampler) else []
    # vLLM and SGLang load a run's adapter in addition to the weights that they were started with.
    if (server.batches or not settings.model.lora_rank) and _find_place(server) in map(_find_place, samplers):
        raise UsageError(
            f"The server {server.url} is set as both the sampler and the teacher: the run would send it the policy's "
            "weights, and the policy would be its own teacher. Start a second server for one of the two."
        )
    if server.version:
        root = server.capabilities.details.get("root", server.capabilities.model)
        raise UsageError(
            f"The teacher's server {server.url} has weights of version {server.version}, which a run has sent, in "
            f"place of those of {root}. Restart it."
        )


def _find_place(server: Server) -> tuple[str, int | None]:
    """Return a server's IP address and port."""
    place = urlsplit(server.url)
    host = place.hostname or ""
    host = "127.0.0.1" if host in ("0.0.0.0", "::", "::1") else host
    with suppress(OSError):
        host = socket.gethostbyname(host)
    return host, place.port


def _require_whole(settings: Settings, address: str) -> None:
    sampling = build_sampling(settings.sampling)
    if sampling.record:
        raise UsageError(
            f"The teacher's server {address} returns log-probs of its full distribution, but sampling.top_p, top_k, "
            "min_p or min_tokens truncate the policy's, so they cannot be compared. Remove these settings, or set "
            "algorithm.teacher to the folder of the model."
        )


def require_room(setup: Setup, settings: Settings, teacher: str, window: int) -> None:
    """Reject a teacher whose context window is too short for the run's longest prompt and answer.

    Raises:
        UsageError: the window is too short.
    """
    answer = settings.sampling.max_tokens
    if window >= read_window(setup.model):
        return
    needed = answer + max(setup.template.lengths(setup.problems), default=0)
    if window < needed:
        raise UsageError(
            f"The teacher, the {teacher}, takes at most {window} tokens, but the longest prompt and an answer of "
            f"{answer} tokens need {needed}. Lower sampling.max_tokens or data.max_prompt_tokens, or use a teacher "
            "with a larger window."
        )


def compare_tokenizers(server: Server, tokenizer: Any, texts: Sequence[str]) -> str:
    """Compare a server's tokenizer with the policy's as far as possible, and return how they were compared.

    Args:
        server: the teacher's server, which may tokenise text or name a model folder on this machine.
        tokenizer: the policy's tokenizer.
        texts: texts that both tokenise, if the server can.

    Raises:
        UsageError: they differ, so the policy's token ids mean different text to the teacher.
    """
    root = str(server.capabilities.details.get("root", ""))
    if root and Path(root).is_dir():
        with suppress(ModelError):
            other, _ = load_tokenizer(root)
            _require_same(other.get_vocab() == tokenizer.get_vocab(), server, "its vocabulary differs")
            return f"the same vocabulary in {root}"
    for number, text in enumerate(texts):
        found, own = server.tokenize(text), tokenizer(text, add_special_tokens=False)["input_ids"]
        if found is None:
            return "not compared: the server cannot tokenise text, and its model is not a folder on this machine"
        _require_same(
            found == list(own), server, f"it encodes text {number} as {len(found)} tokens, not these {len(own)}"
        )
    return f"equal on {len(texts)} prompts"


def _require_same(same: bool, server: Server, why: str) -> None:
    if not same:
        raise UsageError(
            f"The teacher's server {server.url} has a different tokenizer than the policy: {why}. Token ids are "
            "scored, so the teacher must have the policy's tokenizer, for example a larger model of the same family."
        )
