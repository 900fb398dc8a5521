"""`qed chat --url`: a conversation with an OpenAI-compatible server, without torch, streamed, stopped and refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qed.cli.chat_server import ServerPartner, connect
from qed.cli.chat_session import ChatSession
from qed.errors import UsageError

Events = Callable[[dict[str, Any]], Iterator[dict[str, Any] | str]]


def delta(text: str = "", finish: str | None = None, **more: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": finish}]}


class Service:
    """A server whose streams a test decides; it keeps what it was asked, and whether a reader has left early."""

    def __init__(self, events: Events, models: tuple[str, ...] = ("small",), key: str = "") -> None:
        self.events, self.models, self.key = events, models, key
        self.asked: list[dict[str, Any]] = []
        self.left = threading.Event()
        self.url = ""

    @contextmanager
    def run(self) -> Iterator[Service]:
        """Serve in a thread while the block runs."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(200, {"data": [{"id": name, "root": name.partition(":")[0]} for name in service.models]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append({**body, "path": self.path})
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    for event in service.events(body):
                        data = event if isinstance(event, str) else json.dumps(event)
                        self.wfile.write(f"data: {data}\n\n: alive\n\n".encode())
                        self.wfile.flush()
                except OSError:
                    service.left.set()

            def _reply(self, status: int, content: Any) -> None:
                if service.key and self.headers["Authorization"] != f"Bearer {service.key}":
                    status, content = 401, {"error": {"message": "a key is missing", "type": "auth"}}
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Print nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


def count_up(body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
    yield delta(role="assistant")
    yield delta(f"{len(body['messages'])} ")
    yield delta("€", finish="length" if body.get("max_tokens") == 2 else "stop")
    yield {"choices": [], "usage": {"total_tokens": 3}}
    yield "[DONE]"


def hold(service: Service, monkeypatch: pytest.MonkeyPatch, *lines: Any, thinking: bool = False, **options: Any) -> str:
    """Hold a conversation at a terminal, and return what is shown."""
    questions = iter(lines)

    def read(sign: str) -> str:
        line = next(questions, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    out = io.StringIO()
    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdout", out)
    session = ChatSession(connect(service.url, "", "KEY", options, "Be brief.", 7), thinking)
    session.interactive = True
    session.run()
    return out.getvalue()


def test_a_conversation_over_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved = tmp_path / "a.json"
    with Service(count_up).run() as service:
        lines = ("1?", "2?", f"/save {saved}", "/reset", "3?")
        shown = hold(service, monkeypatch, *lines, max_tokens=9, temperature=0.5).splitlines()
    assert shown[:2] == ["2 €", "4 €"]
    assert shown[-2:] == ["2 €", ""]
    first, second, third = service.asked
    assert (first["path"], first["model"], first["max_tokens"]) == ("/v1/chat/completions", "small", 9)
    assert first["temperature"] == 0.5
    assert first["stream"] is True
    assert second["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "2 €"},
        {"role": "user", "content": "2?"},
    ]
    assert [message["content"] for message in third["messages"]] == ["Be brief.", "3?"]
    assert len({request["seed"] for request in service.asked}) == 3
    assert len(json.loads(saved.read_text())["messages"]) == 4


def test_reasoning_in_a_field_of_its_own_is_hidden_and_not_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def think(body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        yield delta(reasoning_content="1 and ")
        yield delta(reasoning_content="1")
        yield delta("2", finish="stop")

    for thinking, expected in ((False, "2\n2\n\n"), (True, "<think>1 and 1</think>2\n" * 2 + "\n")):
        with Service(think).run() as service:
            assert hold(service, monkeypatch, "1+1?", "again?", thinking=thinking) == expected
        assert service.asked[1]["messages"][-2] == {"role": "assistant", "content": "2"}


def test_ctrl_c_stops_the_answer_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        if len(body["messages"]) > 2:
            yield from count_up(body)
        while True:
            yield delta("word ")

    written: list[str] = []
    ask = ServerPartner.ask

    def interrupt(self: ServerPartner, question: str, write: Callable[[str], None]) -> Any:
        def write_twice(text: str) -> None:
            write(text)
            written.append(text)
            if len(written) == 2:
                raise KeyboardInterrupt

        return ask(self, question, write_twice)

    monkeypatch.setattr(ServerPartner, "ask", interrupt)
    with Service(endless).run() as service:
        shown = hold(service, monkeypatch, "1?", "2?")
        assert service.left.wait(30)
    assert shown == "word word \n(stopped)\n4 €\n\n"
    assert service.asked[1]["messages"][-2]["content"] == "word "


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([delta("1"), {"error": {"message": "The engine died.", "code": 500}}], "did not answer: The engine died."),
        ([delta("1")], "ended too early"),
        ([{"object": "list"}], "not a chat chunk"),
        (["{"], "not JSON"),
    ],
)
def test_a_broken_answer_is_one_sentence_and_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, events: list[Any], words: str
) -> None:
    def answer(body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        yield from events if len(service.asked) == 1 else count_up(body)

    with Service(answer).run() as service:
        shown = hold(service, monkeypatch, "1?", "2?").splitlines()
    assert any(words in line for line in shown)
    assert shown[-2:] == ["2 €", ""]
    assert len(service.asked[1]["messages"]) == 2


def test_a_pipe_gets_the_answers_alone_and_torch_is_not_imported() -> None:
    code = (
        "import sys\nfrom qed.cli.main import main\n"
        "try: main()\nfinally: sys.stderr.write(f'torch {\"torch\" in sys.modules}')"
    )
    with Service(count_up, key="secret").run() as service:
        command = [sys.executable, "-P", "-c", code, "chat", "--url", f"{service.url}/v1/", "--max-tokens", "2"]

        def ask(*more: str, **variables: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*command, *more], input="1?\n2?\n", capture_output=True, text=True, timeout=120, env=variables
            )

        done = ask("--key-variable", "KEY", KEY="secret")
        assert (done.returncode, done.stdout) == (0, "1 €\n3 €\n"), done.stderr
        assert "torch False" in done.stderr
        assert "cut off" in done.stderr
        refused = ask()
        assert refused.returncode == 2
        assert "a key is missing. Put its key into the environment variable OPENAI_API_KEY" in refused.stderr


