"""What the tests of the command line share: an empty current folder, what a refusal says, stand-ins for the recipes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qed.cli.main import main
from qed.config.resolve import resolve_settings
from qed.errors import UsageError
from qed.runs.run import Launch

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(elsewhere: Path) -> Callable[..., str]:
    """Writes a file into the current folder and returns its name."""

    def write_file(text: str, name: str = "x.yaml") -> str:
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_text(text, encoding="utf-8")
        return name

    return write_file


@pytest.fixture
def error(elsewhere: Path) -> Callable[..., str]:
    """Resolves a command line that must be refused and returns what is said."""

    def refused(command: str, *arguments: str) -> str:
        with pytest.raises(UsageError) as caught:
            resolve_settings(command, arguments)
        assert caught.value.exit_code == 2
        return str(caught.value)

    return refused


@pytest.fixture
def run(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line here and returns its exit code, stdout and stderr."""

    def run_here(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run_here


class Recipes:
    """Stands in for all recipes: remembers how they were called, and returns or raises what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Launch | None]] = []
        self.answer: Callable[[Any], dict[str, Any]] = lambda settings: {"reward": 0.5}

    def named(self, name: str) -> Callable[..., dict[str, Any]]:
        """The stand-in of one recipe."""

        def recipe(settings: Any, launch: Launch | None = None, *_: Any) -> dict[str, Any]:
            self.calls.append((name, settings, launch))
            return self.answer(settings)

        return recipe


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Recipes:
    """All recipes, replaced."""
    stand_in = Recipes()
    modules = {"train": ["train", "run_pipeline"], "quickstart": ["run_quickstart"], "dry_run": ["run_dry"]}
    for name, functions in modules.items():
        module = ModuleType(f"qed.loops.{name}")
        for function in functions:
            setattr(module, function, stand_in.named(function))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    start = ModuleType("qed.loops.warm_start")
    start.warm_start = lambda settings, launch: settings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, start.__name__, start)
    return stand_in
