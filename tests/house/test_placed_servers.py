"""How a rank asks for the servers that a cluster has placed, and what the cluster's worker passes on; without ray."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from qed.errors import QedError
from qed.serving import placed
from qed.serving.placed import FOLDER, Order, Place, PlacedServers, Places, find_placed_servers, read_orders
from qed.serving.processes import ServerSpec, copy_environment

SPEC = ServerSpec(
    "native server",
    lambda port: [sys.executable, "-m", "qed", "serve", "model", "--port", str(port)],
    {**copy_environment(CUDA_VISIBLE_DEVICES="1"), "MORE": "1"},
    Path("logs"),
    seconds=77.0,
)


def test_an_order_says_how_a_server_starts_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("RANK", "1")
    order = Order.make(SPEC)
    assert order.command == ("{python}", "-m", "qed", "serve", "model", "--port", "{port}")
    assert order.changes == {"MORE": "1"}
    spec = order.build_spec(TOKEN="key")
    assert spec.command(4711) == SPEC.command(4711)
    assert (spec.name, spec.logs, spec.seconds) == ("native server", Path("logs").absolute(), 77.0)
    assert spec.environment["MORE"] == "1"
    assert spec.environment["TOKEN"] == "key"
    assert not {"RANK", "CUDA_VISIBLE_DEVICES"} & set(spec.environment)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a rank with two servers, each of which may be started again once."""
    monkeypatch.setattr(placed, "LOOK", 0.01)
    monkeypatch.setattr(placed, "SLACK", 60.0)
    Places(True, 1, (Place(), Place())).write(tmp_path)
    return tmp_path


def test_a_rank_without_a_cluster_has_no_placed_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert find_placed_servers() is None
    monkeypatch.setenv(FOLDER, str(folder))
    found = find_placed_servers()
    assert found is not None
    assert (found.count, found.shared, found.failures) == (2, True, 1)


def follow(folder: Path, *steps: tuple[Place, Place]) -> None:
    """Report these places one after the other, as a worker does, once there are other orders than now.

    A place without a number has that of its order, and one with the number `-` none.
    """
    before = [order.number for order in read_orders(folder)]

    def work() -> None:
        while not (orders := read_orders(folder)) or [order.number for order in orders] == before:
            time.sleep(0.01)
        for step in steps:
            places = (
                replace(place, number=place.number.strip("-") if place.number else order.number)
                for place, order in zip(step, orders, strict=True)
            )
            Places(True, 1, tuple(places)).write(folder)
            time.sleep(0.03)

    threading.Thread(target=work, daemon=True).start()


A, B, C = (Place(url=f"http://{name}:1") for name in "abc")


def test_starting_waits_for_all_servers_of_these_orders(folder: Path) -> None:
    stale = Place("older", "http://old:1", "an error of an earlier start")
    Places(True, 1, (stale, stale)).write(folder)
    follow(folder, (stale, stale), (A, stale), (A, Place()), (A, B))
    assert PlacedServers(folder).start([SPEC, SPEC]) == ["http://a:1", "http://b:1"]


def test_a_lost_server_is_started_elsewhere_from_what_it_serves_by_then(folder: Path) -> None:
    servers = PlacedServers(folder)
    follow(folder, (A, B))
    servers.start([SPEC, SPEC])
    before = read_orders(folder)
    later = replace(SPEC, command=lambda port: ["serve", "step_000007", str(port)])
    follow(folder, (A, Place("-")), (A, C))
    assert servers.restart(1, later) == "http://c:1"
    after = read_orders(folder)
    assert after[0] == before[0]
    assert after[1].number != before[1].number
    assert after[1].command == ("serve", "step_000007", "{port}")
    with pytest.raises(QedError, match=r"was lost 2 times, and cluster\.max_failures is 1"):
        servers.restart(1, later)


@pytest.mark.parametrize("gone", [False, True])
def test_what_keeps_a_server_from_starting_is_said(folder: Path, gone: bool) -> None:
    follow(folder, (A, Place("-" if gone else "", error="On node b: out of memory.", gone=gone)))
    with pytest.raises(QedError, match=r"native server on the cluster has failed\. On node b: out of memory"):
        PlacedServers(folder).start([SPEC, SPEC])


def test_a_cluster_without_room_is_not_waited_for_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "SLACK", 0.05)
    with pytest.raises(QedError, match="is not ready after 0 s"):
        PlacedServers(folder).start([replace(SPEC, seconds=0.0)] * 2)
