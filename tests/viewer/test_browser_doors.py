"""What pages of other sites can do to the viewer in a real browser: rebind a name to it, ask, embed, open it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browsing import CHROMIUM, FLAGS
from serving_views import make_run, serve_runs

pytestmark = pytest.mark.browser
TOKEN = "a-token-of-the-test"
ASK = """async (url) => {
  const ask = async (options) => { try { return (await fetch(url + "/api/runs", options)).status } catch { return 0 } };
  const load = (tag, name, source) => new Promise((done) => {
    const node = document.createElement(tag);
    node.onload = () => done("loaded"); node.onerror = () => done("refused");
    node[name] = source; document.body.append(node);
  });
  return {
    cors: await ask({}), post: await ask({method: "POST"}),
    simple: await ask({mode: "no-cors", credentials: "include"}),
    script: await load("script", "src", url + "/static/main.js"), image: await load("img", "src", url + "/api/runs"),
  };
}"""


class Silent(SimpleHTTPRequestHandler):
    """Serves a folder, and writes no log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextmanager
def serve_site(folder: Path) -> Iterator[str]:
    """Another site, by a name that is no loopback name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://evil.example:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page of a browser that resolves every name to this machine, as after a rebinding."""
    rules = "--host-resolver-rules=MAP *.example 127.0.0.1"
    browser = chromium.browser_type.launch(executable_path=CHROMIUM, args=[*FLAGS, rules])
    yield browser.new_page()
    browser.close()


def test_another_site_gets_nothing(page: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url, serve_site(tmp_path) as site:
        (tmp_path / "index.html").write_text(
            f"<body><a href='{url}/#/run/one'>a link</a><iframe src='{url}/'></iframe>"
        )
        page.goto(site + "/index.html")
        # A request without CORS has the status 0 for the page, whatever was replied.
        found = page.evaluate(ASK, url)
        assert found == {"cors": 0, "simple": 0, "post": 0, "script": "refused", "image": "refused"}
        assert "qed" not in page.frames[1].content()
        page.click("a")
        page.wait_for_url(f"{url}/#/run/one")
        page.get_by_role("heading", name="one").first.wait_for()


def test_a_rebound_name_gets_nothing(page: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        reply = page.goto(f"http://rebound.example:{urlsplit(url).port}/api/runs")
        assert reply.status == 403
        assert "reward" not in reply.text()


def test_a_token_opens_the_viewer_once(page: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    with serve_runs([tmp_path / "runs"], tmp_path / "cache", TOKEN) as url:
        assert page.goto(url).status == 401
        page.goto(f"{url}/?token={TOKEN}#/run/one")
        page.get_by_role("heading", name="one").first.wait_for()
        assert page.url == f"{url}/#/run/one"
        assert TOKEN not in page.evaluate("document.cookie + document.referrer + location.href")
        assert page.evaluate("async () => (await fetch('/api/runs')).status") == 200
