"""A live run streams in: rows, steps, events and its card, until it ends."""

from __future__ import annotations

import http.client
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from serving_views import SECONDS, ask_view, fetch, make_run, serve_runs

from qed.viewer import app, live
from qed.viewer.cards import build_card
from qed.viewer.library import Library
from qed.viewer.live import GrowingFile, RunTail
from qed.viewer.params import Params, Refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that its heartbeat says to be live."""
    folder = make_run(tmp_path / "runs" / "one", **{"events.jsonl": ""})
    beat(folder)
    return folder


@pytest.fixture
def url(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(live, "SECONDS", 0.02)
    with serve_runs([folder.parent], tmp_path / "cache") as running:
        yield running


def beat(folder: Path) -> None:
    said = {"process": 1, "step": 3, "stage": "sample", "idle_s": 0.0, "time": time.time()}
    (folder / "heartbeat.json").write_text(json.dumps(said))


def append(folder: Path, text: str, name: str = "metrics.jsonl") -> None:
    with (folder / name).open("a") as file:
        file.write(text)


def write_row(step: int) -> str:
    return json.dumps({"step": step, "phase": "grpo", "reward/mean": 0.5}) + "\n"


@contextmanager
def listen(url: str, query: str = "run=one", **headers: str) -> Iterator[Iterator[tuple[str, Any, str]]]:
    """The events of a run: the name, the content and the id of each."""
    place = urlsplit(url)
    with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)) as connection:
        connection.request("GET", f"/api/live?{query}", headers=headers)
        reply = connection.getresponse()
        assert reply.status == 200
        assert reply.getheader("content-type", "").startswith("text/event-stream")
        assert reply.getheader("cache-control") == "no-store"
        yield _parse(reply)


def _parse(lines: Any) -> Iterator[tuple[str, Any, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        fields = {**fields, name: value} if line.strip() else {}
        if name == "data":
            yield fields["event"], json.loads(value), fields["id"]


def read_until(events: Iterator[tuple[str, Any, str]], name: str) -> tuple[Any, str]:
    """The content and the id of the next event of a name."""
    return next((content, place) for kind, content, place in events if kind == name)


def read_steps(events: Iterator[tuple[str, Any, str]], last: int) -> tuple[list[int], str]:
    """The steps of the rows until one comes, and the id of its event."""
    steps: list[int] = []
    while last not in steps:
        rows, place = read_until(events, "metrics")
        steps += [row["step"] for row in rows["rows"]]
    return steps, place


def test_what_a_run_appends_streams_in(url: str, folder: Path) -> None:
    with listen(url) as events:
        append(folder, write_row(4) + '{"step": 5, "pha')
        assert read_steps(events, 4)[0] == [1, 2, 3, 4]
        append(folder, 'se": "grpo"}\n' + write_row(6))
        assert read_steps(events, 6)[0] == [5, 6]
        (folder / "rollouts").mkdir()
        for name in ("step_000006.index.zst", ".step_000007.jsonl.zst.part", "step_000006.jsonl.zst"):
            (folder / "rollouts" / name).touch()
        assert read_until(events, "steps")[0] == {"steps": [6]}
        (folder / "rollouts" / "step_000008.jsonl.zst").touch()
        assert read_until(events, "steps")[0] == {"steps": [6, 8]}
        append(folder, '{"event": "alarm", "step": 6, "name": "x", "told": "y", "time": 1.0}\n', "events.jsonl")
        assert read_until(events, "events")[0]["events"][0]["name"] == "x"
        assert read_until(events, "status")[0]["card"]["alarms"] == [{"step": 6, "name": "x", "message": "y"}]


def test_the_stream_ends_with_the_run(url: str, folder: Path) -> None:
    with listen(url) as events:
        append(folder, write_row(4))
        append(folder, '{"event": "finished", "time": 2e9, "step": 4}\n', "events.jsonl")
        *_, (_, last, _), (name, _, _) = events
        assert last["card"]["status"] == "done"
        assert name == "end"


def test_a_run_that_ended_before_its_page_listened(url: str, folder: Path) -> None:
    """Between the page's reply and the stream: the missed rows and the run's end come at once."""
    append(folder, write_row(4))
    append(folder, '{"event": "finished", "time": 2e9, "step": 4}\n', "events.jsonl")
    with listen(url, "run=one&after=3") as events:
        (_, rows, _), (_, last, _), (name, _, _) = events
        assert [row["step"] for row in rows["rows"]] == [4]
        assert last["card"]["status"] == "done"
        assert name == "end"


def test_a_listener_that_was_cut_off_goes_on(url: str, folder: Path) -> None:
    with listen(url) as events:
        append(folder, write_row(4))
        _, place = read_steps(events, 4)
    append(folder, write_row(5))
    with listen(url, **{"Last-Event-ID": place}) as events:
        assert read_steps(events, 5)[0] == [5]
    with listen(url, "run=one&after=2", **{"Last-Event-ID": "1-x"}) as events:
        assert read_steps(events, 5)[0] == [3, 4, 5]


def test_a_run_that_is_deleted_ends_its_stream(url: str, folder: Path) -> None:
    with listen(url) as events:
        folder.rename(folder.parent.parent / "moved")
        assert "deleted or moved" in read_until(events, "end")[0]["error"]
    assert fetch(url, "/api/about").status == 200


def test_a_folder_that_goes_away_during_a_look_is_no_end_of_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = RunTail(Library([folder.parent], tmp_path / "cache"), Params({"run": ["one"]}))

    def move_and_build(*arguments: Any) -> dict[str, Any]:
        folder.rename(tmp_path / "moved")
        return build_card(*arguments)

    monkeypatch.setattr(live, "build_card", move_and_build)
    with pytest.raises(Refused, match="deleted or moved"):
        tail.look()


def test_the_number_of_listeners_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_LISTENERS", 2)
    with listen(url), listen(url):
        assert ask_view(url, "live", run="one").status == 503
    deadline = time.monotonic() + SECONDS
    while fetch(url, "/api/live?run=one", "HEAD").status == 503:
        assert time.monotonic() < deadline, "a listener that has gone still counts"
        time.sleep(0.05)


def test_what_is_no_live_run(url: str) -> None:
    assert ask_view(url, "live").status == 400
    assert ask_view(url, "live", run="none").status == 404
    assert ask_view(url, "live", run="../one").status == 404


def test_many_rows_at_once_and_a_file_that_shrinks(tmp_path: Path) -> None:
    """A resumed run cuts its metrics down to its checkpoint and goes on."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(write_row, range(5))) + '{"torn')
    growing = GrowingFile(path)
    assert growing.read() == []
    path.write_text("".join(map(write_row, range(3))))
    assert growing.read() == []
    append(tmp_path, "".join(map(write_row, range(3, 3_000))) + "not json\n[1]\n" + "[" * 5_000 + "\n" + write_row(1))
    assert [row["step"] for row in growing.read()] == [*range(3, 3_000), 1]


