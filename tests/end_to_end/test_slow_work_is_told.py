"""What takes long says so once, and what does not says nothing."""

from __future__ import annotations

import threading

from qed.console.progress import say_if_slow


def test_only_slow_work_is_told() -> None:
    said, told = [], threading.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    with say_if_slow(say, "quick", 60.0):
        pass
    with say_if_slow(say, "slow", 0.0):
        assert told.wait(10)
    assert said == ["slow"]
