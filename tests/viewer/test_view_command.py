"""`qed view` from a shell: what it shows, where it listens, how it ends, and the list of runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browsing import build_command, build_environment
from serving_views import ask_view, fetch, make_run

from qed.cli.commands import view
from qed.cli.main import main
from qed.errors import UsageError
from qed.viewer.library import Library
from qed.viewer.server import PORT, ViewerOptions, open_viewer_socket

READY = 20.0  # seconds


@contextmanager
def run_view(folder: Path, *words: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A viewer in a process of its own, and the first line that it prints."""
    with subprocess.Popen(
        build_command("view", *words),
        cwd=folder,
        env={**build_environment(folder / "cache"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def refuse(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command line that is refused says."""
    with pytest.raises(SystemExit) as caught:
        main(["view", *map(str, words)])
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert not out
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Also while a browser follows a live run, and with half a request on the line."""
    make_run(tmp_path / "runs" / "live", **{"events.jsonl": ""})
    began = time.monotonic()
    with run_view(tmp_path, "--port", 0, "--json") as (process, line):
        assert time.monotonic() - began < READY
        told = json.loads(line)
        assert told["pid"] == process.pid
        address = ("127.0.0.1", int(told["url"].rpartition(":")[2]))
        with socket.create_connection(address) as live, socket.create_connection(address) as half:
            live.sendall(b"GET /api/live?run=live HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (b"127.0.0.1", address[1]))
            assert live.recv(100).startswith(b"HTTP/1.1 200")
            half.sendall(b"GET / HT")
            sent = time.monotonic()
            process.send_signal(number)
            assert process.wait(READY) == code
            assert time.monotonic() - sent < READY / 2  # none of its connections is waited for
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_ctrl_c_ends_an_endless_search(tmp_path: Path) -> None:
    """The signal of a terminal reaches the process that searches, too, which must not say a word."""
    row = {
        "step": 1,
        "group_id": "p",
        "sample_id": 0,
        "question": "?",
        "gold": "2",
        "prompt": "?",
        "text": "a" * 60 + "!",
    }
    make_run(tmp_path / "one", **{"rollouts/step_000001.jsonl.zst": json.dumps(row) + "\n"})
    with run_view(tmp_path, "one", "--port", 0, "--json") as (process, line):
        url = json.loads(line)["url"]
        query = urlencode({"run": "one", "step": 1, "regex": 1, "q": "(a+)+$"})
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as asking:
            asking.sendall(f"GET /api/search?{query} HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\n\r\n".encode())
            asking.settimeout(1.0)
            with pytest.raises(TimeoutError):
                asking.recv(10)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(2.0) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_made_token_is_shown_once(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    with run_view(tmp_path, "one", "--port", 0, "--token", "auto") as (_, line):
        url, _, token = line.split()[3].partition("/?token=")
        assert len(token) > 20
        assert fetch(url, "/api/about").status == 401
        assert fetch(url, "/api/about", authorization=f"Bearer {token}").status == 200


def test_a_given_token_is_not_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    with run_view(tmp_path, "one", "--port", 0, QED_VIEW_TOKEN="known-to-the-user") as (_, line):
        assert "known-to-the-user" not in line
        url = line.split()[3].partition("/?token=")[0]
        assert fetch(url, "/api/about").status == 401
        assert fetch(url, "/api/about", authorization="Bearer known-to-the-user").status == 200


def test_the_next_port_is_taken_only_for_the_default_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open_viewer_socket(ViewerOptions()) as first, open_viewer_socket(ViewerOptions()) as second:
        taken = first.getsockname()[1]
        assert PORT <= taken < second.getsockname()[1]
        make_run(tmp_path / "one")
        said = refuse(capsys, tmp_path / "one", "--port", taken)
        assert f"port {taken}" in said
        assert "in use" in said


def test_what_is_printed_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    addresses = iter(["http://127.0.0.1:7860", "http://127.0.0.1:7861", "http://127.0.0.1:7861"])

    def answer(library: Library, options: ViewerOptions, on_ready: Callable[[str], None]) -> int:
        on_ready(next(addresses))
        return 130

    monkeypatch.setattr("qed.viewer.server.run_viewer", answer)
    monkeypatch.setattr("webbrowser.open", opened.append)
    place = str(make_run(tmp_path / "one"))
    assert view.run([place]) == 130
    assert capsys.readouterr().out == f"Viewing {place} at http://127.0.0.1:7860 (Ctrl-C ends the viewer)\n"
    assert not opened
    assert view.run([place, "--open", "--token", "known"]) == 130
    out = capsys.readouterr().out
    assert "port 7860 is in use" in out
    assert "known" not in out
    assert view.run([place, "--port", "7861"]) == 130
    assert "in use" not in capsys.readouterr().out
    deadline = time.monotonic() + READY
    while not opened:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert opened == ["http://127.0.0.1:7861/?token=known"]


def test_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def export(library: Library, out: Path, steps: Any, say: Callable[[str], None]) -> None:
        asked.append(([run.key for run in library.runs()], out, steps))

    monkeypatch.setattr("qed.viewer.export.export_site", export)
    place = str(make_run(tmp_path / "one"))
    assert view.run([place, "--export", "x.html"]) == 0
    assert view.run([place, "--export", "x", "--steps", "2-3"]) == 0
    assert asked == [(["one"], Path("x.html"), None), (["one"], Path("x"), [2, 3])]


def test_places_without_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "first")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert "Did you mean 'first'?" in refuse(capsys, "frist")
    assert "Did you mean 'first'?" in refuse(capsys, "first/logs")
    assert "no run in 'empty'" in refuse(capsys, "first", "empty")
    assert "not a folder" in refuse(capsys, "file")
    monkeypatch.chdir(tmp_path / "empty")
    assert "no folder runs/" in refuse(capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "QED_VIEW_TOKEN"),
        (["--token", "two words"], "ASCII"),
        (["--port", "70000"], "65535"),
        (["--port", "x"], "--port"),
        (["--steps", "1"], "--export"),
        (["--export", "x.html", "--steps", "2-1"], "backwards"),
        (["--export", "x.html", "--steps", "1,,2"], "a list such as"),
        (["--allow-host", "http://x"], "--allow-host"),
    ],
)
def test_options_that_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], said: str
) -> None:
    assert said in refuse(capsys, make_run(tmp_path / "one"), *words)


def test_lists_of_steps() -> None:
    assert view.parse_steps("3, 1,10-12") == [1, 3, 10, 11, 12]
    for text in ("", "-", "1-", "a", "1-20000", "٣", "1--2"):
        with pytest.raises(UsageError):
            view.parse_steps(text)


def test_without_places_it_shows_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    make_run(tmp_path / "elsewhere")
    with run_view(tmp_path, "--port", 0, "--json") as (_, line):
        assert [card["key"] for card in ask_view(json.loads(line)["url"], "runs").json["runs"]] == ["one"]


def test_it_starts_without_heavy_libraries() -> None:
    """The start takes a fraction of a second because of this."""
    code = "import sys, qed.viewer.app; print([n for n in ('torch', 'transformers', 'datasets') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
