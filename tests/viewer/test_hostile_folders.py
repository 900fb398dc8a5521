"""Folders and addresses that are made to lead out, to block, to fill the memory or to end the server: none does."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving_views import ask_view, fetch, make_run, serve_runs

from qed.report.settings_file import read_settings
from qed.viewer.app import ENDPOINTS

SECRET = "the-secret-of-another-folder"
GIGABYTE = 1_000_000_000
PATHS = (
    *("..", "../..", "../../secret", "../secret.log", "../../outside/secret.log", "one/../../outside", "./one", "one/"),
    *("/etc/passwd", "//etc/passwd", "/proc/self/environ", "/dev/zero", "~", "~root", "file:///etc/passwd", "C:\\x"),
    *("..\\secret", "%2e%2e%2fsecret", "..%2fsecret", "%252e%252e%252fsecret", "....//secret", "..;/secret", "\0"),
    *("a\0b", "one\n", "\r\nSet-Cookie: x=1", "\ud800", "\u202e", ".", "", " ", "*", "?", "one~2", "one/control/..."),
    *("$(id)", "`id`", "{one}", "%s%n", "x" * 300, "x/" * 300, "．．/secret", "\u2215etc\u2215passwd", "nul", "-1"),
)
NUMBERS = ("-1", "1e9", "99999999999999999999", "0x10", "1.0", "NaN", "٣", "", "1;2", "1,2", " 1", "000001/..", "1\0")
CHILDREN = ("search", "explain")
PAIRS = ("arms", "compare")
OWN = {
    "log": {"attempt": "1", "name": "main.log"},
    "step": {"step": "1"},
    "group": {"step": "1", "group": "0"},
    "answer": {"step": "1", "group": "0", "answer": "0"},
    "explain": {"step": "1", "group": "0", "answer": "0"},
    "search": {"step": "1", "q": "a"},
    "problem": {"id": "x"},
    "evaluation": {"step": "0", "task": "arithmetic", "decoding": "greedy"},
    "arms": {"a": "one", "b": "one"},
    "compare": {"a": "one", "b": "one"},
}
ROW = {"step": 1, "group_id": "p", "sample_id": 0, "question": "1+1?", "gold": "2", "prompt": "1+1?", "text": "2"}
ANSWER = {**ROW, "reward": 1.0, "correct": True, "decoding": "greedy", "tokens": [1], "logps": [-0.5], "n_tokens": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and beside it what nobody may read."""
    home = tmp_path_factory.mktemp("home")
    make_run(home / "runs" / "one", **{"eval/step_000000/arithmetic.jsonl": json.dumps(ANSWER) + "\n"})
    (home / "outside").mkdir()
    for name in ("secret.log", "metrics.jsonl", "settings.yaml", "summary.json", "step_000001.jsonl"):
        (home / "outside" / name).write_text(json.dumps({"step": 1, "method": SECRET, "text": SECRET}) + "\n")
    (home / "secret").write_text(SECRET)
    (home / "runs" / "secret.log").write_text(SECRET)
    return home


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    with serve_runs([home / "runs"], home / "cache") as running:
        yield running


def ask_everything(url: str, run: str, children: bool = False) -> dict[str, Any]:
    """The replies of the endpoints about a run; none is a failure, and none has the secret.

    Those that start a process for each request are asked only with `children`.
    """
    replies = {}
    for name in ENDPOINTS.keys() - {"about", *(() if children else CHILDREN)}:
        params = {"run": run, **OWN.get(name, {}), **({"a": run, "b": run} if name in PAIRS else {})}
        reply = ask_view(url, name, **params)
        assert reply.status != 500, (name, reply.content[:500])
        assert SECRET.encode() not in reply.content, name
        replies[name] = reply
    assert ask_view(url, "about").status == 200
    return replies


def assert_harmless(url: str, endpoint: str, /, **params: Any) -> None:
    reply = ask_view(url, endpoint, **params)
    assert reply.status not in (200, 500), (endpoint, params, reply.content[:300])
    assert SECRET.encode() not in reply.content


def test_the_endpoints_reply_to_what_is_right(url: str) -> None:
    """So that the refusals below are due to what is wrong."""
    assert all(reply.status in (200, 404, 501) for reply in ask_everything(url, "one", children=True).values())
    assert ask_view(url, "log", run="one", **OWN["log"]).json["text"] == "started\n"


