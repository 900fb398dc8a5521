"""`qed serve` as a user starts it: a saved model behind the API, asked by the standard library, up to its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from asking import ask as ask_server
from asking import connect, read_events

from qed.config.settings import ModelSettings
from qed.models.load import build_model, find_end_ids, load_model, prepare_model
from qed.sampling.base import Sampling
from qed.sampling.native.sampler import NativeSampler

pytestmark = pytest.mark.xdist_group("serving")
TOKEN = "correct-horse"
KEY = {"Authorization": f"Bearer {TOKEN}"}
PROMPT = "1 and 2 €"


class Server:
    """A server in a process of its own, and what it says when it is ready."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "qed", "serve", str(folder), "--json", "--name", "tiny", "--threads", "1"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "QED_SERVE_TOKEN": TOKEN}
        )
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())
        self.url: str = self.ready["url"]

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        return ask_server(self.url, path, body, **KEY)

    def complete(self, **body: Any) -> list[dict[str, Any]]:
        """The choices of a completion."""
        status, reply = self.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 12, "seed": 1, **body})
        assert status == 200, reply
        return list(reply["choices"])

    @property
    def engine(self) -> int:
        """The process id of the engine."""
        return int(self.ask("/v1/models")[1]["data"][0]["qed"]["process"])

    def read_gauge(self, name: str) -> float:
        lines = self.ask("/metrics")[1].splitlines()
        return float(next(line for line in lines if line.startswith(f"qed:{name}{{")).split()[-1])


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model("new:tiny", ["1 and 2 € 👍 3 one two three"], seed=0)


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "model"
    for part in model:
        part.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="module")
def tokenizer(model: Any) -> Any:
    return model[1]


@pytest.fixture(scope="module")
def sampler(folder: Path) -> NativeSampler:
    """The sampler of a learner's process with the same model."""
    torch.set_num_threads(1)
    settings = ModelSettings(name=str(folder), device="cpu")
    model, tokenizer = load_model(settings)
    model = prepare_model(model, settings, torch.device("cpu"))
    return NativeSampler(model, tokenizer, find_end_ids(model, tokenizer, True), 128, torch.float32)


def test_it_says_where_it_is(server: Server) -> None:
    assert server.ready == {"url": server.url, "model": "tiny", "pid": server.process.pid}
    assert server.ask("/health") == (200, {"status": "ready", "weight_version": 0, "restarts": 0})
    ours = server.ask("/v1/models")[1]["data"][0]
    assert (ours["id"], ours["owned_by"], ours["qed"]["engine"]) == ("tiny", "qed", "native")
    # The key is not handed on to the engine's process.
    if Path("/proc").is_dir():
        assert TOKEN.encode() not in Path(f"/proc/{server.engine}/environ").read_bytes()


def test_texts_and_ids_ask_for_the_same(server: Server, tokenizer: Any) -> None:
    (by_text,) = server.complete(logprobs=0)
    (by_ids,) = server.complete(logprobs=0, prompt=tokenizer(PROMPT)["input_ids"])
    assert by_text == by_ids
    assert by_text["text"] == tokenizer.decode(by_text["token_ids"], skip_special_tokens=True)


def test_answers_are_those_of_the_process(server: Server, sampler: NativeSampler, tokenizer: Any) -> None:
    prompt = tokenizer(PROMPT)["input_ids"]
    (mine,) = sampler.generate([prompt], [[7, 8]], Sampling(0.8, 12, top_p=0.9))
    for seed, completion in zip((7, 8), mine, strict=True):
        (choice,) = server.complete(seed=seed, temperature=0.8, top_p=0.9, logprobs=0)
        assert choice["token_ids"] == list(completion.tokens)
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(list(completion.logps), abs=1e-5)
    body = {
        "prompts": [prompt, prompt[:2]],
        "seeds": [[7, 8], [9]],
        "sampling": {"temperature": 0.8, "max_tokens": 12, "top_p": 0.9, "record": True},
    }
    with closing(connect(server.url)) as connection:
        connection.request("POST", "/qed/batch", json.dumps(body), KEY)
        *_, last = map(json.loads, connection.getresponse())
    mine, other = sampler.generate([prompt, prompt[:2]], [[7, 8], [9]], Sampling(0.8, 12, top_p=0.9, record=True))
    for completion, found in zip((*mine, *other), (row for rows in last["completions"] for row in rows), strict=True):
        assert found["tokens"] == list(completion.tokens)
        assert found["logps"] == list(completion.logps)  # bit by bit
        assert completion.support is not None
        assert found["support"] == {"counts": list(completion.support.counts), "ids": list(completion.support.ids)}


