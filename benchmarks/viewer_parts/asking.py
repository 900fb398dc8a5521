"""A viewer in a separate process: how fast it answers, and how much memory it takes."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

PATIENCE = 900  # timeout of a request in seconds


@dataclass
class Server:
    """A running `qed view`, and the seconds until it answered for the first time."""

    url: str
    process: int
    started: float

    def ask(self, name: str, **params: object) -> tuple[float, int, Any]:
        """Request an endpoint; return the seconds, the bytes and the answer."""
        address = urlsplit(self.url)
        began = time.perf_counter()
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        try:
            query = urlencode({key: value for key, value in params.items() if value is not None})
            connection.request("GET", f"/api/{name}?{query}" if name else "/")
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        seconds = time.perf_counter() - began
        if response.status != 200:
            raise SystemExit(f"/api/{name} answered {response.status}: {content[:300]!r}")
        return seconds, len(content), json.loads(content) if name else None

    def memory(self) -> dict[str, float]:
        """Return the current and the peak memory of the server in MiB."""
        lines = Path(f"/proc/{self.process}/status").read_text(encoding="ascii").splitlines()
        found = dict(line.split(":", 1) for line in lines)
        return {"rss": int(found["VmRSS"].split()[0]) / 1024, "peak": int(found["VmHWM"].split()[0]) / 1024}


@contextmanager
def serve(places: Sequence[Path], cache: Path) -> Iterator[Server]:
    """Serve a viewer of these folders within the context."""
    command = [sys.executable, "-m", "qed", "view", *map(str, places)]
    home = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": home, "XDG_CACHE_HOME": str(cache)}
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line:
                raise SystemExit(f"qed view ended with exit code {process.wait()}.")
            told = json.loads(line)
            server = Server(told["url"].rstrip("/"), told["pid"], 0.0)
            server.ask("")
            server.started = time.perf_counter() - began
            yield server
        finally:
            process.terminate()
            process.wait(timeout=60)


@contextmanager
def open_browser(executable: str) -> Iterator[Callable[[str, str], dict[str, float]]]:
    """Yield a function that measures a page: milliseconds until its first paint, and until a part of it is visible."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 -- only if a browser is requested

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])

        def measure(url: str, wanted: str) -> dict[str, float]:
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.set_default_timeout(PATIENCE * 1000)
            page.goto(url, wait_until="commit")
            page.wait_for_selector(wanted)
            complete = page.evaluate("performance.now()")
            paints = page.evaluate("performance.getEntriesByType('paint').map(one => [one.name, one.startTime])")
            context.close()
            first = dict(paints).get("first-contentful-paint", min((time for _, time in paints), default=0.0))
            return {"first_paint": first, "complete": complete}

        yield measure
        browser.close()