@pytest.mark.parametrize("name", sorted(ENDPOINTS.keys() - {"about", "runs"}))
def test_runs_that_are_none(url: str, name: str) -> None:
    key = "a" if name in PAIRS else "run"
    for path in PATHS:
        assert_harmless(url, name, **{**OWN.get(name, {}), key: path})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("log", "name"), ("log", "attempt"), ("evaluation", "task"), ("evaluation", "decoding"), ("step", "task")),
        *(("group", "task"), ("search", "task"), ("explain", "task"), ("answer", "task")),
    ],
)
def test_names_that_lead_out(url: str, name: str, key: str) -> None:
    for path in PATHS:
        reply = ask_view(url, name, **{"run": "one", **OWN[name], "decoding": "greedy", key: path})
        assert reply.status != 500, (path, reply.content)
        assert SECRET.encode() not in reply.content
        assert b"root:" not in reply.content


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("step", "step"), ("group", "step"), ("group", "group"), ("answer", "answer"), ("explain", "group")),
        *(("search", "step"), ("evaluation", "step"), ("log", "attempt"), ("log", "end"), ("suspects", "first")),
    ],
)
def test_numbers_that_are_none(url: str, name: str, key: str) -> None:
    for number in NUMBERS:
        assert ask_view(url, name, **{"run": "one", **OWN.get(name, {}), key: number}).status in (400, 403, 404, 501)


def test_static_files_are_those_of_the_package(url: str) -> None:
    for path in (
        *(
            "../app.py",
            "..%2fapp.py",
            "%2e%2e/app.py",
            "....//app.py",
            "/etc/passwd",
            "//etc/passwd",
            "styles/../../app.py",
        ),
        *(
            "",
            ".",
            "..",
            "styles",
            "styles/",
            "app.js/",
            "app.js%00",
            "app.js%00.css",
            "APP.JS",
            "app.py",
            "%ff",
            "a%0ab",
        ),
        *("app.js%5c..%5c..%5capp.py", "C:%5cx", "x" * 3_000, "%252e%252e/app.py", "views/../../__init__.py", "~/x.js"),
    ):
        reply = fetch(url, f"/static/{path}")
        assert reply.status in (404, 414), path
        assert b"import" not in reply.content
    for path in ("/app.py", "/viewer/app.py", "/../app.py", "/api", "/api/", "/api/runs/", "/api/a/b", "/index.html"):
        assert fetch(url, path).status == 404, path


def test_links_within_a_run_are_not_followed_out(tmp_path: Path, home: Path) -> None:
    shutil.copytree(home / "outside", tmp_path / "outside")
    shutil.copy(home / "secret", tmp_path / "secret")
    targets = ("../../outside", "/etc", "../../secret", "/", ".", "..", "loop")
    for number, target in enumerate(targets):
        run = make_run(tmp_path / "runs" / str(number))
        for name in ("logs", "rollouts", "eval", "checkpoints"):
            shutil.rmtree(run / name, ignore_errors=True)
            (run / name).symlink_to(name if target == "loop" else target)
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        for number in range(len(targets)):
            assert ask_everything(url, str(number))["log"].status in (403, 404)
        assert len(ask_view(url, "runs").json["runs"]) == len(targets)


SMALL = ("metrics.jsonl", "events.jsonl", "settings.yaml", "heartbeat.json", "env.json")


def make_special(file: Path, kind: str, target: Path) -> None:
    """Make something that is no file of a run."""
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(file.name)  # the address of a socket is short, so it is relative
    else:
        file.symlink_to({"link": str(target), "device": "/dev/zero", "loop": file.name}.get(kind, "none"))


