"""A request ends by its deadline, is repeated only where that may help, and its reply is remembered."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from serving import chat_reply, serve

from qed.errors import UsageError
from qed.net import endpoint as net
from qed.net.cache import ReplyCache
from qed.net.chat import ChatModel, complete_address, remove_thought
from qed.net.endpoint import Endpoint, RequestError


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "FIRST_WAIT", 0.01)


@pytest.mark.parametrize("status", sorted(net.PASSING))
def test_a_failure_that_may_pass_is_repeated(status: int) -> None:
    replies = [(status, {}), (status, {}), (200, {"value": 3})]
    with serve(lambda *_: replies.pop(0)) as url:
        assert Endpoint(url).post({}) == {"value": 3}
    assert not replies


@pytest.mark.parametrize("status", [302, 400, 401, 404])
def test_a_refusal_is_not_repeated(status: int) -> None:
    asked: list[Any] = []

    def refuse(path: str, content: Any, headers: dict[str, str]) -> tuple[int, Any]:
        asked.append(content)
        return status, {"error": "no such\nmodel"}

    with serve(refuse) as url, pytest.raises(RequestError, match=rf"status {status}: .*no such"):
        Endpoint(url).post({"a": 1})
    assert asked == [{"a": 1}]


@pytest.mark.parametrize(("status", "said"), [(302, "it points to http"), (403, "it gives no reason")])
def test_a_refusal_without_words_says_what_is_known(status: int, said: str) -> None:
    with serve(lambda *_: (status, b"")) as url, pytest.raises(RequestError, match=f"status {status}: {said}"):
        Endpoint(url).post({})


def test_a_server_that_always_fails_is_given_up() -> None:
    with serve(lambda *_: (503, {})) as url, pytest.raises(RequestError, match=r"status 503 \(3 attempts"):
        Endpoint(url, attempts=3).post({})


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_was_there_is_asked_for_longer(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Not so one that never answered, or that fails by itself: its address or the request may be wrong."""
    monkeypatch.setattr(net, "LONGEST_WAIT", 0.01)
    replies: list[tuple[int, Any]] = [(200, 1), *[(status, {})] * 20, (200, 2), *[(500, {})] * 9]
    with serve(lambda *_: replies.pop(0)) as url:
        endpoint = Endpoint(url, attempts=2, patience=60.0)
        assert [endpoint.post({}), endpoint.post({})] == [1, 2]
        with pytest.raises(RequestError, match=r"status 500 \(2 attempts"):
            endpoint.post({})
        replies[:] = [(status, {})] * 9
        endpoint.patience = 0.0  # it has been away for longer by now
        with pytest.raises(RequestError, match=rf"status {status} \(2 attempts"):
            endpoint.post({})
        with pytest.raises(RequestError, match=rf"status {status} \(2 attempts"):
            Endpoint(url, attempts=2, patience=60.0).post({})


