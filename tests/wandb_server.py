"""A small W&B server on this machine: as much of its GraphQL and file-stream interfaces as `wandb` needs to be content.

It holds what it was sent, and overwrites the lines of a history from the offset that a client names, as W&B does.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class WandbServer(ThreadingHTTPServer):
    """Listens on the loopback interface only, on a free port."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.history: dict[str, list[Json]] = {}  # by run id, one line for each step
        self.runs: dict[str, Json] = {}  # what each run was created with
        self.files: dict[str, bytes] = {}
        self.artifacts: list[str] = []
        self.exits: dict[str, int] = {}
        self.keys: set[str] = set()  # that clients have authorised themselves with
        self.unknown: list[str] = []

    @property
    def address(self) -> str:
        """The base URL for WANDB_BASE_URL."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: wandb resets its connections when it ends."""

    def take_stream(self, run: str, body: Json) -> None:
        """Take lines of a run's files."""
        for name, part in body.get("files", {}).items():
            if name == "wandb-history.jsonl":
                lines = self.history.setdefault(run, [])
                rows = [json.loads(line) for line in part["content"]]
                lines[part["offset"] : part["offset"] + len(rows)] = rows
        if body.get("complete"):
            self.exits[run] = body.get("exitcode", 0)

    def answer(self, name: str, given: Json) -> Json:
        """Answer a GraphQL request."""
        about = given.get("input", given)
        answers: dict[str, Any] = {
            "Viewer": lambda: {"viewer": {"id": "V", "entity": "me", "username": "me", "flags": "{}"}},
            "ServerFeaturesQuery": lambda: {"serverInfo": {"features": []}},
            "UpsertBucket": lambda: {"upsertBucket": self._create_run(given)},
            "CreateRunFiles": lambda: {"createRunFiles": self._list_uploads(given["files"])},
            "CreateArtifact": lambda: {"createArtifact": {"artifact": self._create_artifact(about)}},
            "CreateArtifactManifest": lambda: {"createArtifactManifest": {"artifactManifest": self._manifest()}},
            "CreateArtifactFiles": lambda: {"createArtifactFiles": self._artifact_files(about["artifactFiles"])},
            "ArtifactType": lambda: {"project": {"artifact": None}},
            "CommitArtifact": lambda: {"commitArtifact": {"artifact": {"id": "A", "digest": "d"}}},
            "NotifyScriptableRunAlert": lambda: {"notifyScriptableRunAlert": {"success": True}},
        }
        if name not in answers:
            self.unknown.append(name)
            return {}
        found: Json = answers[name]()
        return found

    def _create_run(self, given: Json) -> Json:
        known = self.runs.setdefault(given["name"], {})
        known |= {key: value for key, value in given.items() if value is not None}
        project = {"id": "P", "name": given["project"], "entity": {"id": "E", "name": "me"}}
        names = {"id": "B", "name": given["name"], "displayName": known.get("displayName", ""), "project": project}
        more = {"description": "", "config": "{}", "sweepName": None, "historyLineCount": 0}
        return {"bucket": {**names, **more}, "inserted": True}

    def _create_artifact(self, given: Json) -> Json:
        self.artifacts.append(given["artifactCollectionName"])
        return {"id": "A", "state": "PENDING", "artifactSequence": {"latestArtifact": None}}

    def _upload(self, name: str) -> Json:
        return {"name": name, "displayName": name, "uploadUrl": f"{self.address}/upload/{name}", "uploadHeaders": []}

    def _manifest(self) -> Json:
        return {"id": "M", "file": {"id": "F", **self._upload("manifest")}}

    def _artifact_files(self, files: list[Json]) -> Json:
        more = {"storagePath": "x", "uploadMultipartUrls": None, "artifact": {"id": "A"}}
        return {"files": {"edges": [{"node": {"id": "F", **self._upload(f["name"]), **more}} for f in files]}}

    def _list_uploads(self, names: list[str]) -> Json:
        return {"runID": "B", "uploadHeaders": [], "files": [self._upload(name) for name in names]}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: WandbServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        self.server.files[self.path.removeprefix("/upload/")] = self._read()
        self._reply({})

    def do_GET(self) -> None:
        self._reply({})

    def do_POST(self) -> None:
        content = self._read()
        self.server.keys.add(self.headers.get("Authorization", ""))
        if self.path.endswith("/file_stream"):
            self.server.take_stream(self.path.split("/")[-2], json.loads(content))
            return self._reply({})
        asked = json.loads(content)
        name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
        return self._reply({"data": self.server.answer(name[1] if name else "", asked.get("variables") or {})})

    def _read(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

    def _reply(self, content: Json) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serve() -> Iterator[WandbServer]:
    """Serve while the block runs."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