def test_a_pipe_ends_at_the_first_question_without_an_answer(
    qed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Service(lambda body: iter([{"error": {"message": "full"}}])).run() as service:
        monkeypatch.setattr("sys.stdin", io.StringIO("1?\n2?\n"))
        done = qed("chat", "--url", service.url)
    assert done.code == 1
    assert "The server did not answer: full." in done.err
    assert len(service.asked) == 1


def test_the_model_is_found_or_named() -> None:
    with Service(count_up, ("a", "b")).run() as service:
        with pytest.raises(UsageError, match=r"has a, b: name one, qed chat NAME --url"):
            connect(service.url, "", "KEY", {}, "", 0)
        with pytest.raises(UsageError, match=r"has no model c\. It has a, b\."):
            connect(service.url, "c", "KEY", {}, "", 0)
        assert connect(service.url + "/v1/chat/completions", "b", "KEY", {}, "", 0).model == "b"
        url = service.url
    with Service(count_up, ("run", "run:alias")).run() as service:
        assert connect(service.url, "", "KEY", {}, "", 0).model == "run"
        assert connect(service.url, "run:alias", "KEY", {}, "", 0).model == "run:alias"
    with pytest.raises(UsageError, match=r"No model can be asked at http://127\.0\.0\.1:\d+/v1: .*refused"):
        connect(url, "", "KEY", {}, "", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a model or a run, or a server by --url"),
        (["--url", "localhost"], "is not an address"),
        (["--url", "http://127.0.0.1:1", "--device", "cpu"], "--device is for a model that is loaded here"),
        (["m", "--url", "http://127.0.0.1:1", "--checkpoint", "3"], "--checkpoint is for a model"),
        (["--url", "http://127.0.0.1:1", "--seed", "x"], "--seed takes a number"),
    ],
)
def test_mistakes_with_servers_are_said(qed: Callable[..., Any], arguments: list[str], words: str) -> None:
    done = qed("chat", *arguments)
    assert done.code == 2
    assert words in done.err


def test_nothing_but_a_stream_is_left_open() -> None:
    """A partner that is forgotten in the middle of an answer lets the server go."""
    with Service(lambda body: (delta("w") for _ in range(10**9))).run() as service:
        partner = connect(service.url, "", "KEY", {}, "", 0)

        def fail(text: str) -> None:
            raise RuntimeError(text)

        with suppress(RuntimeError):
            partner.ask("1?", fail)
        assert service.left.wait(30)
