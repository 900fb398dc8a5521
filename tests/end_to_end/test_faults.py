"""A disk that fills up and a number that is none end a run with their own exit codes; what was saved before is whole,
and from there the run goes on to the same end.

By default one case of each; `pytest -m faults` has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import OFFLINE, ONLINE, assert_same, forked

from qed.runs import manifest

GRPO = ("grpo", *ONLINE, "--learner.batch_size", 10, "--algorithm.entropy", 0.01)
METHODS = {"grpo": GRPO, "sft": ("sft", *OFFLINE), "dpo": ("dpo", *OFFLINE)}
SAVES = 8  # stages of a save without retention


@pytest.fixture
def mended(uncut: Callable[[list[Any]], Path], tmp_path: Path) -> Callable[..., str]:
    """Lets a fault end a run, then lets the run go on, and compares it with the one that nothing happened to; what the
    fault made it say."""

    def mend(arguments: list[Any], fault: str, code: int, *more: object) -> str:
        expected, run, log = uncut(arguments), tmp_path / "run", tmp_path / "log"
        ended, said = forked([*arguments, *more, "--out", run], log, fault)
        assert ended == code, said
        assert "Traceback" not in said
        found = manifest.list_checkpoints(run)
        assert found
        assert not any(map(manifest.list_damage, found.values()))
        assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
        gone_on, then = forked([*arguments, *more, "--out", run, "--resume"], log)
        assert gone_on == 0, then
        assert_same(expected, run)
        return said

    return mend


@pytest.mark.parametrize("stage", [3])
@pytest.mark.parametrize("keep", [1])
def test_a_disk_fills_up_in_a_save(
    command: Callable[..., list[Any]], mended: Callable[..., str], stage: int, keep: int
) -> None:
    said = mended(command(*GRPO), f"save:enospc:{SAVES + stage + 1}", 1, "--run.keep_last", keep)
    assert "No space left on device" in said
    assert "--resume" in said


@pytest.mark.faults
@pytest.mark.parametrize("stage", range(SAVES))
@pytest.mark.parametrize("keep", [1, 2])
def test_a_disk_fills_up_at_any_stage_of_a_save(
    command: Callable[..., list[Any]], mended: Callable[..., str], stage: int, keep: int
) -> None:
    test_a_disk_fills_up_in_a_save(command, mended, stage, keep)


def test_a_loss_that_is_no_number_stops_before_the_step(
    command: Callable[..., list[Any]], mended: Callable[..., str]
) -> None:
    assert "stopped before the optimizer step" in mended(command(*GRPO), "loss:nan:6", 4)


@pytest.mark.faults
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("passing", [3, 4])
def test_a_loss_is_no_number_in_any_kind_of_run(
    command: Callable[..., list[Any]], mended: Callable[..., str], name: str, passing: int
) -> None:
    # A run that samples makes two updates in each step, the others one.
    mended(command(*METHODS[name]), f"loss:nan:{passing + 2 * (name == 'grpo')}", 4)


@pytest.mark.faults
def test_a_reward_is_no_number(
    command: Callable[..., list[Any]],
    mended: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Graded by the reward itself, which pays a fresh model nothing; the entropy term trains it."""
    monkeypatch.undo()
    arguments = command("grpo", *ONLINE, "--algorithm.entropy", 0.02)
    assert "The reward of 1 of 20 answers is not finite" in mended(arguments, "reward:nan:66", 4)
