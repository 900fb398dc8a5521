"""What `qed serve` makes of its options: the model, its name, the address and the token. No server is run."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qed.cli.commands.serve import format_curl
from qed.serving import server
from qed.serving.engine_start import EngineProcess, start_process
from qed.serving.messages import ModelSource
from qed.serving.options import ServerOptions
from qed.serving.server import Ready

pytestmark = pytest.mark.xdist_group("adapters")
Serve = Callable[..., tuple[ModelSource, ServerOptions, Any]]


@pytest.fixture
def serve(qed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Calls `qed serve`, and returns what it would serve, where, and what it has printed."""
    found: list[Any] = []

    def run(source: ModelSource, tokenizer: Any, options: ServerOptions, say: Any, on_ready: Any, process: Any) -> int:
        info = SimpleNamespace(handed_over=None, window=64)
        found[:] = [source, options]
        on_ready(Ready("http://127.0.0.1:8000", options.name, info))  # type: ignore[arg-type]
        return 0

    monkeypatch.setattr(server, "run_server", run)

    def call(*arguments: object) -> tuple[ModelSource, ServerOptions, Any]:
        done = qed("serve", *arguments)
        assert done.code == 0, done.err
        source, options = found
        return source, options, done

    return call


def test_a_run_is_served_by_the_name_of_its_folder(serve: Serve, lora_run: Path) -> None:
    source, options, done = serve(lora_run, "--checkpoint", 1, "--threads", 2, "--json")
    assert Path(source.model.name).name == "hf"
    assert "step_000001" in source.model.name
    assert (source.model.lora_rank, source.threads) == (0, 2)
    assert (options.name, options.others) == (lora_run.resolve().name, (str(lora_run),))
    assert done.result == {"url": "http://127.0.0.1:8000", "model": lora_run.name, "pid": os.getpid()}


def test_a_model_is_served_by_the_name_that_was_given(serve: Serve, lora_run: Path) -> None:
    folder = lora_run / "final" / "hf"
    source, options, done = serve(folder, "--name", "mine", "--rows-per-batch", 3, "--max-body-mb", 0.5)
    assert (source.model.name, source.rows_per_batch) == (str(folder), 3)
    assert (options.name, options.others, options.body_limit) == ("mine", (str(folder),), 500_000)
    assert (options.host, options.port, options.token) == ("127.0.0.1", 0, "")
    assert done.out.splitlines()[-1] == format_curl("http://127.0.0.1:8000", "mine", False)


def test_a_file_gives_the_options_or_the_settings_of_a_run(serve: Serve, lora_run: Path, tmp_path: Path) -> None:
    options = tmp_path / "serve.yaml"
    options.write_text(f"model: {lora_run}\nname: mine\nthreads: 3\nport: 0\njson: true\n")
    source, found, done = serve(options, "--threads", 1)
    assert (found.name, source.threads) == ("mine", 1)
    assert done.result["model"] == "mine"
    settings = tmp_path / "settings.yaml"
    folder = lora_run / "final" / "hf"
    settings.write_text(f"model:\n  name: {folder}\n  precision: float64\nsampling:\n  temperature: 0.5\n")
    source, found, _ = serve(settings)
    assert (source.model.name, source.model.precision, found.name) == (str(folder), "float64", str(folder))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "needs a model"),
        (["MODEL", "--model", "x"], "needs a model"),
        (["MODEL", "--host", "0.0.0.0"], "requires a token"),
        (["MODEL", "--token", "two words"], "printable ASCII"),
        (["MODEL", "--port", "70000"], "from 0 to 65535"),
        (["MODEL", "--max-body-mb", "0"], "--max-body-mb"),
        (["MODEL", "--precision", "float31"], "precision"),
        (["new:tiny"], "has no trained weights"),
        (["/nowhere/model"], "There is no run or model"),
        (["nowhere.yaml"], "There is no configuration"),
        (["FILE"], "neither an option of qed serve nor a setting"),
    ],
)
def test_mistakes_are_said(
    qed: Callable[..., Any], lora_run: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("modl: x\n")
    known = {"MODEL": str(lora_run / "final" / "hf"), "FILE": str(file)}
    done = qed("serve", *(known.get(word, word) for word in arguments))
    assert (done.code, words in done.err) == (2, True), done.err


def test_a_port_in_use_and_a_model_that_does_not_load_are_said(
    qed: Callable[..., Any], lora_run: Path, tmp_path: Path
) -> None:
    folder = lora_run / "final" / "hf"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = qed("serve", folder, "--port", taken.getsockname()[1])
    assert (done.code, "Address already in use" in done.err) == (2, True), done.err
    broken = tmp_path / "broken"
    subprocess.run(["cp", "-r", folder, broken], check=True)
    (broken / "model.safetensors").write_bytes(b"no weights")
    done = qed("serve", broken)
    assert (done.code, "Traceback" in done.err) == (3, False), done.err
    assert str(broken) in done.err


def test_the_example_quotes_for_a_shell() -> None:
    line = format_curl("http://127.0.0.1:1", "it's 'mine'", has_token=True)
    assert '-H "Authorization: Bearer $QED_SERVE_TOKEN"' in line
    script = line.replace("curl ", "printf '%s\\n' ", 1)
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert """{"model": "it's 'mine'", "prompt": "1 + 1 =", "max_tokens": 16}""" in shown


@pytest.mark.parametrize("wrong", [("--max-body-mb", "0"), ("--host", "0.0.0.0")])
def test_no_engine_is_started_for_a_wrong_option(
    qed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str]
) -> None:
    monkeypatch.delenv("QED_SERVE_TOKEN", raising=False)
    started: list[None] = []
    monkeypatch.setattr("qed.serving.engine_start.start_process", lambda: started.append(None))
    assert qed("serve", "nowhere", *wrong).code == 2
    assert not started


def test_the_engine_of_a_model_that_does_not_exist_is_ended(
    qed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[EngineProcess] = []

    def start() -> EngineProcess:
        started.append(start_process())
        return started[-1]

    monkeypatch.setattr("qed.serving.engine_start.start_process", start)
    assert qed("serve", tmp_path / "nowhere").code == 2
    assert started[0].process.poll() is not None
    assert started[0].connection.closed
