"""A small server that speaks the dialect of SGLang or of vLLM over a model of this process, and fails when told to.

It answers as the real ones were seen to: what a pause does to running answers, what a failed load returns, which ids
and log-probs are in a reply. It samples one answer at a time.
"""

from __future__ import annotations

import copy
import json
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import peft
import torch
from engine_models import Models
from families import forward_logps
from safetensors.torch import load_file

from qed.sampling.base import Sampling
from qed.sampling.native.sampler import NativeSampler

WINDOW = 512


class GoneError(Exception):
    """The answer that is sampled is not wanted any more: its client has gone, or a pause aborts it."""


class StandIn:
    """The server; tests set `on_token`, `stale` and `broken`, and read `asked`, `aborted` and `running`.

    Args:
        dialect: vllm or sglang.
        models: whose first model is served.
    """

    def __init__(self, dialect: str, models: Models) -> None:
        self.dialect, self.models = dialect, models
        self.network = copy.deepcopy(models.network)
        self.adapted: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.version = "default"
        self.stale = self.broken = self.frozen = False
        self.on_token: Callable[[], None] = lambda: None
        self.aborted = self.running = 0
        self._resumed, self._idle = threading.Event(), threading.Condition()
        self._resumed.set()
        self._aborting = False
        self._sampling = threading.Lock()
        self.url = ""

    @contextmanager
    def run(self) -> Iterator[StandIn]:
        """Serve in a thread while the block runs."""
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"stand_in": self}))
        self._server = server
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield self
        finally:
            self.die()

    def die(self) -> None:
        """End like a killed process: the port is closed, and so are all connections."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._server.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._resumed.set()

    def sample(self, body: dict[str, Any], parameters: dict[str, Any], is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """Sample an answer; the reason is `abort` if a pause has ended it."""
        self._resumed.wait()
        tokens: list[int] = []

        def watch(so_far: list[int]) -> None:
            tokens[:] = so_far
            self.on_token()
            if self._aborting or not is_wanted():
                raise GoneError

        with self._counted(), self._sampling:
            network = self.adapted.get(body["model"], self.network)
            ends = parameters["stop_token_ids"]
            sampling = Sampling(
                parameters["temperature"],
                min(parameters["max_tokens"], WINDOW - len(body["prompt"])),
                tuple(parameters["stop"]),
                parameters["top_p"],
                max(0, parameters["top_k"]),
                parameters["min_p"],
                parameters["min_tokens"],
            )
            sampler = NativeSampler(network, self.models.tokenizer, ends)
            try:
                done = sampler.stream(body["prompt"], parameters["seed"], sampling, watch)
            except GoneError:
                self.aborted += 1
                return {"tokens": tokens, "logps": [-1.0] * len(tokens), "reason": "abort"}
        return {"tokens": list(done.tokens), "logps": list(done.logps), "reason": done.stop_reason}

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            self.running += 1
        try:
            yield
        finally:
            with self._idle:
                self.running -= 1
                self._idle.notify_all()

    def pause(self, mode: str) -> None:
        """Start no more answers; end the running ones, or wait for them."""
        self._resumed.clear()
        self._aborting = mode == "abort"
        with self._idle:
            self._idle.wait_for(lambda: self.running == 0)
        self._aborting = False

    def resume(self) -> None:
        """Start answers again."""
        self._resumed.set()

    def load(self, folder: str, version: str | None = None) -> str | None:
        """Load weights; return why that fails, or None. A stale server says that it has, and has not."""
        try:
            state = load_file(Path(folder) / "model.safetensors")
        except OSError as error:
            return str(error)
        if not self.stale:
            self.network.load_state_dict(state, strict=False)
        self.version = version or self.version
        return None

    def load_adapter(self, name: str, folder: str) -> None:
        """Serve an adapter under its name."""
        base = copy.deepcopy(self.models.network)
        self.adapted[name] = peft.PeftModel.from_pretrained(base, folder).merge_and_unload().eval()

    def score(self, body: dict[str, Any]) -> list[float]:
        """The log-probs of a prompt's tokens but the first."""
        ids = body["prompt"]
        with self._sampling, torch.no_grad():
            network = self.adapted.get(body["model"], self.network)
            logps: list[float] = forward_logps(network, ids[:1], ids[1:]).tolist()
            return logps


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing where clients leave and the server dies."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self._answer(json.loads(text) if text else {})

    def _answer(self, body: Any) -> None:
        stand_in, parts = self.stand_in, urlsplit(self.path)
        stand_in.asked.append((parts.path, body))
        if stand_in.frozen:
            threading.Event().wait(60)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        answer = answer_as_vllm if stand_in.dialect == "vllm" else answer_as_sglang
        status, content = answer(stand_in, parts.path, {**(body or {}), **query}, self._is_wanted)
        if status == 200 and body and body.get("stream"):
            return self._stream(content)
        data = (
            content.encode() if isinstance(content, str) else b"" if content is None else json.dumps(content).encode()
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, content: Any) -> None:
        """Send a whole answer as events of one token each."""
        (choice,) = content["choices"]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, token in enumerate(choice["token_ids"]):
            last = number == len(choice["token_ids"]) - 1
            logps = {"token_logprobs": [choice["logprobs"]["token_logprobs"][number]]}
            reason = choice["finish_reason"] if last else None
            self._send_event(
                json.dumps({"choices": [{"token_ids": [token], "logprobs": logps, "finish_reason": reason}]})
            )
        self._send_event(json.dumps({"choices": [], "usage": {"completion_tokens": len(choice["token_ids"])}}))
        self._send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _is_wanted(self) -> bool:
        readable = select.select([self.connection], [], [], 0)[0]
        return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


Reply = tuple[int, Any]