def test_a_request_that_alone_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers others meanwhile is there: its worker fails on this one."""
    monkeypatch.setattr(net, "LONGEST_WAIT", 0.01)
    seen: list[Any] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> tuple[int, Any]:
        seen.append(content)
        return (503 if content["poison"] else 200), {}

    with serve(answer) as url:
        endpoint = Endpoint(url, attempts=3, patience=60.0)
        endpoint.post({"poison": False})
        wait = endpoint._client.scope.wait
        # Another request is answered between two attempts.
        monkeypatch.setattr(
            endpoint._client.scope, "wait", lambda seconds: endpoint.post({"poison": False}) and wait(0)
        )
        with pytest.raises(RequestError, match=r"status 503 \(3 attempts"):
            endpoint.post({"poison": True})
    assert sum(content["poison"] for content in seen) == 3


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("<think>a\n</think>\n\nScore: 3", "Score: 3"),
        ("<think>it has no </think> tag</think>Score: 3", "Score: 3"),
        ("a thought\n</think>\n\nScore: 3", "Score: 3"),
        ("a thought</think>Score: 3", "Score: 3"),
        ("it opens <think> once\n</think>\nScore: 3", "Score: 3"),
        ("The answer opens with <think> and never closes it. Score: 3", None),
        ("It wrote <think> and </think> in one line. Score: 3", None),
        ("Score: 3. It never wrote </think>.", None),
        ("Score: 3", None),
    ],
)
def test_what_a_model_thought_is_no_part_of_its_reply(text: str, reply: str | None) -> None:
    assert remove_thought(text) == (text if reply is None else reply)


def test_a_thought_without_an_end_is_no_reply() -> None:
    with pytest.raises(RequestError, match="within its reasoning"):
        remove_thought(" <think>it wrote 3")


def test_nobody_listens() -> None:
    with serve(lambda *_: (200, {})) as url:
        pass
    with pytest.raises(RequestError, match="refused"):
        Endpoint(url, attempts=2).post({})


def test_a_silent_server_is_left_at_the_deadline() -> None:
    with serve(lambda *_: None) as url:
        began = time.monotonic()
        with pytest.raises(RequestError, match=r"no reply within 0.3 s"):
            Endpoint(url, seconds=0.3, attempts=2).post({})
        assert time.monotonic() - began < 10


def test_a_server_that_drips_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, so a time-out between two bytes would never pass."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not ended.wait(0.05):
            try:
                connection.sendall(b" ")
            except OSError:
                break

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    with pytest.raises(RequestError, match=r"no (whole )?reply within 0.4 s"):
        Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.4, attempts=1).post({})
    ended.set()
    listener.close()


def test_closing_ends_requests_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "FIRST_WAIT", 60.0)
    for answer in (lambda *_: None, lambda *_: (503, {})):
        with serve(answer) as url:
            endpoint = Endpoint(url, seconds=60)
            threading.Timer(0.2, endpoint.close).start()
            began = time.monotonic()
            with pytest.raises(RequestError, match="cancelled"):
                endpoint.post({})
            assert time.monotonic() - began < 10


def test_nothing_is_sent_once_a_connection_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    connect = http.client.HTTPConnection.connect

    def close_and_connect(connection: Any) -> None:
        endpoint.close()
        connect(connection)

    with serve(lambda *_: asked.append(1)) as url:
        endpoint = Endpoint(url, seconds=60)
        monkeypatch.setattr(http.client.HTTPConnection, "connect", close_and_connect)
        with pytest.raises(RequestError, match="cancelled"):
            endpoint.post({})
    assert not asked


def test_an_oversized_or_garbled_reply_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "MAX_BYTES", 1000)
    with serve(lambda *_: (200, b"x" * 2000)) as url, pytest.raises(RequestError, match="more than 1,000 bytes"):
        Endpoint(url).post({})
    with serve(lambda *_: (200, b"<html>")) as url, pytest.raises(RequestError, match="not JSON"):
        Endpoint(url, attempts=2).post({})


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    monkeypatch.setenv("MY_KEY", "abc")
    with serve(lambda path, content, headers: seen.append(headers.get("Authorization")) or (200, {})) as url:  # type: ignore[func-returns-value]
        Endpoint(url, "MY_KEY").post({})
        Endpoint(url, "NO_SUCH_KEY").post({})
        Endpoint(url).post({})
    assert seen == ["Bearer abc", None, None]


WRONG = ["", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://[::1:80", "http://x..y"]


@pytest.mark.parametrize("url", [*WRONG, "http://x y/v1", "http://x/v 1", "http://x/é", f"http://{'x' * 64}.y"])
def test_an_address_that_cannot_be_requested_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Endpoint(url)


def test_a_chat_model() -> None:
    asked: list[tuple[str, Any]] = []
    with serve(
        lambda path, content, _: asked.append((path, content)) or (200, chat_reply("<think>a</think> b "))
    ) as url:  # type: ignore[func-returns-value]
        model = ChatModel(Endpoint(complete_address(url + "/v1/")), "judge", 5, {"seed": 1, "max_tokens": None})
        assert model.ask([{"role": "user", "content": "q"}]) == "b"
    body = {"model": "judge", "messages": [{"role": "user", "content": "q"}], "temperature": 0.0, "seed": 1}
    assert asked == [("/v1/chat/completions", body)]
    for address in ("http://x/v1/chat/completions", "http://x/chat/completions?api-version=1"):
        assert complete_address(address) == address
    assert complete_address("http://x/v1/?a=b") == "http://x/v1/chat/completions?a=b"
    for reply in (chat_reply(""), chat_reply(None), {"choices": []}, [1], {}):
        with pytest.raises(RequestError):
            model.read_reply(reply)


def test_a_reply_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "cache.jsonl"
    cache = ReplyCache(file)
    assert cache.find({"b": 1, "a": 2}) is None
    cache.add({"b": 1, "a": 2}, "first")
    assert cache.find({"a": 2, "b": 1}) == "first"
    with file.open("a") as stream:
        stream.write('["torn')
    again = ReplyCache(file)
    assert again.find({"a": 2, "b": 1}) == "first"
    again.add("new", [0.5])
    assert ReplyCache(file).find("new") == [0.5]
    assert json.loads(file.read_text().splitlines()[-1])[1] == [0.5]
    memory = ReplyCache()
    memory.add("a", 1)
    assert memory.find("a") == 1
