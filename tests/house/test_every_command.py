"""Every command beside the same five mishaps: it says what is wrong on one screen, with the right exit code."""

from __future__ import annotations

import builtins
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.config import plugins
from qed.config.training_commands import resolve_training_command

Run = Callable[..., tuple[int, str, str]]
TRAINING = ("quickstart", "pipeline", "sft", "grpo", "dr-grpo", "dpo", "luffy", "expert-iteration")
NOWHERE, FORBIDDEN = "nowhere/x.jsonl", "forbidden.jsonl"
# What each command is called with where a path is wanted, and the exit codes that it may answer a bad one with.
PATHS: dict[str, tuple[list[str], set[int]]] = {
    "chat": (["{}"], {2, 3}),
    "checkpoint": (["verify", "{}"], {2, 3}),
    "compare": (["{}", "{}"], {2, 3}),
    "config": (["validate", "grpo", "{}"], {2, 3}),
    "data": (["inspect", "{}"], {2, 3}),
    "debug-generations": (["{}"], {2, 3}),
    "doctor": (["{}"], {2}),
    "evaluate": (["--model", "{}", "--tasks", "arithmetic"], {2, 3}),
    "export": (["{}"], {2, 3}),
    "generate": (["new:tiny", "{}"], {2, 3}),
    "grade": (["{}"], {2, 3}),
    "judge": (["{}", "--model", "x", "--url", "http://127.0.0.1:9"], {2, 3}),
    "merge": (["{}"], {2, 3}),
    "report": (["{}"], {2, 3}),
    "serve": (["{}"], {2, 3}),
    "track": (["{}", "--to", "tensorboard"], {2, 3}),
    "view": (["{}"], {2, 3}),
    **{command: (["--tasks", "{}", "--dry-run"], {2, 3}) for command in TRAINING},
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no path may be one on the hub, which no test asks."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def assert_told(code: int, out: str, err: str, allowed: set[int]) -> None:
    """An exit code that may be, one screen, no traceback and no sign that commands a terminal."""
    assert code in allowed, (code, out, err)
    assert "Traceback" not in out + err
    assert "a bug in qed" not in err, err
    assert len(err.splitlines()) <= 25
    assert "\x1b" not in out + err


def test_no_command_is_left_out() -> None:
    shelf = {name.replace("_", "-") for name in plugins.list_leaves("commands")}
    assert shelf | set(TRAINING) == set(PATHS)
    assert all(resolve_training_command(command) for command in TRAINING)


@pytest.mark.parametrize("command", PATHS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(run: Run, command: str, flag: str) -> None:
    code, out, err = run(command, flag)
    assert_told(code, out, err, {0})
    assert "qed " in out
    assert not err


@pytest.mark.parametrize("command", PATHS)
def test_without_arguments(run: Run, recipes: Any, command: str) -> None:
    """A training command has defaults for everything; of the others only the doctor has; config tells its usage."""
    if command == "doctor":
        pytest.skip("it looks at the machine, which tests/house/test_doctor.py lets it do")
    code, out, err = run(command)
    assert_told(code, out, err, {0} if command in (*TRAINING, "config") else {2})
    assert (err or out) or command in TRAINING


@pytest.mark.parametrize("command", PATHS)
@pytest.mark.parametrize("name", [NOWHERE, "dangling", "folder", "", "\0", "x" * 5000])
def test_a_path_that_is_none(run: Run, elsewhere: Path, command: str, name: str) -> None:
    (elsewhere / "folder").mkdir()
    (elsewhere / "dangling").symlink_to(elsewhere / "gone")
    arguments, codes = PATHS[command]
    assert_told(*run(command, *(word.format(name) for word in arguments)), codes)


@pytest.mark.parametrize("command", PATHS)
def test_a_file_that_may_not_be_read(run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Tests may run as root, whom no permission stops, so the refusal is injected."""
    (elsewhere / FORBIDDEN).write_text('{"question": "1?", "answer": "1"}\n')
    really = io.open

    def opened(file: Any, *more: Any, **options: Any) -> Any:
        if not isinstance(file, int) and Path(os.fsdecode(file)).name == FORBIDDEN:
            raise PermissionError(13, "Permission denied", str(file))
        return really(file, *more, **options)

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(io, "open", opened)
    arguments, codes = PATHS[command]
    assert_told(*run(command, *(word.format(FORBIDDEN) for word in arguments)), codes)


@pytest.mark.parametrize("command", PATHS)
def test_an_option_that_is_none(run: Run, command: str) -> None:
    arguments = ["validate", "grpo"] if command == "config" else PATHS[command][0]
    code, out, err = run(command, *(word.format("x") for word in arguments), "--no-such-option")
    assert_told(code, out, err, {2})
    assert "no-such-option" in err


@pytest.mark.parametrize("command", TRAINING)
def test_json_is_one_object_in_the_last_line(run: Run, recipes: Any, command: str) -> None:
    code, out, err = run(command, "--json")
    assert_told(code, out, err, {0})
    assert isinstance(json.loads(out.splitlines()[-1]), dict)
