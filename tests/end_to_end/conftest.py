"""What the end-to-end tests share: the command line called as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cutting import SMALL, TINY, by_chance, run_small, write_data

from qed.cli.main import main
from qed.models import load


@pytest.fixture(autouse=True)
def _no_words_of_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's handler keeps the stream of the test that imported it, which is closed, and logging complains."""
    monkeypatch.setattr("logging.raiseExceptions", False)


@pytest.fixture(autouse=True)
def _few_problems(few_problems: None) -> None:
    """No run is made of all problems where a few will do."""


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The last line of stdout, which `--json` makes one JSON object."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


@pytest.fixture
def qed(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Calls `qed` with arguments and catches its exit code and what it prints."""

    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Outcome(int(left.value.code or 0), out, err)

    return call


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Problems, and preference pairs."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def command(data: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """The command line of a small run of some algorithm, with a checkpoint at every other step."""
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    problems, pairs = data
    return lambda name, *more: [
        name,
        "--tasks",
        pairs if name in ("dpo", "reward_model") else problems,
        *SMALL,
        *more,
        "--run.save_every",
        2,
    ]


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Any]], Path]:
    """The run of a command line that nothing happens to, made once."""
    made: dict[str, Path] = {}

    def make(arguments: list[Any]) -> Path:
        name = " ".join(map(str, arguments))
        if name not in made:
            made[name] = tmp_path_factory.mktemp("uncut") / "run"
            with pytest.raises(SystemExit) as left:
                main([str(argument) for argument in (*arguments, "--out", made[name])])
            assert not left.value.code
        return made[name]

    return make


@pytest.fixture(scope="session")
def complete_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with all of its weights, as somebody publishes one."""
    folder = tmp_path_factory.mktemp("complete") / "model"
    model, tokenizer = load.build_model("new:tiny", ["one two 1 2 3"], seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lora_run(complete_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trains adapters of a complete model."""
    out = tmp_path_factory.mktemp("lora") / "run"
    arguments = ["sft", "--model", complete_model, "--model.lora_rank", 2, *TINY, "--steps", 1, "--out", out]
    run_small(arguments)
    return out