def answer_as_vllm(server: StandIn, path: str, body: dict[str, Any], is_wanted: Callable[[], bool]) -> Reply:
    """Answer a request as vLLM 0.32 does."""
    card = {"id": "tiny", "owned_by": "vllm", "root": str(server.models.folder), "max_model_len": WINDOW}
    adapters = [{"id": name, "owned_by": "vllm", "parent": "tiny"} for name in server.adapted]
    config = {"model_config": {"logprobs_mode": "processed_logprobs"}, "parallel_config": {}}
    fixed = {
        "/v1/models": {"data": [*adapters, card]},
        "/version": {"version": "0.32.0"},
        "/server_info": {"vllm_config": config},
        "/weight_info": {"weight_version": server.version},
        "/reset_prefix_cache": {"success": not server.running},
        "/sleep": {"status": "sleeping"},
        "/wake_up": {"status": "awake"},
        "/health": None,
    }
    if path in fixed:
        return 200, fixed[path]
    if path == "/v1/completions":
        return 200, _complete(server, body, is_wanted)
    return _control_vllm(server, path, body)


def _complete(server: StandIn, body: dict[str, Any], is_wanted: Callable[[], bool]) -> Any:
    scored = None
    if "prompt_logprobs" in body:
        ids = body["prompt"]
        logps = server.score(body)
        scored = [None, *({str(token): {"logprob": logp}} for token, logp in zip(ids[1:], logps, strict=True))]
    defaults = {"seed": 0, "stop": [], "top_p": 1.0, "top_k": 0, "min_p": 0.0, "min_tokens": 0, "stop_token_ids": []}
    parameters = {"temperature": 1.0, **defaults, **body}
    done = server.sample(body, parameters, is_wanted)
    choice = {
        "token_ids": done["tokens"],
        "prompt_token_ids": body["prompt"],
        "logprobs": {"token_logprobs": done["logps"]},
        "finish_reason": done["reason"],
        "prompt_logprobs": scored,
    }
    return {"choices": [choice]}


def _control_vllm(server: StandIn, path: str, body: dict[str, Any]) -> Reply:
    done = 200, {"status": "done"}
    if path == "/pause":
        server.pause(body["mode"])
    elif path == "/resume":
        server.resume()
    elif path == "/collective_rpc":
        failed = server.load(body["kwargs"]["weights_path"])
        return (500, {"error": {"message": f"Call to collective_rpc method failed: {failed}"}}) if failed else done
    elif path == "/update_weight_version":
        server.version = body["new_version"]
    elif "lora" in path:
        return _control_adapters(server, path, body)
    else:
        return 404, {"detail": "Not Found"}
    return done


def _control_adapters(server: StandIn, path: str, body: dict[str, Any]) -> Reply:
    name = body["lora_name"]
    if "unload" in path:
        del server.adapted[name]
    elif name in server.adapted:
        return 400, {"error": {"message": "it has already been loaded"}}
    elif not Path(body["lora_path"]).exists():
        return (404 if server.dialect == "vllm" else 400), {"error": {"message": "No adapter found"}}
    else:
        server.load_adapter(name, body["lora_path"])
    # vLLM's reply is a sentence, and not JSON.
    return 200, f"Success: LoRA adapter '{name}'." if server.dialect == "vllm" else {"success": True}


def answer_as_sglang(server: StandIn, path: str, body: dict[str, Any], is_wanted: Callable[[], bool]) -> Reply:
    """Answer a request as SGLang 0.5 does."""
    card = {"id": "tiny", "owned_by": "sglang", "root": str(server.models.folder), "max_model_len": WINDOW}
    fixed = {
        "/v1/models": {"data": [card]},
        "/get_server_info": {"version": "0.5.2", "context_length": WINDOW},
        "/get_model_info": {"model_path": card["root"], "weight_version": server.version},
        "/flush_cache": None,
        "/health": None,
        "/health_generate": None,
        "/release_memory_occupation": None,
        "/resume_memory_occupation": None,
    }
    if path in fixed:
        return 200, fixed[path]
    if path == "/generate":
        return 200, _generate(server, body, is_wanted)
    if path == "/pause_generation":
        server.pause(body["mode"])
    elif path == "/continue_generation":
        server.resume()
    elif path == "/update_weights_from_disk":
        failed = server.load(body["model_path"], body["weight_version"])
        return (400, {"success": False, "message": failed}) if failed else (200, {"success": True})
    elif "lora" in path:
        return _control_adapters(server, path, body)
    else:
        return 404, {"detail": "Not Found"}
    return 200, {"success": True}


def _generate(server: StandIn, body: dict[str, Any], is_wanted: Callable[[], bool]) -> Any:
    parameters, ids = body["sampling_params"], body["input_ids"]
    asked = {"prompt": ids, "model": body.get("lora_path", "")}
    if parameters["max_new_tokens"] == 0:
        rows = [[None, ids[0], None]]
        rows += [[logp, token, None] for token, logp in zip(ids[1:], server.score(asked), strict=True)]
        return {"meta_info": {"input_token_logprobs": rows, "finish_reason": {"type": "length"}}}
    renamed = {"max_tokens": parameters["max_new_tokens"], "min_tokens": parameters["min_new_tokens"]}
    done = server.sample(asked, {**parameters, **renamed, "seed": parameters["sampling_seed"]}, is_wanted)
    # The length is checked first there.
    full = done["reason"] == "stop" and len(done["tokens"]) == parameters["max_new_tokens"]
    meta = {
        "finish_reason": {"type": "length" if full else done["reason"]},
        "output_token_logprobs": [[a, b, None] for a, b in zip(done["logps"], done["tokens"], strict=True)],
        "prompt_tokens": len(ids),
        "weight_version": server.version,
    }
    return {"meta_info": meta, "output_ids": done["tokens"]}
