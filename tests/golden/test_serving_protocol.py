"""The web server's protocol over an engine that says what a test wants: fields, replies, streams, limits and errors."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from asking import ask, connect, read_events

from qed.config.settings import ModelSettings
from qed.errors import ModelError
from qed.models.load import build_model
from qed.net import connections
from qed.serving import bodies, keeper, model_text
from qed.serving.keeper import EngineKeeper
from qed.serving.messages import (
    AnswerAborted,
    Batch,
    EngineDied,
    EngineInfo,
    EngineStats,
    Generation,
    ModelSource,
    PauseTimeout,
    Progress,
    Scored,
    Scoring,
)
from qed.serving.model_text import ModelText
from qed.serving.server import _build_server
from qed.serving.state import ServerState
from qed.types import Completion

WINDOW = 64
ANSWER = "1 and 2 € 👍 3"


class FakeEngine:
    """Says `ANSWER`, one token after the other, to whatever it is asked; each token's log-prob is -1 / (1 + its id)."""

    def __init__(self, tokenizer: Any, source: ModelSource, on_exit: Callable[[str], None]) -> None:
        self.tokenizer, self.source, self.on_exit = tokenizer, source, on_exit
        self.asked: list[Generation] = []
        self.aborted = self.running = 0
        self.held = asyncio.Event()  # answers to the prompt [5] wait for it
        self.alive, self.paused = False, False
        self.version = source.version

    async def start(self, process: None = None) -> EngineInfo:
        self.info = EngineInfo(
            model="folder",
            window=WINDOW,
            ends=(self.tokenizer.eos_token_id,),
            precision="float32",
            device="cpu",
            threads=1,
            exact_logps=True,
            parameters=7,
            vocabulary=len(self.tokenizer),
        )
        self.alive = True
        return self.info

    async def stop(self) -> None:
        self.alive = False

    def die(self) -> None:
        self.alive = False
        self.held.set()
        self.on_exit("it was killed by SIGKILL")

    def _require(self) -> None:
        if not self.alive:
            raise EngineDied("The engine's process is not running.")

    async def generate(self, generation: Generation) -> AsyncIterator[Progress]:
        self.asked.append(generation)
        self.running += 1
        done = False
        try:
            if tuple(generation.prompt) == (5,):
                yield self._build(generation, [], None)
                await self.held.wait()
            self._require()
            tokens = [*self.tokenizer(ANSWER)["input_ids"], self.tokenizer.eos_token_id]
            tokens = [
                token for token in tokens if token != self.tokenizer.eos_token_id or token in (generation.ends or ())
            ]
            said: list[int] = []
            for token in tokens[: generation.sampling.max_tokens]:
                said.append(token)
                text = self.tokenizer.decode(said)
                ends = token in (generation.ends or ()) or any(stop in text for stop in generation.sampling.stop)
                full = len(said) == min(len(tokens), generation.sampling.max_tokens)
                done = ends or full
                if generation.stream or done:
                    new = [token] if generation.stream else said
                    yield self._build(generation, new, "stop" if ends else "length" if full else None)
                if done:
                    return
        finally:
            self.running -= 1
            self.aborted += not done

    def _build(self, generation: Generation, tokens: list[int], reason: Any) -> Progress:
        logps = [-1 / (1 + token) for token in tokens]
        top = [[(token, -1 / (1 + token)), (5, -3.0), (6, -float("inf"))][: generation.top_logps] for token in tokens]
        return Progress(tokens, logps, top if generation.top_logps else (), reason, self.version)

    async def score(self, scoring: Scoring) -> list[Scored]:
        return [
            Scored(
                [-float(number + 1) for number in range(len(row))],
                [[(token, -0.5)][: scoring.top_logps] for token in row] if scoring.top_logps else (),
                self.version,
            )
            for row in scoring.outputs
        ]

    async def batch(self, batch: Batch, on_step: Callable[[int], None]) -> list[list[Completion]]:
        on_step(3)
        self.running += 1
        try:
            if batch.parts[0].sampling.max_tokens == 2:
                await self.held.wait()
                self._require()
        finally:
            self.running -= 1
        rows = [row for part in batch.parts for row in part.seeds]
        return [[Completion([seed % 7], [-0.5], "stop", version=self.version) for seed in row] for row in rows]

    async def check(self, seconds: float) -> None:
        self._require()

    async def pause(self, mode: str, seconds: float) -> None:
        if self.running and mode == "wait":
            raise PauseTimeout("1 answer still runs.")
        self.paused = True

    async def resume(self) -> None:
        self.paused = False

    async def update(self, folder: Path, version: int) -> None:
        if not (folder / "COMPLETE").exists():
            raise ModelError(f"{folder} is not complete.")
        self.version = version

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def read_stats(self) -> EngineStats:
        self._require()
        return EngineStats(running=self.running, waiting=2, version=self.version)


