"""Who may ask the viewer, what its replies carry, and what it says of requests that it does not answer."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from serving_views import ask_view, fetch, make_run, serve_runs

from qed.errors import UsageError
from qed.viewer import app
from qed.viewer.guard import list_hosts
from qed.viewer.library import Library
from qed.viewer.params import Params, Refused
from qed.viewer.server import ViewerOptions

TOKEN = "a-token-of-the-test"
LINK = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one").parent


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    with serve_runs([place], place / "cache") as running:
        yield running


@pytest.fixture(scope="module")
def closed(place: Path) -> Iterator[str]:
    """A viewer that wants a token, and is opened by a name of its own too."""
    with serve_runs([place], place / "cache", TOKEN, ["gpu.example:9000", "tunnel.example"]) as running:
        yield running


def assert_guarded(headers: dict[str, str], api: bool = False) -> None:
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert not any(name.startswith("access-control") for name in headers)
    assert headers["cache-control"] == ("no-store" if api else "no-cache")


def test_the_page_and_its_files(url: str) -> None:
    page = fetch(url, "/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert_guarded(page.headers)
    style = fetch(url, "/style.css")
    assert style.status == 200
    assert b"--paper" in style.content
    assert fetch(url, "/static/app.js").headers["content-type"] == "text/javascript; charset=utf-8"


def test_every_reply_is_guarded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.ENDPOINTS, "about", lambda library, params: 1 / 0)
    for path, status in {"/api/runs": 200, "/api/nothing": 404, "/api/about": 500, "/api/run": 400}.items():
        reply = fetch(url, path)
        assert reply.status == status, reply
        assert_guarded(reply.headers, api=True)
    for path, status, headers in (("/x", 404, {}), ("/", 403, {"host": "evil.example"}), ("/?" + "x" * 9_000, 414, {})):
        reply = fetch(url, path, **headers)
        assert reply.status == status
        assert_guarded(reply.headers)


def test_foreign_hosts(url: str) -> None:
    port = urlsplit(url).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert fetch(url, "/api/about", host=host).status == 200, host
    for host in (
        *("evil.example", f"evil.example:{port}", f"localhost.evil.example:{port}", f"127.0.0.1.evil.example:{port}"),
        *("localhost", "127.0.0.1", f"localhost:{(port or 0) + 1}", f"127.0.0.2:{port}", f"0.0.0.0:{port}", "", ":"),
        *(f"localhost:{port}@evil.example", f"evil.example/localhost:{port}", f"localhost.:{port}", f":{port}", "[::1"),
    ):
        for path in ("/", "/api/about", "/style.css", "/static/app.js", "/api/live?run=one"):
            assert fetch(url, path, host=host).status == 403, host


def test_two_hosts(url: str) -> None:
    place = urlsplit(url)
    with closing(http.client.HTTPConnection(place.hostname or "", place.port)) as connection:
        connection.putrequest("GET", "/api/about")
        connection.putheader("Host", "evil.example")
        connection.endheaders()
        assert connection.getresponse().status in (400, 403)


def test_pages_of_other_sites(url: str) -> None:
    own = url.removesuffix("/")
    for origin, status in {
        own: 200,
        "http://evil.example": 403,
        "null": 403,
        "": 403,
        own + "0": 403,
        "http://[": 403,
    }.items():
        assert fetch(url, "/api/about", origin=origin).status == status, origin
    for site, status in {"same-origin": 200, "none": 200, "same-site": 403, "cross-site": 403, "x": 403}.items():
        for mode in ("cors", "no-cors", "navigate"):
            assert fetch(url, "/api/runs", sec_fetch_site=site, sec_fetch_mode=mode).status == status, (site, mode)


def test_a_clicked_link_opens_the_page_alone(url: str) -> None:
    """The page is the same for everybody; what it shows is asked for by the page itself."""
    assert fetch(url, "/", **LINK, sec_fetch_user="?1").status == 200
    assert fetch(url, "/", **LINK).status == 403  # a script has opened it
    assert fetch(url, "/?token=x", **LINK, sec_fetch_user="?1").status == 403
    assert fetch(url, "/api/runs", **LINK, sec_fetch_user="?1").status == 403
    framed = {**LINK, "sec_fetch_dest": "iframe", "sec_fetch_user": "?1"}
    assert fetch(url, "/", **framed).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY"])
def test_it_reads_only(url: str, method: str) -> None:
    for path in ("/", "/api/runs", "/static/app.js", "/x"):
        reply = fetch(url, path if method != "CONNECT" else "a:1", method)
        assert reply.status == 405
        assert reply.headers["allow"] == "GET, HEAD"


def test_head(url: str) -> None:
    for path in ("/", "/api/about", "/style.css"):
        reply = fetch(url, path, "HEAD")
        assert reply.status == 200
        assert not reply.content
        assert int(reply.headers["content-length"]) > 0


def test_a_token(closed: str) -> None:
    for path in ("/", "/style.css", "/static/app.js", "/api/runs", "/api/live?run=one", "/x"):
        reply = fetch(closed, path)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), path
    for given in (TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", "\xe9"):
        assert fetch(closed, "/api/runs", authorization=f"Bearer {given}").status == 401
    assert fetch(closed, "/api/runs", authorization=f"Basic {TOKEN}").status == 401
    assert fetch(closed, "/api/runs", authorization=f"Bearer {TOKEN}").status == 200
    # A token in the address counts for the first visit alone, so that it does not get into logs and histories.
    assert fetch(closed, f"/api/runs?token={TOKEN}").status == 401


def test_a_first_visit_gets_a_cookie(closed: str) -> None:
    assert fetch(closed, "/?token=wrong").status == fetch(closed, "/?token=").status == 401
    visit = fetch(closed, f"/?token={TOKEN}")
    assert visit.status == 303
    assert visit.headers["location"] == "/"
    assert not visit.content
    cookie, _, options = visit.headers["set-cookie"].partition(";")
    assert {"httponly", "samesite=strict", "path=/"} <= {each.strip().lower() for each in options.split(";")}
    assert TOKEN not in cookie
    for other in ("other=1", 'prefs={"a": 1}'):
        assert fetch(closed, "/api/runs", cookie=f"{other}; {cookie}").status == 200
    assert fetch(closed, f"/?token={TOKEN}", cookie=cookie).status == 303
    name, _, value = cookie.partition("=")
    for wrong in (f"{name}={value[:-1]}", f"{name}={TOKEN}", f"x{name}={value}", f"{name}=\xe9", "\x01", "=;=;"):
        assert fetch(closed, "/api/runs", cookie=wrong).status == 401, wrong


def test_a_token_does_not_open_other_doors(closed: str) -> None:
    pass_on = {"authorization": f"Bearer {TOKEN}"}
    assert fetch(closed, "/api/runs", host="evil.example", **pass_on).status == 403
    assert fetch(closed, "/api/runs", origin="http://evil.example", **pass_on).status == 403
    assert fetch(closed, "/api/runs", sec_fetch_site="cross-site", **pass_on).status == 403


def test_further_names(closed: str) -> None:
    pass_on = {"authorization": f"Bearer {TOKEN}"}
    for host, status in {
        **{"gpu.example:9000": 200, "GPU.example:9000": 200, "gpu.example": 403, "gpu.example:9001": 403},
        **{"tunnel.example": 200, "tunnel.example:1234": 200, "tunnel.example:": 403, "x.tunnel.example": 403},
    }.items():
        assert fetch(closed, "/api/about", host=host, **pass_on).status == status, host


def test_hosts_of_addresses() -> None:
    assert list_hosts("127.0.0.1", 80) >= {"127.0.0.1", "localhost", "localhost:80", "[::1]:80"}
    assert list_hosts("10.1.2.3", 7860) == {"10.1.2.3:7860"}
    assert list_hosts("fd00::1", 7860) == {"[fd00::1]:7860"}
    assert list_hosts("0.0.0.0", 7860) >= {"localhost:7860", f"{socket.gethostname().lower()}:7860"}


def test_all_addresses(place: Path) -> None:
    """Who listens everywhere is asked by the address that a client has reached, and by no name of another's."""
    with serve_runs([place], place / "cache", TOKEN, host="0.0.0.0") as url:
        port = urlsplit(url).port
        pass_on = {"authorization": f"Bearer {TOKEN}"}
        away = f"http://127.0.0.2:{port}"
        assert fetch(away, "/api/about", **pass_on).status == 200
        assert fetch(away, "/api/about").status == 401
        assert fetch(away, "/api/about", host=f"127.0.0.3:{port}", **pass_on).status == 403
        assert fetch(away, "/api/about", host=f"evil.example:{port}", **pass_on).status == 403


