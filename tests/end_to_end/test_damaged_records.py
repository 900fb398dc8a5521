"""What a run has recorded beside its checkpoints may be damaged: the file is named, or what is lost is made again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import assert_same
from hypothesis import given
from hypothesis import strategies as st

from qed.errors import DataError
from qed.runs import step_file
from qed.runs.run import Run, read_lines

TINY = ["grpo", "--model", "new:tiny", "--sampling.problems_per_step", 2, "--sampling.group_size", 2]
TINY += ["--sampling.max_tokens", 4, "--evaluation.problems", 2, "--algorithm.entropy", 0.01, "--run.save_every", 2]
TINY += ["--evaluation.every", 2, "--data.unique_examples", 20]
JUNK = b"\x00\x00\x00\n"
SUMMARY = "eval/step_000002/summary.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps."""
    return tmp_path_factory.mktemp("made") / "run"


@pytest.fixture
def run(qed: Callable[..., Any], made: Path, tmp_path: Path) -> Path:
    """A copy of the run that may be damaged."""
    if not made.exists():
        assert qed(*TINY, "--steps", 4, "--out", made).code == 0
    shutil.copytree(made, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_an_end_that_was_not_written_out_is_taken_off(
    qed: Callable[..., Any], run: Path, tmp_path: Path, name: str
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(run, whole, symlinks=True)
    assert qed(*TINY, "--steps", 6, "--out", whole, "--resume").code == 0
    with (run / name).open("ab") as file:
        file.write(JUNK + b'{"half')
    done = qed(*TINY, "--steps", 6, "--out", run, "--resume")
    assert done.code == 0, done.err
    kept = run / "logs" / "attempt_2" / f"{name}.cut"
    assert f"The end of {name} could not be read and was moved to {kept}" in done.out.replace("\n", " ")
    assert kept.read_bytes() == JUNK + b'{"half'
    assert_same(whole, run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "env.json", "settings.yaml", SUMMARY])
def test_a_file_that_is_damaged_is_named(qed: Callable[..., Any], run: Path, name: str) -> None:
    file = run / name
    before = file.read_bytes()
    rest = before.partition(b"\n")[2]
    file.write_bytes(b"{{{ no longer\n" + rest)
    for command in ([*TINY, "--steps", 6, "--out", run, "--resume"], ["report", run]):
        done = qed(*command)
        assert done.code == 3
        assert str(file) in done.err
        assert "Traceback" not in done.err
        assert "a bug" not in done.err
    if name.endswith(".jsonl"):
        assert f"{file}, line 1, cannot be read" in done.err
    file.write_bytes(before)
    assert qed(*TINY, "--steps", 6, "--out", run, "--resume").code == 0


def test_settings_that_are_gone_are_told(qed: Callable[..., Any], run: Path) -> None:
    (run / "settings.yaml").write_text("")
    done = qed(*TINY, "--steps", 6, "--out", run, "--resume")
    assert done.code == 3
    assert "contains no settings" in done.err


def test_metrics_that_are_gone_are_told(qed: Callable[..., Any], run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    done = qed(*TINY, "--steps", 6, "--out", run, "--resume")
    assert done.code == 0, done.err
    assert "metrics.jsonl is incomplete: it ends before the step of step_000004" in done.out


def test_a_name_that_is_taken_stays_as_it_is(qed: Callable[..., Any], run: Path) -> None:
    (run / "final").unlink()
    (run / "final").mkdir()
    (run / "final" / "mine").touch()
    done = qed(*TINY, "--steps", 6, "--out", run, "--resume")
    assert done.code == 0, done.err
    assert f"the model is {run}/checkpoints/step_000006/hf" in done.out.replace("\n", "")
    assert (run / "final" / "mine").is_file()


def test_a_checkpoint_does_not_outlive_what_it_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a checkpoint is written, what was recorded until then is brought onto the disk, each file once."""
    synced: list[Path] = []
    monkeypatch.setattr("qed.runs.manifest.fsync", synced.append)
    run = Run(tmp_path)
    run.metrics({"step": 1})
    run.metrics({"step": 2})
    run.evaluation(2, "some", [], {})
    run.event("x")
    run.sync()
    files = {tmp_path / name for name in ("metrics.jsonl", "events.jsonl", "eval/step_000002/some.jsonl", SUMMARY)}
    assert set(synced) == files | {file.parent for file in files}
    assert len(synced) == len(set(synced))
    run.sync()
    assert len(synced) == len(files) + 2


@given(
    st.lists(st.dictionaries(st.text(), st.text(st.characters()) | st.integers() | st.none(), min_size=1), max_size=4)
)
def test_a_row_comes_back_whatever_its_text_holds(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    """Also with the signs that Unicode takes for the end of a line, and halves of a UTF-16 pair."""
    file = tmp_path_factory.getbasetemp() / "rows.jsonl"
    for ends in ("", "\u2028", "\x85", "\ud800"):
        told = [{**row, "ends": f"a{ends}b"} for row in rows]
        file.write_bytes(step_file.encode_lines("".join(map(step_file.encode_line, told))))
        assert read_lines(file) == told


def test_rows_that_are_none_are_refused(tmp_path: Path) -> None:
    for content in (b"3\n", b'{"a": 1}\n[1]\n', b"\xff\n", b"null\n"):
        (tmp_path / "x.jsonl").write_bytes(content)
        with pytest.raises(DataError, match=r"x\.jsonl, line"):
            read_lines(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl.zst").write_bytes(b"no")
    with pytest.raises(DataError, match=r"x\.jsonl\.zst"):
        read_lines(tmp_path / "x.jsonl.zst")