class Served:
    """A server in a thread: its address, and the engines that it has started."""

    def __init__(self, tokenizer: Any, token: str = "", limit: int = 10_000_000) -> None:
        self.tokenizer, self.token, self.limit = tokenizer, token, limit
        self.engines: list[FakeEngine] = []
        self.url = ""
        self._ready = threading.Event()

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]

    @contextmanager
    def run(self) -> Iterator[Served]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        thread.start()
        assert self._ready.wait(30)
        try:
            yield self
        finally:
            self.loop.call_soon_threadsafe(self._end)
            thread.join(30)

    def call(self, work: Callable[[], None]) -> None:
        """Call something in the loop of the server, and wait for its end."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (work(), done.set()))
        assert done.wait(30)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.keeper = EngineKeeper(ModelSource(ModelSettings()), lambda line: None, self._build)  # type: ignore[arg-type]
        await self.keeper.start()
        info = self.keeper.info
        text = ModelText(self.tokenizer, info.vocabulary, info.window)
        state = ServerState(self.keeper, text, ("tiny", "runs/tiny"), self.limit)
        self.server = _build_server(state, self.token)
        self.server.on_started = self._ready.set
        await self.server.serve([listener])
        await self.keeper.stop()

    def _end(self) -> None:
        self.server.should_exit = True
        self.engine.held.set()

    def _build(self, source: ModelSource, on_exit: Callable[[str], None]) -> FakeEngine:
        self.engines.append(FakeEngine(self.tokenizer, source, on_exit))
        return self.engine


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_model("new:tiny", [f"{ANSWER} one two"], seed=0)[1]


@pytest.fixture(scope="module")
def served(tokenizer: Any) -> Iterator[Served]:
    with Served(tokenizer).run() as served:
        yield served


@pytest.fixture
def url(served: Served) -> str:
    served.engine.asked.clear()
    served.engine.aborted = 0
    return served.url


def complete(url: str, **body: Any) -> tuple[int, Any]:
    return ask(url, "/v1/completions", {"prompt": "one two", **body})


def choose(url: str, **body: Any) -> dict[str, Any]:
    """The one choice of a completion."""
    status, reply = complete(url, **body)
    assert status == 200, reply
    (choice,) = reply["choices"]
    return dict(choice)


def test_a_completion_has_the_shape_of_openai(url: str, tokenizer: Any) -> None:
    status, reply = complete(url, max_tokens=40, return_token_ids=True)
    ids = tokenizer(ANSWER)["input_ids"]
    prompt = tokenizer("one two")["input_ids"]
    assert status == 200
    assert reply.pop("id").startswith("cmpl-")
    assert reply.pop("created") > 0
    assert reply == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": ANSWER,
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": [*ids, tokenizer.eos_token_id],
                "prompt_token_ids": prompt,
                "weight_version": 0,
            }
        ],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids) + 1,
            "total_tokens": len(prompt) + len(ids) + 1,
        },
    }


def test_defaults_are_those_of_openai(served: Served, url: str) -> None:
    assert choose(url)["finish_reason"] in ("stop", "length")
    (asked,) = served.engine.asked
    sampling = asked.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.top_p, sampling.top_k) == (1.0, 16, 1.0, 0)
    chat = {"messages": [{"role": "user", "content": "one?"}]}
    assert ask(url, "/v1/chat/completions", chat)[0] == 200
    assert served.engine.asked[1].sampling.max_tokens == WINDOW - len(served.engine.asked[1].prompt)
    assert served.engine.asked[0].seed != served.engine.asked[1].seed


def test_prompts_come_as_texts_and_as_ids(served: Served, url: str, tokenizer: Any) -> None:
    ids = tokenizer("one two")["input_ids"]
    for prompt in ("one two", ["one two"], ids, [ids]):
        status, _ = ask(url, "/v1/completions", {"prompt": prompt, "model": "runs/tiny"})
        assert status == 200
        assert list(served.engine.asked[-1].prompt) == ids
    _, reply = ask(url, "/v1/completions", {"prompt": [ids, "1"], "n": 2, "max_tokens": 1, "seed": 3})
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]


def test_the_first_of_n_answers_has_the_seed_itself(served: Served, url: str) -> None:
    for n in (1, 3):
        complete(url, n=n, seed=5, max_tokens=1)
    one, *three = [asked.seed for asked in served.engine.asked]
    assert one == three[0] == 5
    assert len(set(three)) == 3
    served.engine.asked.clear()
    # A client that asks for one of the answers alone draws it again.
    complete(url, seed=three[2], max_tokens=1)
    assert served.engine.asked[0].seed == three[2]


def test_prompts_of_a_request_have_seeds_of_their_own_unless_it_gives_one(served: Served, url: str) -> None:
    for given, count in (({}, 3), ({"seed": 5}, 1)):
        served.engine.asked.clear()
        assert complete(url, prompt=["one"] * 3, max_tokens=1, **given)[0] == 200
        assert len({asked.seed for asked in served.engine.asked}) == count


def test_a_stop_string_is_left_out_unless_it_is_asked_for(url: str) -> None:
    assert choose(url, stop=" €", max_tokens=40)["text"] == "1 and 2"
    assert choose(url, stop=["€"], max_tokens=40, include_stop_str_in_output=True)["text"] == "1 and 2 €"
    assert choose(url, stop="€", max_tokens=40)["stop_reason"] == "€"


def test_stop_ids_end_an_answer_and_ends_can_be_ignored(served: Served, url: str, tokenizer: Any) -> None:
    stop = tokenizer(ANSWER)["input_ids"][2]
    choice = choose(url, stop_token_ids=[stop], max_tokens=40)
    assert (choice["stop_reason"], choice["finish_reason"], choice["token_ids"][-1]) == (stop, "stop", stop)
    assert choice["text"] == tokenizer.decode(choice["token_ids"][:-1])
    assert choose(url, ignore_eos=True, max_tokens=40)["finish_reason"] == "length"
    assert served.engine.asked[-1].ends == ()


@pytest.mark.parametrize("options", [{}, {"stop": " 3"}, {"n": 2, "seed": 1}, {"logprobs": 2}, {"echo": True}])
def test_a_stream_has_what_the_whole_reply_has(url: str, options: dict[str, Any]) -> None:
    body = {"prompt": "one two", "max_tokens": 40, "return_token_ids": True, **options}
    _, whole = ask(url, "/v1/completions", body)
    joined: dict[int, dict[str, Any]] = {}
    *events, last = read_events(url, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    for event in events:
        (choice,) = event["choices"]
        known = joined.setdefault(choice["index"], {})
        for name, value in choice.items():
            if isinstance(value, str) and name == "text":
                assert "\ufffd" not in value
            add = name in ("text", "token_ids")
            known[name] = known[name] + value if add and name in known else value
            if name == "logprobs" and value:
                parts = known.setdefault("parts", {key: [] for key in value})
                for key, found in value.items():
                    parts[key] += found
    assert last["usage"] == whole["usage"]
    assert last["choices"] == []
    for choice in whole["choices"]:
        known = joined[choice["index"]]
        known["logprobs"] = known.pop("parts", None)
        assert known == choice


def test_logprobs_have_names_offsets_and_the_likeliest(url: str, tokenizer: Any) -> None:
    choice = choose(url, max_tokens=3, logprobs=3)
    found, ids = choice["logprobs"], choice["token_ids"]
    assert found["tokens"] == [tokenizer.decode([token]) for token in ids]
    assert found["token_logprobs"] == [-1 / (1 + token) for token in ids]
    assert found["text_offset"][0] == 0
    # Minus infinity has no spelling in JSON.
    assert found["top_logprobs"][0][tokenizer.decode([6])] == -9999.0
    named = choose(url, max_tokens=1, logprobs=0, return_tokens_as_token_ids=True)["logprobs"]
    assert named["tokens"] == [f"token_id:{ids[0]}"]
    assert named["top_logprobs"] == [{f"token_id:{ids[0]}": -1 / (1 + ids[0])}]


def test_an_echo_has_the_log_probs_of_the_prompt(url: str, tokenizer: Any) -> None:
    prompt = tokenizer("one two")["input_ids"]
    for given in ("one two", prompt):
        choice = choose(url, prompt=given, max_tokens=1, logprobs=1, echo=True)
        assert choice["text"].startswith("one two")
        found = choice["logprobs"]
        expected = [None, *(-float(number) for number in range(1, len(prompt)))]
        assert found["token_logprobs"][:-1] == expected
        assert found["top_logprobs"][0] is None
        assert len(found["tokens"]) == len(found["top_logprobs"]) == len(found["text_offset"]) == len(prompt) + 1
    alone = choose(url, max_tokens=0, logprobs=1, echo=True)
    assert (alone["text"], len(alone["logprobs"]["tokens"]), alone["token_ids"]) == ("one two", len(prompt), [])
    scored = choose(url, max_tokens=1, prompt_logprobs=1)["prompt_logprobs"]
    assert scored[0] is None
    assert scored[1][str(prompt[1])]["decoded_token"] == tokenizer.decode([prompt[1]])
    own = choose(url, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"]
    assert [list(each) for each in own[1:]] == [[str(token)] for token in prompt[1:]]


def test_chat_renders_the_template_and_streams_deltas(served: Served, url: str, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "one?"}]}]
    body = {"messages": messages, "logprobs": True, "top_logprobs": 1, "max_completion_tokens": 40}
    status, reply = ask(url, "/v1/chat/completions", body)
    assert status == 200, reply
    assert reply["object"] == "chat.completion"
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": ANSWER}
    first = choice["logprobs"]["content"][0]
    assert first["bytes"] == list(first["token"].encode())
    assert len(first["top_logprobs"]) == 1
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "one?"}], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(served.engine.asked[0].prompt) == rendered
    opening, *events = read_events(url, "/v1/chat/completions", body)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == ANSWER
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"prompt": None}, "prompt", "must be a string"),
        ({"prompt": []}, "prompt", "must be a string"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [1, True]}, "prompt", "must be a string"),
        ({"prompt": [99999]}, "prompt", "token id 99999"),
        ({"prompt": "\ud800"}, "prompt", "not valid Unicode"),
        ({"max_tokens": 0}, "max_tokens", "whole number from 1"),
        ({"max_tokens": "3"}, "max_tokens", "it is '3'"),
        ({"max_tokens": 1000}, "max_tokens", "window has 64 tokens; this request needs 10"),
        ({"temperature": -1}, "temperature", "0, or at least 1e-6"),
        ({"temperature": 1e-300}, "temperature", "0, or at least 1e-6"),
        ({"temperature": True}, "temperature", "must be a number"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"min_p": 1}, "min_p", "below 1"),
        ({"top_k": -2}, "top_k", "from -1"),
        ({"n": 0}, "n", "from 1"),
        ({"n": 1.5}, "n", "it is 1.5"),
        ({"seed": "a"}, "seed", "whole number"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"stop": 3}, "stop", "list of strings"),
        ({"logprobs": 21}, "logprobs", "to 20"),
        ({"logprobs": True}, "logprobs", "to 20"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"best_of": 2}, "best_of", "equal to n"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not supported"),
        ({"logit_bias": {"1": 5}}, "logit_bias", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "token id -1"),
    ],
)
def test_mistakes_are_refused_with_their_field(url: str, change: dict[str, Any], param: str, words: str) -> None:
    status, reply = complete(url, **change)
    assert (status, reply["error"]["param"]) == (400, param)
    assert words in reply["error"]["message"]
    assert reply["error"]["code"] == 400


def test_what_asks_for_nothing_is_taken(url: str) -> None:
    inert = {"frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1, "suffix": None, "user": "me", "top_k": -1}
    assert complete(url, **inert)[0] == 200


def test_tools_and_foreign_messages_are_refused(url: str) -> None:
    user = {"role": "user", "content": "?"}
    for change, words in (
        ({"tools": [{"type": "function"}]}, "calls no tools"),
        ({"messages": [user, {"role": "tool", "content": "1"}]}, "belongs to a tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parts of the type text"),
        ({"messages": []}, "must be a list of messages"),
        ({"messages": ["?"]}, "object with a role"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "variables of the chat template"),
    ):
        status, reply = ask(url, "/v1/chat/completions", {"messages": [user], **change})
        assert status == 400, change
        assert words in reply["error"]["message"]


def test_bodies_are_checked(url: str) -> None:
    for body, words in ((b"{", "not valid JSON"), (b"[]", "JSON object"), (b'{"a": NaN}', "NaN"), (b"\xff", "valid")):
        status, reply = ask(url, "/v1/completions", body)
        assert (status, reply["error"]["type"]) == (400, "BadRequestError")
        assert words in reply["error"]["message"]
    status, reply = ask(url, "/v1/completions", b"[" * 200_000)
    assert "nested too deeply" in reply["error"]["message"]
    status, reply = complete(url, model="other")
    assert (status, reply["error"]["param"]) == (404, "model")
    assert "'tiny'" in reply["error"]["message"]
    assert ask(url, "/nothing")[0] == 404
    assert ask(url, "/v1/completions", method="GET")[0] == 405


def test_long_bodies_and_prompts_are_refused_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(url, prompt="a" * 11_000_000)[0] == 413
    monkeypatch.setattr(bodies, "DRAIN_SECONDS", 0.1)
    status, reply = complete(url, prompt="ab " * 3_000_000)
    assert status == 400
    assert "the model's window has 64" in reply["error"]["message"]
    monkeypatch.setattr(model_text, "INLINE", 0)
    monkeypatch.setattr(model_text, "BEGINNING", 4)
    status, reply = complete(url, prompt="€" * 700)  # it would fit if every token were the longest
    assert (status, "of which the first 256 alone are" in reply["error"]["message"]) == (400, True), reply
    with connect_raw(url) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20000000\r\n\r\n")
        assert b"413" in raw.recv(1000).split(b"\r\n")[0]
    chunk = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    with connect_raw(url) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(10):
            raw.sendall(chunk)
        assert b"413" in raw.recv(1000).split(b"\r\n")[0]


def connect_raw(url: str) -> socket.socket:
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), timeout=30)


def test_half_a_request_is_dropped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    for begun in (b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"):
        with connect_raw(url) as raw:
            raw.sendall(begun)
            with suppress(ConnectionResetError):
                assert raw.recv(1000) == b""
    with connect_raw(url) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in raw.recv(1000).split(b"\r\n")[0]
    assert complete(url)[0] == 200


def test_a_client_that_does_not_read_is_dropped(served: Served, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)
    body = json.dumps(build_batch(prompts=[[5]], seeds=[[1] * 60_000])).encode()
    with socket.socket() as raw:
        # A small window: the server cannot leave the reply to the operating system.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(30)
        place = urlsplit(url)
        raw.connect((place.hostname, place.port))
        head = f"POST /qed/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        wait_until(lambda: len(served.server.server_state.connections) == 1)
        assert complete(url)[0] == 200
        wait_until(lambda: len(served.server.server_state.connections) == 0)


def test_a_client_that_reads_slowly_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.01)
    sizes = iter([9, 6, 3, 3])

    async def wait() -> None:
        connection = object.__new__(connections.TimedConnection)
        connection.loop, connection._unread, dropped = asyncio.get_running_loop(), None, asyncio.Event()
        connection.transport = SimpleNamespace(get_write_buffer_size=lambda: next(sizes), abort=dropped.set)
        connection._expect_reader()
        await asyncio.wait_for(dropped.wait(), 30)

    asyncio.run(wait())
    assert list(sizes) == []  # it was dropped once it had taken nothing


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what must come true."""
    event = threading.Event()
    for _ in range(3000):
        if condition():
            return
        event.wait(0.01)
    raise AssertionError("it has not come true")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_aborted_when_its_client_goes(served: Served, url: str, stream: bool) -> None:
    connection = connect(url)
    body = {"prompt": [5], "n": 2, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body).encode())
    wait_until(lambda: served.engine.running == 2)
    assert connection.sock is not None
    connection.sock.close()
    wait_until(lambda: served.engine.running == 0)
    assert served.engine.aborted == 2


