"""A teacher behind a server: it scores the tokens of the policy's answers, one request for each row of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qed.config.phases import Settings
from qed.errors import Interrupted, ModelError, QedError, UsageError
from qed.loops.setup import Setup
from qed.models.load import load_tokenizer, read_window
from qed.models.precision import read_precision
from qed.sampling.base import build_sampling
from qed.sampling.server.dialect import Server
from qed.sampling.server.sampler import ServerSampler
from qed.training.parallel import Parallel
from qed.types import Rollout

PROBES = 16  # problems whose texts are tokenised by both


class ServedTeacher:
    """Asks a server for the log-probs of rollouts.

    Args:
        servers: asks the server.
        temperature: of sampling, at which the teacher scores.
        parallel: the ranks, of which the first one asks.
    """

    def __init__(self, servers: ServerSampler, temperature: float, parallel: Parallel) -> None:
        self.servers, self.temperature, self.parallel = servers, temperature, parallel

    def __call__(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """Return the log-probs of the outputs of rollouts; every rank calls this with the same ones.

        Raises:
            QedError: the server is gone for longer than sampling.request_seconds.
        """
        rows = [(rollout.prompt, rollout.output) for rollout in rollouts]
        return self.parallel.run_on_first(lambda: self.ask(rows))

    def ask(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Return the teacher's log-probs of outputs after prompts; only the first rank asks."""
        try:
            return self.servers.score(rows, self.temperature)
        except UsageError as error:
            raise UsageError(f"The teacher cannot score: {error}") from error
        except Interrupted:
            raise
        except QedError as error:
            raise QedError(f"The teacher cannot score: {error}") from error


def open_teacher(setup: Setup, settings: Settings) -> ServedTeacher | None:
    """Connect to the teacher's server, and record what it is; None where the teacher is no server.

    Raises:
        UsageError: nobody answers, the tokenizers differ, or it cannot score as the policy samples.
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
    """Find out what the server is, compare tokenizers, and score a text as the run will."""
    address, model = settings.algorithm.teacher_server
    _require_whole(settings, address)
    teacher.servers.set_servers([address], model, samples=False)
    (server,) = teacher.servers.servers
    texts = [setup.template.prompt(problem).text for problem in setup.problems[:PROBES]]
    compared = compare_tokenizers(server, setup.tokenizer, texts)
    # Engines want room for a token behind what they score.
    require_room(setup, settings, f"server {address}", server.capabilities.window - (not server.batches))
    ids = setup.template.tokens(setup.template.prompt(setup.problems[0]))
    teacher.ask([(ids[:-1], ids[-1:])])
    known = server.capabilities
    setup.run.event(
        "teacher",
        url=server.url,
        engine=f"{known.engine} {known.engine_version}",
        model=model or known.model,
        weights=known.details.get("root", known.model),
        tokenizer=compared,
    )
    setup.console.say(
        f"The teacher is {model or known.model} at {server.url} ({known.engine}). Tokenizers: {compared}."
    )


def _require_whole(settings: Settings, address: str) -> None:
    sampling = build_sampling(settings.sampling)
    if sampling.record:
        raise UsageError(
            f"The teacher's server {address} gives log-probs of its whole distribution, and sampling.top_p, top_k, "
            "min_p or min_tokens cut the policy's, so the two cannot be compared. Leave these settings out, or let "
            "algorithm.teacher name the folder of the model."
        )


def require_room(setup: Setup, settings: Settings, teacher: str, window: int) -> None:
    """Refuse a teacher whose window is too short for a prompt of the run with its longest answer.

    Raises:
        UsageError: it is.
    """
    answer = settings.sampling.max_tokens
    if window >= read_window(setup.model):
        return
    needed = answer + max(setup.template.lengths(setup.problems), default=0)
    if window < needed:
        raise UsageError(
            f"The teacher, the {teacher}, takes sequences of {window} tokens, and the longest prompt with an answer of "
            f"{answer} tokens has {needed}. Set sampling.max_tokens or data.max_prompt_tokens lower, or take a teacher "
            "with a larger window."
        )


def compare_tokenizers(server: Server, tokenizer: Any, texts: Sequence[str]) -> str:
    """Compare a server's tokenizer with the policy's as far as it can be known, and return how that was done.

    Args:
        server: it may tokenise, or name a folder of this machine.
        tokenizer: the policy's.
        texts: that both tokenise, where the server does.

    Raises:
        UsageError: they differ, so that the ids of the policy mean other text to the teacher.
    """
    root = str(server.capabilities.details.get("root", ""))
    if root and Path(root).is_dir():
        with suppress(ModelError):
            other, _ = load_tokenizer(root)
            _require_same(other.get_vocab() == tokenizer.get_vocab(), server, "its vocabulary is another")
            return f"the same vocabulary in {root}"
    for number, text in enumerate(texts):
        found, own = server.tokenize(text), tokenizer(text, add_special_tokens=False)["input_ids"]
        if found is None:
            return "not compared: the server tokenises no text, and its model is no folder here"
        _require_same(
            found == list(own), server, f"it makes {len(found)} tokens of text {number}, not these {len(own)}"
        )
    return f"equal on {len(texts)} prompts"


def _require_same(same: bool, server: Server, why: str) -> None:
    if not same:
        raise UsageError(
            f"The teacher's server {server.url} has another tokenizer than the policy: {why}. Token ids are scored, so "
            "the teacher must be a model with the policy's tokenizer, such as a larger one of the same family."
        )
