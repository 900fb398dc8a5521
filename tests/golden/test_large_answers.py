"""Files with many stored answers: what they take of memory, and what is said while they are graded."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from qed import host
from qed.console import progress
from qed.console.live import Console
from qed.evaluation import grade_workers
from qed.evaluation.grade_run import GradeJob
from qed.evaluation.row_shards import run_row_shard
from qed.evaluation.score_run import ScoreJob
from qed.evaluation.shards import Shard
from qed.evaluation.stored import Scoring, read_answers

ROWS, TEXT = 2_000, "x" * 500


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Four answers to each problem, all of them different."""
    file = tmp_path / "many.jsonl"
    rows = ({"id": n // 4, "question": f"{n // 4} {TEXT}", "gold": "1", "response": f"{n} {TEXT}"} for n in range(ROWS))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_an_answer_takes_less_than_three_times_its_text(file: Path) -> None:
    tracemalloc.start()
    table = read_answers(file, Scoring())
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table.rows) == ROWS
    assert held / ROWS < 3 * len(TEXT)


def test_grading_says_now_and_then_how_far_it_is(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SAID_AFTER", 0.0)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:8]))
    assert ScoreJob(str(file), Scoring()).score(None, Console())["tasks"]["many"]["answers"] == 8
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "Grading" in line] == ["Grading: 4 of 8 answers of many."]
    run_row_shard(GradeJob((str(file),)), file.parent / "shards", Shard(1, 2), False, Console())
    assert "Grading: 1 of 4 rows." in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("least", [0, 1 << 30])
def test_grading_in_one_process_and_in_several_counts_answers(
    file: Path, least: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SAID_AFTER", 0.0)
    monkeypatch.setattr(grade_workers, "MIN_BYTES", least)
    monkeypatch.setattr(grade_workers, "CHUNK_CHARS", 1)
    monkeypatch.setattr(host, "count_usable_cores", lambda: 2)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:8]))
    job = GradeJob((str(file),))
    assert job.write(job.grade_files(written=False), None, Console())["n"] == 8
    assert [line for line in capsys.readouterr().out.splitlines() if "Grading" in line] == ["Grading: 1 answers."]
