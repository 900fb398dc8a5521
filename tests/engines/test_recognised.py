"""What answers at an address is recognised by what it says of itself, or refused with what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from qed.errors import UsageError
from qed.sampling.server.dialect import KEY_VARIABLE, Reader
from qed.sampling.server.recognise import recognise

READER = Reader(None, (1,))
NATIVE = {"weight_version": 7, "precision": "float32", "exact_logps": True, "qed": "0.1.0"}
CARD = {"id": "tiny", "object": "model", "root": "folder/tiny", "max_model_len": 64}


def card(owner: str, **more: Any) -> dict[str, Any]:
    return {"data": [{"id": "adapter", "parent": "tiny"}, {**CARD, "owned_by": owner, **more}]}


def info(mode: str) -> dict[str, Any]:
    return {"vllm_config": {"model_config": {"logprobs_mode": mode}, "parallel_config": {"worker_extension_cls": None}}}


@contextmanager
def serve_routes(routes: dict[str, Any], key: str = "") -> Iterator[str]:
    """A server with these routes and replies; 404 for others, 401 without the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.split("?")[0] in routes
            allowed = not key or self.headers["Authorization"] == f"Bearer {key}"
            content = routes.get(self.path.split("?")[0])
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(401 if not allowed else 200 if known else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("routes", "dialect", "engine", "exact"),
    [
        ({"/v1/models": card("qed", qed=NATIVE)}, "native", "qed 0.1.0", True),
        ({"/v1/models": card("vllm"), "/version": {"version": "0.32.0"}}, "vllm", "vLLM 0.32.0", False),
        ({"/v1/models": card("vllm"), "/server_info": info("processed_logprobs")}, "vllm", "vLLM ?", False),
        ({"/v1/models": card("vllm"), "/server_info": {"vllm_config": "a text"}}, "vllm", "vLLM ?", False),
        ({"/v1/models": card("sglang"), "/get_server_info": {"version": "0.5.2"}}, "sglang", "SGLang 0.5.2", False),
        ({"/v1/models": card("me"), "/get_model_info": {"model_path": "tiny"}}, "sglang", "SGLang ?", False),
        ({"/v1/models": card("me"), "/version": {"version": "0.31.1"}}, "vllm", "vLLM 0.31.1", False),
    ],
)
def test_an_engine_is_recognised(routes: dict[str, Any], dialect: str, engine: str, exact: bool) -> None:
    with serve_routes(routes) as url:
        for address in (url, f"{url}/", f"{url}/v1", f"{url}/v1/"):
            server = recognise(address, READER, 1.0)
            assert (server.dialect, server.url) == (dialect, url)
            found = server.capabilities
            assert f"{found.engine} {found.engine_version}" == engine
            assert (found.model, found.window, found.exact_logps) == ("tiny", 64, exact)
            assert server.version == (7 if dialect == "native" else None)
            server.close()


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ({"/v1/models": card("somebody")}, r"is of 'somebody'.*openai:NAME"),
        ({"/v1/models": {"data": []}}, "lists no model"),
        ({"/v1/models": [1]}, "lists no model"),
        ({"/v1/models": "<html>"}, "does not report what it is.*not JSON"),
        ({}, "does not report what it is.*status 404"),
        (
            {"/v1/models": card("vllm"), "/server_info": info("raw_logprobs")},
            r"raw_logprobs.*--logprobs-mode processed",
        ),
    ],
)
def test_what_cannot_be_sampled_from_is_refused(routes: dict[str, Any], message: str) -> None:
    with serve_routes(routes) as url, pytest.raises(UsageError, match=message):
        recognise(url, READER, 1.0)


def test_a_key_is_sent_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_routes({"/v1/models": card("qed", qed=NATIVE)}, key="secret") as url:
        monkeypatch.delenv(KEY_VARIABLE, raising=False)
        with pytest.raises(UsageError, match=f"refuses the key.*{KEY_VARIABLE}"):
            recognise(url, READER, 1.0)
        monkeypatch.setenv(KEY_VARIABLE, "secret")
        assert recognise(url, READER, 1.0).dialect == "native"