def test_a_file_that_becomes_a_link(folder: Path, tmp_path: Path) -> None:
    """After the stream has begun: what it leads to is not read, and a FIFO does not keep the reader."""
    (tmp_path / "outside.jsonl").write_text(write_row(1) * 9)
    for name in ("metrics.jsonl", "events.jsonl"):
        tail = RunTail(Library([folder.parent], tmp_path / "cache"), Params({"run": "one", "after": 99}))
        (folder / name).rename(folder / "kept.jsonl")
        (folder / name).symlink_to("kept.jsonl")
        append(folder, write_row(10), "kept.jsonl")
        assert not {"metrics", "events"} & {kind for kind, _ in tail.look()}
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "outside.jsonl")
        with pytest.raises(Refused, match="leads out"):
            tail.look()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(Refused, match="neither a file nor a folder"):
            tail.look()
        (folder / name).unlink()
        (folder / "kept.jsonl").rename(folder / name)


def test_what_streams_in_is_clean(folder: Path, tmp_path: Path) -> None:
    tail = RunTail(Library([folder.parent], tmp_path / "cache"), Params({"run": "one", "after": 9}))
    append(folder, json.dumps({"step": 10, "phase": "x" * 999, "a": [[1]], "b": math.nan, "c": 10**400, "d": 1}) + "\n")
    append(folder, json.dumps({"event": "x", "deep": {"api_key": "secret-of-mine"}}) + "\n", "events.jsonl")
    found = dict(tail.look())
    assert found["metrics"]["rows"] == [{"step": 10, "phase": "x" * 200, "d": 1.0}]
    assert found["events"]["events"] == [{"event": "x", "deep": {"api_key": "REDACTED"}}]


def test_two_readers_do_not_share_a_place(folder: Path, tmp_path: Path) -> None:
    library = Library([folder.parent], tmp_path / "cache")
    tails = [RunTail(library, Params({"run": "one"})) for _ in range(2)]
    append(folder, write_row(4))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda tail=tail: found.append(tail.look())) for tail in tails]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [dict(messages)["metrics"]["rows"][-1]["step"] for messages in found] == [4, 4]
    with pytest.raises(Refused):
        RunTail(library, Params({"run": "one~2"}))