def test_other_addresses_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "gpu.example"):
        with pytest.raises(UsageError, match="QED_VIEW_TOKEN"):
            ViewerOptions(host=host)
        ViewerOptions(host=host, token=TOKEN)
    with pytest.raises(UsageError, match="ASCII"):
        ViewerOptions(token="with space")


def test_an_unexpected_error_is_a_line(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(library: Library, params: Params) -> dict[str, Any]:
        raise KeyError("\x1b[31mred\nline")

    monkeypatch.setitem(app.ENDPOINTS, "about", fail)
    reply = ask_view(url, "about")
    assert reply.status == 500
    assert set(reply.json) == {"error"}
    assert "Traceback" not in reply.error
    assert ".py" not in reply.error
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "/api/about: KeyError" in said
    assert "\x1b" not in said
    assert fetch(url, "/api/runs").status == 200


def test_replies_are_json_for_every_reader(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"a": float("nan"), "b": [float("inf"), 1.5], "c": "\ud800", "d": {"e": (float("-inf"),)}}
    monkeypatch.setitem(app.ENDPOINTS, "about", lambda library, params: odd)
    content = ask_view(url, "about").content
    assert json.loads(content, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": "\ud800",
        "d": {"e": [None]},
    }


def test_parameters() -> None:
    params = Params({"run": "a", "step": 3, "many": ["x", "y"], "bad": "1e5", "long": "x" * 2_001, "nul": "\0"})
    assert params.text("run") == "a"
    assert params.number("step") == 3
    assert params.many("many") == ["x", "y"]
    assert params.text("none", "") == ""
    assert params.number("none", 5) == 5
    assert not params.flag("none")
    assert "step" in params
    assert "none" not in params
    refused = (
        *(lambda: params.text("none"), lambda: params.text("many"), lambda: params.number("bad")),
        *(lambda: params.text("long"), lambda: params.text("nul"), lambda: params.number("step", high=2)),
        *(lambda: Params({"n": "٣"}).number("n"), lambda: Params({"n": "9" * 40}).number("n")),
        *(lambda: Params({"n": "-1"}).number("n"), lambda: Params({"n": "--1"}).number("n")),
    )
    for read in refused:
        with pytest.raises(Refused) as caught:
            read()
        assert caught.value.status == 400


def test_half_a_request_does_not_keep_others(url: str) -> None:
    place = urlsplit(url)
    address = (place.hostname or "", place.port or 0)
    with socket.create_connection(address) as half, socket.create_connection(address) as silent:
        half.sendall(b"GET /api/about HTTP/1.1\r\nHost: ")
        assert ask_view(url, "about").status == 200
        assert silent.fileno() > 0