def test_hosts_and_pages_of_others_are_refused(url: str) -> None:
    assert ask(url, "/v1/models", Host="evil.example")[0] == 403
    assert ask(url, "/v1/models", Host="localhost:1")[0] == 200
    assert ask(url, "/v1/models", Origin="http://evil.example")[0] == 403
    assert ask(url, "/v1/models", Origin="null")[0] == 403
    assert ask(url, "/v1/models", Origin=url)[0] == 200


def test_a_token_is_required_where_there_is_one(tokenizer: Any) -> None:
    with Served(tokenizer, token="s3cret").run() as served:
        assert ask(served.url, "/health")[0] == 200
        for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
            status, reply = ask(served.url, "/pause", b"", **headers)
            assert (status, reply["error"]["type"]) == (401, "AuthenticationError")
            assert "s3cret" not in str(reply)
        assert ask(served.url, "/v1/models", Authorization="Bearer s3cret", Host="a.name")[0] == 200


def test_models_version_tokens_and_metrics(url: str, tokenizer: Any) -> None:
    _, models = ask(url, "/v1/models")
    ours, other = models["data"]
    assert (ours["id"], other["id"], ours["owned_by"], ours["max_model_len"]) == ("tiny", "runs/tiny", "qed", WINDOW)
    assert ours["qed"]["exact_logps"] is True
    assert ask(url, "/v1/models/runs/tiny")[1]["id"] == "runs/tiny"
    assert ask(url, "/v1/models/x")[0] == 404
    assert "version" in ask(url, "/version")[1]
    _, reply = ask(url, "/tokenize", {"prompt": "one €", "return_token_strs": True})
    assert reply["tokens"] == tokenizer("one €")["input_ids"]
    assert reply["count"] == len(reply["token_strs"])
    assert ask(url, "/detokenize", {"tokens": reply["tokens"]})[1] == {"prompt": "one €"}
    assert ask(url, "/tokenize", {"messages": [{"role": "user", "content": "?"}]})[1]["count"] > 1
    complete(url)
    text = ask(url, "/metrics")[1]
    assert 'qed:num_requests_waiting{model_name="tiny"} 2' in text
    assert 'qed:time_to_first_token_seconds_bucket{model_name="tiny",le="+Inf"}' in text
    assert 'qed:http_replies_total{model_name="tiny",status="200"}' in text