def test_files_that_are_something_else(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO without a writer would keep its reader for ever, and a device never ends."""
    kinds = ("link", "fifo", "socket", "device", "folder", "loop", "dangling")
    for kind, name in product(kinds, SMALL):
        file = make_run(tmp_path / "runs" / f"{kind} {name}") / name
        file.unlink(missing_ok=True)
        monkeypatch.chdir(file.parent)
        make_special(file, kind, home / "outside" / "metrics.jsonl")
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        for kind, name in product(kinds, SMALL):
            ask_everything(url, f"{kind} {name}")


def test_a_folder_that_becomes_a_link(tmp_path: Path, home: Path) -> None:
    run = make_run(tmp_path / "runs" / "one")
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        assert ask_view(url, "run", run="one").status == 200
        shutil.rmtree(run)
        run.symlink_to(home / "outside")
        for name, reply in ask_everything(url, "one", children=True).items():
            assert reply.status in (403, 404, 410) or name == "runs", name


def test_a_run_that_is_deleted_while_it_is_viewed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "runs" / name) for name in ("one", "two")]
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        ask_everything(url, "one")
        shutil.rmtree(runs[0] / "logs")
        (runs[0] / "metrics.jsonl").unlink()
        ask_everything(url, "one")
        shutil.rmtree(runs[0])
        for name, reply in ask_everything(url, "one", children=True).items():
            assert reply.status in (404, 410) or name == "runs", (name, reply.status)
        assert ask_view(url, "run", run="two").status == 200
        shutil.rmtree(tmp_path / "runs")
        assert ask_view(url, "runs").status == 200


DAMAGED = {
    "torn": '{"step": 1, "reward/mean": 0.5}\n{"step": 2, "rew',
    "empty": "",
    "blank": "\n\n\n",
    "binary": "\ufffd\0\x01" * 1_000,
    "no rows": '[1]\n"a"\n3\nnull\n',
    "deep": "[" * 100_000 + "\n" + '{"a":' * 50_000 + "\n",
    "deep value": '{"step": 1, "x": ' + "[" * 900 + "]" * 900 + "}\n",
    "not numbers": '{"step": NaN, "reward/mean": Infinity, "time": -Infinity, "train/loss": 1e999}\n',
    "huge numbers": '{"step": ' + "9" * 4_000 + ', "reward/mean": ' + "9" * 4_000 + "}\n",
    "too many digits": '{"step": ' + "9" * 10_000 + "}\n",
    "other types": '{"step": "1", "phase": [1], "reward/mean": {"a": 1}, "time": "x", "event": 5}\n',
    "no steps": '{"reward/mean": 1}\n',
    "surrogates": '{"step": 1, "phase": "\\ud800", "reward/mean": 1, "event": "\\udfff"}\n',
    "old rows": '{"step": 1, "time/step_s": 2.0}\n{"step": 0}\n{"step": -5}\n',
}


def test_damaged_lines(tmp_path: Path) -> None:
    """A card says what it can, and no endpoint fails."""
    files = (
        *("metrics.jsonl", "events.jsonl", "heartbeat.json", "env.json", "settings.origin.json", "settings.yaml"),
        *("eval/step_000000/summary.json", "eval/step_000000/arithmetic.jsonl", "rollouts/step_000001.jsonl.zst"),
        *("rollouts/step_000001.index.zst", "rollouts/step_000001.stats.zst", "tokenizer.json"),
    )
    for kind, content in DAMAGED.items():
        make_run(tmp_path / "runs" / kind, **dict.fromkeys(files, content))
    make_run(tmp_path / "runs" / "zz")
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        for kind in DAMAGED:
            ask_everything(url, kind, children=kind in ("torn", "other types", "deep"))
        cards = ask_view(url, "runs").json["runs"]
        assert [card["key"] for card in cards] == sorted([*DAMAGED, "zz"])
        assert cards[-1]["reward"] == 0.3


SETTINGS = (
    *(
        "[" * 100_000,
        "- " * 100_000,
        "{a: " * 50_000,
        "? " * 20_000,
        "a: &a [*a]",
        "a: *nowhere",
        "a: " + "9" * 9_000,
    ),
    *("a: !!python/object/apply:os.system ['true']", "!!python/name:os.system x", "a: 2020-99-99", "a: !!binary x"),
    "a: " + "9" * 9_000,
    *("\ufeffa: 1", "%YAML 9.9\n---\na: 1", "---\n---\n", "a: 1\na: 2", "? [a]\n: 1", "? {a: 1}\n: 1", "a: .nan"),
    "a: &a [1,2]\n"
    + "".join(
        f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
    ),
)


def test_settings_that_are_made_to_harm(tmp_path: Path) -> None:
    """yaml's fast loader ends the process on the first of these."""
    for number, text in enumerate(SETTINGS):
        run = make_run(tmp_path / "runs" / str(number), **{"settings.yaml": text})
        with suppress(ValueError):
            assert len(str(read_settings(run / "settings.yaml"))) < 100_000
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        for number in range(len(SETTINGS)):
            ask_everything(url, str(number))


def test_settings_are_read_as_yaml_reads_them(tmp_path: Path) -> None:
    lines = [
        "a: [1, 2.5, 1.0e-06, -3, 0x1F, 1_000, .inf, 'x', \"none\", none, null, ~, true, no, '']",
        "b: &id001 {c: [auto]}",
        "d: *id001",
        "e:\n- 'it''s'\n- |\n  two\n  lines",
        "f: {}\n1: 2\ng: !!str 5\nh: 2020-01-02",
    ]
    text = "\n".join(lines)
    (tmp_path / "settings.yaml").write_text(text)
    assert read_settings(tmp_path / "settings.yaml") == yaml.safe_load(text)
    (tmp_path / "settings.yaml").write_text('a: "\\ud800"')
    assert read_settings(tmp_path / "settings.yaml") == {"a": "\ud800"}
    assert read_settings(tmp_path / "none.yaml") == {}


LARGE = (
    *("settings.yaml", "heartbeat.json", "env.json", "settings.origin.json", "command.txt", "tokenizer.json"),
    *("logs/attempt_1/main.log", "eval/step_000000/summary.json", "rollouts/step_000001.jsonl.zst"),
    *("rollouts/step_000001.index.zst", "rollouts/step_000001.stats.zst"),
)
# Those are read to their end, without holding them in memory.
READ = ("metrics.jsonl", "events.jsonl", "eval/step_000000/arithmetic.jsonl", "rollouts/step_000001.jsonl")


@pytest.mark.parametrize(
    ("names", "size"), [(LARGE, GIGABYTE), (READ, GIGABYTE // 20), pytest.param(READ, GIGABYTE, marks=pytest.mark.slow)]
)
def test_a_gigabyte(tmp_path: Path, names: tuple[str, ...], size: int) -> None:
    """Of NULs, in files that take no room on the disk: no line ends in them."""
    for number, name in enumerate(names):
        os.truncate(make_run(tmp_path / "runs" / str(number), **{name: "{}\n"}) / name, size)
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        for number in range(len(names)):
            assert ask_everything(url, str(number))["runs"].status == 200
