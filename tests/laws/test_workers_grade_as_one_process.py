"""Large files are graded in several processes: rows, figures and errors are those of one, whatever becomes of them."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qed import host
from qed.console.live import Console
from qed.errors import DataError
from qed.evaluation import grade_workers
from qed.evaluation.grade_run import GradeJob
from qed.evaluation.grade_workers import GradedChunk
from qed.grading import fork_server
from qed.grading.fork_server import ForkServer
from qed.grading.session import NotLoadedError, Session

ANSWERS = (
    "\\boxed{3}",
    "so it is 4",
    "#### 3",
    "",
    "3.0",
    "<answer>7</answer>",
    "\\boxed{\\frac{6}{2}}",
    "the answer is 3",
)
TIMES = {"seconds", "cases_per_second", "slowest_seconds"}
console = Console(json=True)


def make_row(number: int, draw: random.Random) -> dict[str, Any]:
    answer = draw.choice(ANSWERS)
    row = {
        "id": f"{number}",
        "gold": "3",
        "response": [answer, "3"] if number % 7 == 0 else answer,
        "é": "ü\u2028\ud800",
    }
    return row | ({"expected": True, "tier": "mine"} if number % 3 else {})


def write_rows(file: Path, count: int, bad: int = -1) -> None:
    draw = random.Random(0)
    rows = [json.dumps(make_row(number, draw)) for number in range(count)]
    if bad >= 0:
        rows[bad] = json.dumps({"response": "3"})
    file.write_text("\n".join([*rows[: count // 2], "", *rows[count // 2 :]]), encoding="utf-8")  # an empty line


def grade(job: GradeJob, out: Path | None, alone: bool) -> Any:
    graded = job.grade(job.read_groups()) if alone else job.grade_files(written=out is not None)
    figures = job.write(graded, out, console)
    return {name: value for name, value in figures.items() if name not in TIMES}


def read_graded(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(autouse=True)
def _use_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade_workers, "MIN_BYTES", 0)
    monkeypatch.setattr(grade_workers, "CHUNK_CHARS", 1_000)
    monkeypatch.setattr(host, "count_usable_cores", lambda: 2)


def compare(tmp_path: Path, job: GradeJob) -> None:
    one = grade(job, tmp_path / "one.jsonl", alone=True)
    assert grade(job, tmp_path / "two.jsonl", alone=False) == one
    assert read_graded(tmp_path / "two.jsonl") == read_graded(tmp_path / "one.jsonl")


def test_rows_and_figures_are_those_of_one_process(tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file, count in zip(files, (180, 40), strict=True):
        write_rows(file, count)
    job = GradeJob(tuple(map(str, files)), lists="answers")
    assert isinstance(next(iter(job.grade_files())), GradedChunk)
    compare(tmp_path, job)
    assert grade(job, None, alone=False) == grade(job, None, alone=True)


def test_a_table_has_the_same_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", 60)
    job = GradeJob((str(tmp_path / "a.jsonl"),))
    texts = []
    for alone in (True, False):
        grade(job, tmp_path / "out.csv", alone)
        header, *lines = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
        texts.append([header, len(lines)])
    assert texts[0] == texts[1]


def test_a_broken_row_ends_both_with_the_same_words_and_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", 1_500, bad=1_400)
    job, ends = GradeJob((str(tmp_path / "a.jsonl"),)), []
    for alone in (True, False):
        with pytest.raises(DataError) as error:
            grade(job, tmp_path / "out.jsonl", alone)
        ends.append((str(error.value), read_graded(tmp_path / "out.jsonl.part")))
    assert ends[0] == ends[1]
    assert "row 1402" in ends[0][0]


def test_killed_workers_change_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "a.jsonl", 200)
    deaths: Iterator[bool] = iter([True, False, False] * 100)
    ask = Session.ask

    def ask_dying(self: Session, question: Any, *rest: Any) -> Any:
        if next(deaths):
            os.kill(self.pid, signal.SIGKILL)
        return ask(self, question, *rest)

    monkeypatch.setattr(Session, "ask", ask_dying)
    compare(tmp_path, GradeJob((str(tmp_path / "a.jsonl"),)))


def test_workers_that_do_not_start_change_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "a.jsonl", 50)

    def refuse(self: ForkServer) -> Session:
        raise NotLoadedError("no process is left")

    monkeypatch.setattr(ForkServer, "open_session", refuse)
    compare(tmp_path, GradeJob((str(tmp_path / "a.jsonl"),)))


def test_a_server_that_does_not_start_changes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "a.jsonl", 50)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise BlockingIOError("no process is left")

    monkeypatch.setattr(fork_server.subprocess, "Popen", refuse)
    compare(tmp_path, GradeJob((str(tmp_path / "a.jsonl"),)))


def test_small_files_rewards_and_other_formats_are_graded_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "a.jsonl", 10)
    (tmp_path / "a.csv").write_text("gold,response\n3,3\n")
    lines, table = str(tmp_path / "a.jsonl"), str(tmp_path / "a.csv")
    assert grade_workers.count_workers([lines]) == 2
    assert grade_workers.count_workers([lines, table]) == 1
    for job in (
        GradeJob((lines,), reward=("boxed",)),
        GradeJob((lines,), also=("strict",)),
        GradeJob((lines,), workers=1),
    ):
        assert not isinstance(next(iter(job.grade_files())), GradedChunk)
    monkeypatch.setattr(grade_workers, "MIN_BYTES", 1 << 20)
    assert grade_workers.count_workers([lines]) == 1