PART = {"prompts": [[5, 6], [7]], "seeds": [[1, 2], [3]], "sampling": {"temperature": 1.0, "max_tokens": 4}}


def build_batch(**changes: Any) -> dict[str, Any]:
    return {"batches": [{**PART, **changes}]}


def read_lines(url: str, body: Any) -> list[Any]:
    """The lines of a batch."""
    connection = connect(url)
    connection.request("POST", "/qed/batch", json.dumps(body).encode())
    reply = connection.getresponse()
    assert reply.status == 200
    lines = [json.loads(line) for line in reply]
    connection.close()
    return lines


def test_a_batch_comes_back_as_completions(url: str) -> None:
    *_, last = read_lines(url, build_batch())
    completion = {"tokens": [1], "logps": [-0.5], "stop_reason": "stop", "support": None}
    assert last == {
        "version": 0,
        "completions": [[completion, {**completion, "tokens": [2]}], [{**completion, "tokens": [3]}]],
    }
    *_, last = read_lines(url, {"batches": [PART, {**PART, "prompts": [[8]], "seeds": [[4]]}]})
    assert [[one["tokens"] for one in row] for row in last["completions"]] == [[[1], [2]], [[3]], [[4]]]
    for change in (
        {"seeds": [[1]]},
        {"prompts": [[], [1]]},
        {"sampling": None},
        {"sampling": {"max_tokens": 0}},
        {"sampling": {"max_tokens": 1, "typical_p": 0.5}},
        {"prefix_lengths": [1]},
        {"prefix_lengths": [0, 4]},
        {"prefix_lengths": [9, 0]},
    ):
        assert ask(url, "/qed/batch", build_batch(**change))[0] == 400
    for batches in (None, [], {}, [None], [PART, {}]):
        assert ask(url, "/qed/batch", {"batches": batches})[0] == 400
    scored = ask(url, "/qed/score", {"prompts": [[1]], "outputs": [[2, 3]], "temperature": 0.7})
    assert scored == (200, {"version": 0, "logps": [[-1.0, -2.0]]})
    assert ask(url, "/qed/score", {"prompts": [[1]], "outputs": [[2] * WINDOW]})[0] == 400


