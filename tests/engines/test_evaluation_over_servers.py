"""`qed evaluate` over servers: files and figures of a model that is loaded here, byte for byte over our own server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from running import Engine, update

from qed.cli.main import main
from qed.evaluation.served import require_one_version
from qed.runs.run import read_lines

pytestmark = pytest.mark.xdist_group("native server")
SAMPLED = ("--temperature", 1, "--top-p", 1)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("problems") / "sums.jsonl"
    rows = [{"question": f"What is {a} + 2?", "answer": f"#### {a + 2}"} for a in range(6)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture
def evaluate(problems: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[Path, Any]]:
    """Evaluates, and returns the folder of the answers and the result, or the message of the error."""

    def run(name: str, *options: Any) -> tuple[Path, Any]:
        capfd.readouterr()
        fixed = ("--tasks", problems, "--max-tokens", 12, "--samples", 2, "--out", tmp_path / name, "--json")
        arguments = ("evaluate", *fixed, *options)
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return tmp_path / name / "eval/step_000000", err if left.value.code else json.loads(out.splitlines()[-1])

    return run


def columns(folder: Path, names: Sequence[str] = ("question", "text", "stop_reason", "n_tokens", "correct")) -> Any:
    return [{name: row[name] for name in names} for row in read_lines(folder / "sums.jsonl")]


def test_our_own_server_gives_the_bytes_of_this_process(native: Engine, evaluate: Callable[..., Any]) -> None:
    """Without --model, the model is found from the server."""
    here, expected = evaluate("here", "--model", native.models.folder, "--threads", 1, *SAMPLED)
    there, found = evaluate("there", "--sampler", "server", "--url", native.url, *SAMPLED)
    assert isinstance(found, dict), found
    assert (there / "sums.jsonl").read_bytes() == (here / "sums.jsonl").read_bytes()
    figures, wanted = found["tasks"]["sums"], expected["tasks"]["sums"]
    about = {name for name in figures if figures[name] != wanted.get(name)}
    assert about == {"settings", "urls"}
    asked, local = figures["settings"], wanted["settings"]
    assert {name for name in asked if asked[name] != local.get(name)} == {"sampler", "server"}
    assert asked["server"]["engine"] == "qed"
    assert (asked["server"]["weight_version"], asked["server"]["servers"]) == (0, 1)
    assert figures["urls"] == [native.url]
    assert found["sampler_check"] == {"sums": {}}


def test_every_engine_is_evaluated_alike(engine: Engine, evaluate: Callable[..., Any]) -> None:
    here, _ = evaluate("here", "--model", engine.models.folder, "--threads", 1, "--greedy", "--samples", 1)
    options = ("--sampler", "server", "--url", engine.url, "--model", engine.models.folder)
    there, found = evaluate("there", *options, "--greedy", "--samples", 1)
    assert isinstance(found, dict), found
    assert columns(there) == columns(here)
    again = evaluate("there", *options, "--greedy", "--samples", 1)[1]
    assert again["tasks"] == found["tasks"]
    refused = evaluate("there", *options, *SAMPLED, "--overwrite")[1]
    assert isinstance(refused, dict), refused


def test_text_of_an_endpoint_is_that_of_the_tokens(native: Engine, evaluate: Callable[..., Any]) -> None:
    """Our own server as any OpenAI-compatible endpoint: the same greedy answers, with their tokens counted."""
    here, _ = evaluate("here", "--model", native.models.folder, "--threads", 1, "--greedy", "--samples", 1)
    name = f"openai:{native.models.folder}"
    options = ("--model", name, "--url", f"{native.url}/v1", "--api", "completions", "--greedy", "--samples", 1)
    there, found = evaluate("there", *options)
    assert isinstance(found, dict), found
    assert columns(there) == columns(here)
    assert found["tasks"]["sums"]["usage"]["completion"] == sum(row["n_tokens"] for row in columns(here))


def test_weights_that_change_meanwhile_end_it(
    engine: Engine, evaluate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training run that updates the server would mix the answers of several steps."""

    def require(policy: Any, name: str, console: Any) -> None:
        require_one_version(policy, name, console)
        update(engine.connect().servers[0], engine.models.newer, 3)

    monkeypatch.setattr("qed.evaluation.plan.require_one_version", require)
    options = ("--sampler", "server", "--url", engine.url, "--model", engine.models.folder)
    folder, told = evaluate("there", *options, "--greedy", "--samples", 1)
    assert "received other weights meanwhile (version 3 instead of" in told
    assert not list(read_lines(folder / "sums.jsonl"))


def test_another_model_than_the_named_one_is_said(
    native: Engine, evaluate: Callable[..., Any], problems: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in native.models.folder.iterdir():
        (copy / file.name).symlink_to(file)
    for folder, said in ((copy, True), (native.models.folder, False)):
        capfd.readouterr()
        options = (
            "--tasks",
            problems,
            "--max-tokens",
            4,
            "--greedy",
            "--samples",
            1,
            "--out",
            tmp_path / f"to-{folder.name}",
        )
        arguments = ("evaluate", "--sampler", "server", "--url", native.url, "--model", folder, *options)
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        assert not left.value.code
        assert (f"The server serves the weights of {native.models.folder}" in capfd.readouterr().out) == said


def test_mistakes_are_told(native: Engine, evaluate: Callable[..., Any], tmp_path: Path) -> None:
    nobody = evaluate("o", "--sampler", "server", "--url", "http://127.0.0.1:9")[1]
    assert "No server answers at http://127.0.0.1:9" in nobody
    assert "needs either --model" in evaluate("o", "--sampler", "server")[1]
    missing = evaluate("o", "--sampler", "server", "--url", native.url, "--model", tmp_path / "nothing")[1]
    assert "There is no model folder" in missing
    assert not os.path.exists(tmp_path / "o/eval")


def test_prompts_of_a_file_are_answered_at_a_server(
    native: Engine, problems: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {"here": (), "there": ("--sampler", "server", "--url", native.url)}
    for name, options in places.items():
        arguments = ("generate", native.models.folder, problems, "--max-tokens", 8, "--threads", 1, *options)
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in (*arguments, "--out", tmp_path / f"{name}.jsonl")])
        assert not left.value.code, capfd.readouterr().err
    assert (tmp_path / "here.jsonl").read_bytes() == (tmp_path / "there.jsonl").read_bytes()