def test_n_answers_repeat_with_their_seed(server: Server) -> None:
    first, again, other = (server.complete(n=4, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert len({tuple(choice["token_ids"]) for choice in first}) > 1
    assert server.complete(seed=3) == [first[0]]
    assert server.complete(temperature=0, seed=1) == server.complete(temperature=0, seed=2)


@pytest.mark.parametrize("stop", [None, "middle"])
def test_a_stream_is_the_whole_answer_in_pieces(server: Server, stop: str | None) -> None:
    for seed in range(3):
        body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 400, "seed": seed, "logprobs": 2, "ignore_eos": True}
        (whole,) = server.complete(**body)
        if stop:
            body["stop"] = whole["text"][8:10]
            (whole,) = server.complete(**body)
            assert whole["stop_reason"] == body["stop"] not in whole["text"]
        events = list(read_events(server.url, "/v1/completions", body, **KEY))
        choices = [event["choices"][0] for event in events]
        assert len(choices) > 1 or stop
        assert "".join(choice["text"] for choice in choices) == whole["text"]
        assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
        logps = [logp for choice in choices for logp in choice["logprobs"]["token_logprobs"]]
        assert logps == whole["logprobs"]["token_logprobs"]
        assert choices[-1]["finish_reason"] == whole["finish_reason"]


def test_log_probs_are_those_of_the_forward_pass(server: Server, tokenizer: Any) -> None:
    prompt = tokenizer(PROMPT)["input_ids"]
    (choice,) = server.complete(logprobs=3, return_tokens_as_token_ids=True)
    found, ids = choice["logprobs"], choice["token_ids"]
    status, scored = server.ask("/qed/score", {"prompts": [prompt], "outputs": [ids], "temperature": 1.0})
    assert status == 200, scored
    assert found["token_logprobs"] == pytest.approx(scored["logps"][0], abs=1e-5)
    assert all(3 <= len(row) <= 4 and max(row.values()) <= 0 for row in found["top_logprobs"])
    # As lm-eval asks for the likelihood of a text.
    (echoed,) = server.complete(prompt=[*prompt, *ids], echo=True, logprobs=1, max_tokens=1, temperature=0)
    assert echoed["logprobs"]["token_logprobs"][0] is None
    assert echoed["logprobs"]["token_logprobs"][len(prompt) : -1] == pytest.approx(scored["logps"][0], abs=1e-5)
    assert len(echoed["logprobs"]["top_logprobs"]) == len(prompt) + len(ids) + 1


def test_chat(server: Server, tokenizer: Any) -> None:
    body = {"messages": [{"role": "user", "content": "one?"}], "seed": 2, "max_tokens": 8}
    status, reply = server.ask("/v1/chat/completions", body)
    assert status == 200, reply
    rendered = tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert reply["usage"]["prompt_tokens"] == len(ids)
    (choice,) = server.complete(prompt=ids, seed=2, max_tokens=8)
    assert reply["choices"][0]["message"]["content"] == choice["text"]
    events = read_events(server.url, "/v1/chat/completions", body, **KEY)
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == choice["text"]


def test_end_tokens_and_lengths(server: Server, tokenizer: Any) -> None:
    window = server.ask("/v1/models")[1]["data"][0]["max_model_len"]
    (choice,) = server.complete(max_tokens=window - len(tokenizer(PROMPT)["input_ids"]), ignore_eos=True)
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == window - len(tokenizer(PROMPT)["input_ids"])
    status, reply = server.ask("/v1/completions", {"prompt": [1] * window, "max_tokens": 1})
    assert (status, str(window) in reply["error"]["message"]) == (400, True)
    stop = server.complete()[0]["token_ids"][3]
    (choice,) = server.complete(stop_token_ids=[stop], min_tokens=0)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert len(choice["token_ids"]) <= 4


def test_bad_requests_leave_it_alive(server: Server) -> None:
    long = {"prompt": "word " * 1_900_000}
    assert server.ask("/v1/completions", long)[0] == 400
    assert server.ask("/v1/completions", {"prompt": "x" * 11_000_000})[0] == 413
    assert server.ask("/v1/completions", b'{"prompt": ')[0] == 400
    assert server.ask("/v1/completions", {"prompt": PROMPT, "model": "other"})[0] == 404
    assert ask_server(server.url, "/v1/models")[0] == 401
    assert ask_server(server.url, "/v1/models", Authorization="Bearer wrong")[0] == 401
    place = urlsplit(server.url)
    halves = [socket.create_connection((place.hostname, place.port)) for _ in range(20)]
    for number, half in enumerate(halves):
        half.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"[: 5 + number * 4]
        )
    assert len(server.complete()) == 1
    for half in halves:
        half.close()
    assert server.ask("/health")[0] == 200


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what must come true."""
    event = threading.Event()
    for _ in range(1500):
        if condition():
            return
        event.wait(0.02)
    raise AssertionError("it has not come true")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_given_up_when_its_client_goes(server: Server, stream: bool) -> None:
    with closing(connect(server.url)) as connection:
        body = {"prompt": PROMPT, "max_tokens": 400, "n": 40, "ignore_eos": True, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body), KEY)
        wait_until(lambda: server.read_gauge("num_requests_running") > 0)
    wait_until(lambda: server.read_gauge("num_requests_running") + server.read_gauge("open_answers") == 0)
    assert 'finished_reason="abort"' in server.ask("/metrics")[1]


def test_new_weights_are_loaded_or_refused(server: Server, model: Any, folder: Path, tmp_path: Path) -> None:
    before = server.complete(temperature=0)
    status, reply = server.ask("/qed/update", {"folder": str(folder), "version": 1})
    assert (status, "COMPLETE" in reply["error"]["message"]) == (400, True)
    assert server.complete(temperature=0) == before
    for part in (build_model("new:tiny", ["1 and 2 € 👍 3 one two three"], seed=1)[0], model[1]):
        part.save_pretrained(tmp_path)
    (tmp_path / "COMPLETE").write_text(json.dumps({"version": 5, "format": "full"}))
    assert server.ask("/pause?mode=wait&timeout=30", b"")[0] == 200
    assert server.ask("/qed/update", {"folder": str(tmp_path), "version": 5}) == (200, {"version": 5})
    assert server.ask("/resume", b"")[0] == 200
    (after,) = server.complete(temperature=0)
    assert after["weight_version"] == 5
    assert after["token_ids"] != before[0]["token_ids"]

    # A killed engine comes back with these weights, and answers that ran are errors and not half answers.
    replies: list[tuple[int, Any]] = []
    body = {"prompt": PROMPT, "max_tokens": 400, "n": 40, "ignore_eos": True}
    asking = threading.Thread(target=lambda: replies.append(server.ask("/v1/completions", body)))
    asking.start()
    wait_until(lambda: server.read_gauge("num_requests_running") > 0)
    os.kill(server.engine, signal.SIGKILL)
    asking.join(60)
    status, reply = replies[0]
    assert (status, "SIGKILL" in reply["error"]["message"]) == (503, True)
    assert server.ask("/health?timeout=0")[1]["status"] == "restarting"
    assert server.ask("/health?timeout=60") == (200, {"status": "ready", "weight_version": 5, "restarts": 1})
    assert server.complete(temperature=0) == [after]


def test_sigterm_ends_it_with_its_engine(server: Server) -> None:
    engine, replies = server.engine, list[int]()
    body = {"prompt": PROMPT, "max_tokens": 5, "n": 2}
    asking = threading.Thread(target=lambda: replies.append(server.ask("/v1/completions", body)[0]))
    asking.start()
    asking.join(60)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 128 + signal.SIGTERM
    assert replies == [200]
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)
    with pytest.raises(ConnectionRefusedError):
        server.ask("/health")