def test_pauses_updates_and_sleep(served: Served, url: str, tmp_path: Path) -> None:
    assert ask(url, "/pause?mode=keep", b"")[0] == 400
    assert ask(url, "/pause?mode=wait&timeout=1", b"") == (200, {"status": "paused"})
    assert ask(url, "/is_paused")[1] == {"is_paused": True}
    assert ask(url, "/v1/models")[1]["data"][0]["qed"]["paused"] is True
    status, reply = ask(url, "/qed/update", {"folder": str(tmp_path), "version": 4})
    assert (status, "not complete" in reply["error"]["message"]) == (400, True)
    (tmp_path / "COMPLETE").touch()
    assert ask(url, "/qed/update", {"folder": str(tmp_path), "version": 4}) == (200, {"version": 4})
    assert ask(url, "/qed/update", {"folder": "relative", "version": 4})[0] == 400
    for path in ("/reset_prefix_cache", "/sleep?level=1"):
        assert ask(url, path, b"")[0] == 200
    assert ask(url, "/is_sleeping")[1] == {"is_sleeping": True}
    assert ask(url, "/wake_up", b"")[0] == ask(url, "/resume", b"")[0] == 200
    assert choose(url)["weight_version"] == 4
    connection = connect(url)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": [5]}).encode())
    wait_until(lambda: served.engine.running == 1)
    status, reply = ask(url, "/pause?mode=wait&timeout=0", b"")
    assert (status, reply["error"]["type"]) == (409, "ConflictError")
    connection.close()


