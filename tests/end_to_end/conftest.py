"""What the end-to-end tests share: the command line called as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from qed.cli import main


@pytest.fixture(autouse=True)
def _no_words_of_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's handler keeps the stream of the test that imported it, which is closed, and logging complains."""
    monkeypatch.setattr("logging.raiseExceptions", False)


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
