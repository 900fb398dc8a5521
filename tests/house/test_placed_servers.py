"""How a rank asks for the servers that a cluster has placed, and what the cluster's worker passes on; without ray."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from serving import serve

from qed.errors import QedError
from qed.serving import placed
from qed.serving.placed import FOLDER, Order, PlacedServers, Places, find_placed_servers
from qed.serving.processes import ServerSpec, copy_environment

SPEC = ServerSpec(
    "native server",
    lambda port: [sys.executable, "-m", "qed", "serve", "model", "--port", str(port)],
    {**copy_environment(CUDA_VISIBLE_DEVICES="1"), "MORE": "1"},
    Path("logs"),
    seconds=77.0,
)


def test_an_order_says_how_a_server_starts_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("RANK", "1")
    Places(2, True).write(tmp_path)
    order = Order.make(SPEC)
    assert order.command == ("{python}", "-m", "qed", "serve", "model", "--port", "{port}")
    assert order.changes == {"MORE": "1"}
    spec = order.build_spec(1, TOKEN="key")
    assert spec.command(4711) == SPEC.command(4711)
    assert (spec.name, spec.logs, spec.seconds) == ("native server 1", Path("logs").absolute(), 77.0)
    assert spec.environment["MORE"] == "1"
    assert spec.environment["TOKEN"] == "key"
    assert not {"RANK", "CUDA_VISIBLE_DEVICES"} & set(spec.environment)


def test_a_rank_without_a_cluster_has_no_placed_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert find_placed_servers() is None
    Places(2, True).write(tmp_path)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    found = find_placed_servers()
    assert found is not None
    assert (found.count, found.shared, found.read_urls()) == (2, True, [])


def follow(folder: Path, *steps: Places) -> threading.Thread:
    """A worker that waits for an order, then reports these places one after the other."""

    def work() -> None:
        while (order := Order.read(folder)) is None:
            ended.wait(0.01)
        for step in steps:
            Places(step.count, step.shared, step.number or order.number, step.urls, step.error).write(folder)
            ended.wait(0.05)

    ended = threading.Event()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_starting_waits_for_all_servers_of_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "LOOK", 0.01)
    Places(2, False, "older", ("http://old:1", "http://old:2")).write(tmp_path)
    urls = ("http://a:1", "http://b:2")
    worker = follow(
        tmp_path,
        Places(2, False, "older", ("http://old:1", "http://old:2")),
        Places(2, False, "", ("http://a:1", "")),
        Places(2, False, "", urls),
    )
    assert PlacedServers(tmp_path, seconds=60).start(SPEC) == list(urls)
    worker.join()


def test_what_keeps_a_server_from_starting_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "LOOK", 0.01)
    Places(1, False).write(tmp_path)
    follow(tmp_path, Places(1, False, "", ("",), "on node a: out of memory"))
    with pytest.raises(QedError, match="The 1 servers on the cluster: on node a: out of memory"):
        PlacedServers(tmp_path, seconds=60).start(SPEC)
    Places(1, False).write(tmp_path)
    with pytest.raises(QedError, match=r"no answer within 0\.05 s"):
        PlacedServers(tmp_path, seconds=0.05).restart(0)


def test_a_lost_server_is_back_once_it_is_healthy_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "LOOK", 0.01)
    asked: list[str] = []

    def answer_health(url: str) -> bool:
        asked.append(url)
        if len(asked) == 2:
            Places(1, False, "n", ("http://there:2",)).write(tmp_path)
        return url == "http://there:2"

    monkeypatch.setattr(placed, "answers", answer_health)
    Places(1, False, "n", ("http://here:1",)).write(tmp_path)
    assert PlacedServers(tmp_path, seconds=60).restart(0, "http://here:1") == "http://there:2"
    assert asked == ["http://here:1", "http://here:1", "http://there:2"]


def test_a_server_answers_with_the_key() -> None:
    with serve(lambda *_: (200, {})) as url:
        assert not placed.answers(url, 5), "a server that has no /health"
    assert not placed.answers(url, 5)
