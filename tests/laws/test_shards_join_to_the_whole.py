"""Any number of shards, made in any order and interrupted anywhere, joins to the bytes and figures of one process."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qed.console.live import Console
from qed.errors import DataError
from qed.evaluation.grade_run import GradeJob, read_files
from qed.evaluation.merge import merge
from qed.evaluation.row_shards import run_row_shard
from qed.evaluation.score_run import ScoreJob
from qed.evaluation.shards import Shard, ShardFile, find_shard_folder, find_shards, join_shards, parse_shard
from qed.evaluation.stored import Scoring

# Times are of the process and not of the answer.
TIMES = {"seconds", "cases_per_second", "slowest_seconds"}
ANSWERS = ("\\boxed{3}", "so it is 4", "#### 3", "", "3.0", "<answer>7</answer>")
console = Console(json=True)


def write_answers(folder: Path, count: int, seed: int) -> Path:
    draw = random.Random(seed)
    file = folder / "answers.jsonl"
    rows = [
        {
            "id": str(draw.randrange(max(1, count // 2))),
            "question": "1 + 2 = ?",
            "answer": "3",
            "level": draw.choice("ab"),
        }
        | {"response": draw.choice(ANSWERS), "other": draw.choice(ANSWERS), "expected": draw.random() < 0.5}
        for _ in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if name not in TIMES}
    return value


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 23), st.integers(1, 6), st.sampled_from([".jsonl", ".csv", ".parquet"]), st.booleans(), st.data())
def test_graded_files(
    tmp_path_factory: pytest.TempPathFactory, count: int, shards: int, suffix: str, rewarded: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("graded")
    file = write_answers(folder, count, seed=count)
    job = GradeJob((str(file),), ("", "response"), reward=("boxed", "0.5*length") if rewarded else ())
    whole, joined = folder / f"whole{suffix}", folder / f"joined{suffix}"
    figures = job.write(job.grade_files(), whole, console)
    for number in data.draw(st.permutations(range(1, shards + 1))):
        run_row_shard(job, find_shard_folder(joined, is_file=True), Shard(number, shards), False, console)
    result = merge(joined, [], False, console)
    assert without_times(result) == without_times(figures)
    rows = [[row for _, row in read_files([str(path)])] for path in (whole, joined)]
    assert [without_times(row) for row in rows[1]] == [without_times(row) for row in rows[0]]
    assert [list(row) for row in rows[1]] == [list(row) for row in rows[0]], "columns in the same order"
    assert not find_shard_folder(joined, is_file=True).exists(), "shards that lie with OUT go when they are joined"


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 17), st.integers(1, 5), st.booleans())
def test_scored_answers(tmp_path_factory: pytest.TempPathFactory, count: int, shards: int, rewarded: bool) -> None:
    folder = tmp_path_factory.mktemp("scored")
    file = write_answers(folder, count, seed=count)
    job = ScoreJob(str(file), Scoring(response_keys=("response", "other")), ("boxed",) if rewarded else ())
    figures = job.score(folder / "whole", console)
    for number in range(1, shards + 1):
        run_row_shard(job, folder / "copied", Shard(number, shards), False, console)
    assert merge(folder / "joined", [folder / "copied"], False, console) == figures
    for name in ("response.jsonl", "other.jsonl", "summary.json"):
        here, there = (folder / out / "eval/step_000000" / name for out in ("joined", "whole"))
        assert here.read_bytes() == there.read_bytes()
    assert (folder / "copied").exists(), "copies of shards stay"


@settings(max_examples=6, deadline=None)
@given(st.integers(2, 17), st.integers(1, 4))
def test_answers_that_a_reward_compares_stay_together(
    tmp_path_factory: pytest.TempPathFactory, count: int, shards: int
) -> None:
    """A function takes all answers to a problem, wherever they stand in the file, in every shard."""
    folder = tmp_path_factory.mktemp("compared")
    file, own = write_answers(folder, count, seed=count), folder / "own.py"
    own.write_text("def reward(completions, **columns):\n    return [float(len(completions))] * len(completions)\n")
    job = ScoreJob(str(file), Scoring(response_keys=("response", "other")), (str(own),))
    figures = job.score(folder / "whole", console)
    for number in range(1, shards + 1):
        run_row_shard(job, folder / "shards", Shard(number, shards), False, console)
    assert merge(folder / "joined", [folder / "shards"], False, console) == figures
    for name in ("response.jsonl", "other.jsonl"):
        here, there = (folder / out / "eval/step_000000" / name for out in ("joined", "whole"))
        assert here.read_bytes() == there.read_bytes()
        rows = [json.loads(line) for line in there.read_text().splitlines()]
        sizes = Counter(row["group_id"] for row in rows)
        assert [row["reward"] for row in rows] == [sizes[row["group_id"]] for row in rows]


def test_a_shard_goes_on_wherever_it_was_cut(tmp_path: Path) -> None:
    """A file cut at any byte has lost the last units at most, and is never taken for a whole one."""
    shard, whole, rows = Shard(1, 1), {"kind": "x"}, [{"text": "a\u2028b\ud800"}]
    uncut = ShardFile(tmp_path / "uncut", shard, whole)
    for unit in range(3):
        uncut.add({unit: rows})
    content = uncut.part.read_bytes()
    for length in (*range(0, len(content), 7), content.index(b"\n")):
        file = ShardFile(tmp_path / "cut", shard, whole, overwrite=True)
        file.part.write_bytes(content[:length])
        again = ShardFile(tmp_path / "cut", shard, whole)
        assert sorted(again.units) == list(range(len(again.units)))
        again.add({unit: rows for unit in range(3) if unit not in again.units})
        again.finish(3, {})
        assert join_shards([again.path]).units == [rows] * 3
        finished = again.path.read_bytes()
        again.path.write_bytes(finished[: len(finished) - 1 - length])
        with pytest.raises(DataError, match="not a complete shard"):
            join_shards([again.path])


@given(st.integers(1, 40), st.integers(0, 200))
def test_shards_share_the_work(count: int, total: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    assert sorted(unit for shard in shards for unit in shard.list_units(total)) == list(range(total))
    assert all(shard.has(unit) for shard in shards for unit in shard.list_units(total))
    assert [parse_shard(str(shard)) for shard in shards] == shards
    assert sorted(shard.file for shard in shards) == [shard.file for shard in shards]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Two shards of a grading."""
    job = GradeJob((str(write_answers(tmp_path, 9, 0)),), ("", "response"))
    for number in (1, 2):
        run_row_shard(job, tmp_path / "shards", Shard(number, 2), False, console)
    return tmp_path / "shards"


