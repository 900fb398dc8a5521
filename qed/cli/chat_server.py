"""A chat partner whose model runs behind an OpenAI-compatible server; its answers are streamed.

No weights are loaded here. The server renders the conversation with its model's chat template.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from qed.cli.chat_session import NoAnswerError, Reply
from qed.errors import UsageError
from qed.net.chat import PATH, Message
from qed.net.client import HttpClient, RequestError, read_events
from qed.randomness import derive_seed

VERSION = "/v1"  # the API version, with which the addresses of OpenAI-compatible servers end
CONNECT_SECONDS = 30.0  # deadline for the server to list its models
SILENCE = 600.0  # the most seconds without a token: a server may have a queue
SHOWN = 5  # the most model names in a message
THINK, THOUGHT = "<think>", "</think>"


class ServerError(NoAnswerError):
    """The server refuses a question, cannot be reached, or breaks off its answer."""

    ends_pipe = True


@dataclass(frozen=True)
class Piece:
    """What one event of a stream adds to the reasoning and to the answer; `finish` says how the answer ended."""

    thought: str = ""
    text: str = ""
    finish: str = ""


class ServerPartner:
    """A chat partner that answers through the chat route of a server.

    Args:
        client: a client for the server's address, such as http://127.0.0.1:8000/v1.
        model: the model's name there.
        options: fields of every request, such as the temperature.
        system: a system message; empty for none.
        seed: the seed of all answers; answers to the same question still differ from each other.
    """

    tags: tuple[str, ...] = ()

    def __init__(self, client: HttpClient, model: str, options: Mapping[str, Any], system: str, seed: int) -> None:
        self.client, self.model, self.options, self.seed = client, model, dict(options), seed
        self.system: list[Message] = [{"role": "system", "content": system}] if system else []
        self.turns: list[Message] = []
        self.asked = 0

    def ask(self, question: str, write: Callable[[str], None]) -> Reply:
        """Ask a question, and write the answer as it arrives; Ctrl-C closes the connection, so the server stops too.

        Raises:
            ServerError: the server cannot be reached, refuses the request, or breaks off.
        """
        self.asked += 1
        asked: Message = {"role": "user", "content": question}
        body = {
            "model": self.model,
            "messages": [*self.system, *self.turns, asked],
            "stream": True,
            "seed": derive_seed(self.seed, "chat", self.asked),
            **self.options,
        }
        thought, text, finish, stopped = "", "", "", False
        try:
            stream = cast("Generator[bytes]", self.client.stream(PATH, body, silence=SILENCE))
            with closing(stream) as lines:
                for piece in read_pieces(lines):
                    write(_mark(piece, bool(thought), bool(text)))
                    thought, text, finish = thought + piece.thought, text + piece.text, piece.finish or finish
        except KeyboardInterrupt:
            stopped = True
        except RequestError as error:
            raise ServerError(f"The server did not answer: {str(error).rstrip('.')}.") from error
        self.turns += [asked, {"role": "assistant", "content": text}]
        shown = f"{THINK}{thought}{THOUGHT if text else ''}{text}" if thought else text
        return Reply(shown, "stopped" if stopped else _explain(finish), stopped)

    def reset(self) -> None:
        """Forget the conversation."""
        self.turns.clear()


def read_pieces(lines: Iterable[bytes]) -> Iterator[Piece]:
    """Yield what each event of a stream of chat chunks adds, up to its end.

    Args:
        lines: the lines of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

    Raises:
        RequestError: an event reports an error or is not a chat chunk, or the stream ends early.
    """
    finished = False
    try:
        for chunk in read_events(lines):
            piece = _read_chunk(chunk)
            finished = finished or bool(piece.finish)
            yield piece
    except RequestError as error:
        if not (finished and error.kind == "closed"):  # not every server sends [DONE]
            raise


def _read_chunk(chunk: Any) -> Piece:
    try:
        if error := chunk.get("error"):
            raise RequestError(str(error.get("message", error) if isinstance(error, dict) else error))
        if not chunk["choices"]:  # some servers end with a chunk that has only the usage
            return Piece()
        delta, finish = chunk["choices"][0].get("delta") or {}, chunk["choices"][0].get("finish_reason")
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        return Piece(str(thought), str(delta.get("content") or ""), str(finish or ""))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise RequestError(f"an event is not a chat chunk: {str(chunk)[:200]}") from error


def _mark(piece: Piece, has_thought: bool, has_text: bool) -> str:
    """Return the text of a piece, with tags around reasoning, which some servers send in a separate field."""
    opening = THINK if piece.thought and not has_thought else ""
    closing = THOUGHT if piece.text and not has_text and (has_thought or piece.thought) else ""
    return f"{opening}{piece.thought}{closing}{piece.text}"


def _explain(finish: str) -> str:
    if finish == "length":
        return "cut off; a larger --max-tokens, or a larger context window of the server, allows more"
    return "" if finish in ("stop", "") else f"ended by {finish}"


def choose_model(names: Sequence[str], asked: str, address: str) -> str:
    """Return the name of the model to ask: the requested one, or the only one that the server lists.

    Raises:
        UsageError: the server lacks the requested model, or none is requested and it lists several or none.
    """
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    if asked:
        if names and asked not in names:
            raise UsageError(f"{address} has no model {asked}. It has {listed}.")
        return asked
    if len(names) != 1:
        raise UsageError(f"{address} has {listed or 'no model that it lists'}: name one, qed chat NAME --url {address}")
    return names[0]


def connect(
    url: str, model: str, key_variable: str, options: Mapping[str, Any], system: str, seed: int
) -> ServerPartner:
    """Return the partner at an address, with or without /v1 at its end; see `ServerPartner`.

    Raises:
        UsageError: the address is invalid, no server answers there, or the server does not have this model.
    """
    base = url.rstrip("/").removesuffix(PATH)
    client = HttpClient(base if urlsplit(base).path.strip("/") else base + VERSION, key_variable)
    try:
        listed = client.ask("GET", "/models", seconds=CONNECT_SECONDS)
        # A model may be listed under several names with the same root; each adapter has its own root.
        names = [str(entry["id"]) for entry in listed["data"]]
        models = dict[str, str]()
        for entry, name in zip(listed["data"], names, strict=True):
            models.setdefault(str(entry.get("root") or name), name)
    except RequestError as error:
        if error.status != 404 or not model:  # a server need not list its models
            advice = {401: f" Put its key into the environment variable {key_variable}.", 403: " It refuses the key."}
            reason = f"{str(error).rstrip('.')}.{advice.get(error.status, '')}"
            raise UsageError(f"No model can be asked at {client.url}: {reason}") from error
        names, models = [], {}
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{client.url} is not the address of an OpenAI-compatible server.") from error
    chosen = choose_model(names if model else list(models.values()), model, url)
    return ServerPartner(client, chosen, options, system, seed)