def test_a_dead_engine_is_started_again_with_its_weights_and_pause(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "COMPLETE").touch()
    with Served(tokenizer).run() as served:
        url = served.url
        ask(url, "/qed/update", {"folder": str(tmp_path), "version": 2})
        ask(url, "/pause", b"")
        replies: list[tuple[int, Any]] = []
        waiting = threading.Thread(target=lambda: replies.append(complete(url, prompt=[5])))
        waiting.start()
        first = served.engine
        wait_until(lambda: first.running == 1)
        served.call(first.die)
        waiting.join(30)
        status, reply = replies[0]
        assert (status, reply["error"]["type"]) == (503, "ServiceUnavailableError")
        wait_until(lambda: ask(url, "/health")[0] == 200)
        assert ask(url, "/health")[1] == {"status": "ready", "weight_version": 2, "restarts": 1}
        source = served.engine.source
        assert (source.weights, source.version, served.engine.paused) == (str(tmp_path), 2, True)
        assert choose(url)["weight_version"] == 2


def test_an_engine_that_does_not_start_again_is_given_up(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FIRST_WAIT", 0.001)
    with Served(tokenizer).run() as served:
        engine, built = served.engine, len(served.engines)

        def build(source: ModelSource, on_exit: Callable[[str], None]) -> FakeEngine:
            served.engines.append(engine)
            raise ModelError("The weights are gone.")

        served.keeper._build = build  # type: ignore[assignment]
        served.call(engine.die)
        wait_until(served.keeper.given_up.is_set)
        assert len(served.engines) - built == keeper.MOST_STARTS
        status, reply = ask(served.url, "/health")
        assert (status, reply["status"]) == (503, "failed")
        assert "The weights are gone." in reply["reason"]
        assert complete(served.url)[0] == 503


def test_a_batch_that_is_given_up_says_why(served: Served, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def give_up(batch: Batch, on_step: Any) -> Any:
        raise AnswerAborted("A pause gave it up.")

    monkeypatch.setattr(served.engine, "batch", give_up)
    (line,) = read_lines(url, build_batch())
    assert (line["error"]["type"], line["error"]["code"]) == ("AnswerAborted", 503)


def test_a_batch_is_aborted_when_its_client_goes(served: Served, url: str) -> None:
    connection = connect(url)
    body = build_batch(sampling={"temperature": 1.0, "max_tokens": 2})
    connection.request("POST", "/qed/batch", json.dumps(body).encode())
    assert json.loads(connection.getresponse().readline()) == {"steps": 3}
    connection.close()
    wait_until(lambda: served.engine.running == 0)