def refuse(made: Path, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern):
        merge(made.parent / "out.jsonl", [made], False, console)
    assert not (made.parent / "out.jsonl").exists()


def test_what_cannot_be_joined_is_refused(made: Path) -> None:
    _, second = find_shards([made])
    content = second.read_bytes()
    second.rename(made / "aside")
    refuse(made, "Of 2 shards 1 is missing: 2/2")
    (made / "copy").mkdir()
    for twice in (second, made / "copy" / second.name):
        twice.write_bytes(content)
    refuse(made, "Shard 2/2 is given twice")
    (made / "copy" / second.name).unlink()
    second.write_bytes(content.replace(b'"correct": true', b'"correct": null', 1))
    refuse(made, "not a complete shard: its checksum")
    second.write_bytes(content)
    answers = made.parent / "answers.jsonl"
    job = GradeJob((str(answers),), ("", "response"))
    run_row_shard(job, made / "third", Shard(2, 3), False, console)
    refuse(made, "shard 2/3, and .* is shard 1/2|shard 1/2, and .* is shard 2/3")
    (made / "third" / Shard(2, 3).file).unlink()
    strict = GradeJob((str(answers),), ("", "response"), "strict")
    second.unlink()
    run_row_shard(strict, made, Shard(2, 2), False, console)
    refuse(made, "mode flexible there and strict here")
    second.unlink()
    rows = answers.read_text()
    answers.write_text(rows.replace("so it is 4", "so it is 5"))
    run_row_shard(job, made, Shard(2, 2), False, console)
    refuse(made, "not shards of the same work: data")
    second.write_bytes(content)
    refuse(made, "has changed since the shards graded it")
    answers.unlink()
    refuse(made, "There is no file")
    answers.write_text(rows)
    assert merge(made.parent / "out.jsonl", [made], False, console)["n"] == 9
