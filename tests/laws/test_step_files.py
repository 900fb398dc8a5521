"""The file of a step's answers has a frame for each group, and its index finds every one of them.

Whatever the answers are, the index that is written with them is the one that is built from the file, one group is read
as it is within the whole, and what was written in another way, or is damaged, is read or refused.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.errors import DataError
from qed.runs import step_file
from qed.runs.answer_measures import measure_answer
from qed.runs.run import Run, build_row, read_lines
from qed.runs.step_file import Row, encode_line, encode_lines, iterate_lines, name_step_file
from qed.runs.step_index import (
    StepIndex,
    build_index,
    name_index,
    read_group,
    read_index,
    read_index_groups,
    write_index,
)
from qed.runs.token_stats import encode_stats, name_stats
from qed.types import Grade, Groups, Problem, Rollout

TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(["\u2028", "\ud800", "a\r\nb", "\x85", "="])
NUMBERS = st.floats(-9, 9) | st.sampled_from([math.nan, 0.0])


@st.composite
def rollouts(draw: st.DrawFn, problem: Problem, index: int) -> Rollout:
    """An answer of a few tokens from few, so that grams repeat."""
    tokens = draw(st.lists(st.integers(0, 3), max_size=30))
    count = len(tokens)
    graded = Grade(draw(st.floats(-2, 2)), draw(st.booleans()), True, draw(TEXTS | st.none()), {"style": 0.5})
    advantages = st.lists(st.floats(-2, 2), min_size=count, max_size=count).map(tuple)
    return Rollout(
        problem,
        (1,),
        tokens,
        draw(st.lists(NUMBERS, min_size=count, max_size=count)),
        draw(TEXTS),
        "stop",
        index=index,
        sampled_mask=draw(st.lists(st.booleans(), min_size=count, max_size=count)) if draw(st.booleans()) else (),
        grade=draw(st.none() | st.just(graded)),
        advantage=draw(st.floats(-2, 2) | advantages),
    )


@st.composite
def steps(draw: st.DrawFn) -> Groups:
    """Groups of answers, some of them empty, some to the same problem."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        problem = Problem(draw(st.sampled_from(["p", "q"])), draw(TEXTS), "7", meta=draw(st.sampled_from([{}, LEVEL])))
        found.append([draw(rollouts(problem, index)) for index in range(draw(st.integers(0, 3)))])
    return found


LEVEL = {"level": 3, "subject": "algebra"}


def write_step(folder: Path, groups: Groups) -> tuple[Path, StepIndex]:
    """A step's files, and the index that was written."""
    Run(folder).rollouts(3, groups)
    data = folder / name_step_file(3)
    index = read_index(name_index(data))
    assert index is not None
    return data, index


def read_all(data: Path, index: StepIndex) -> list[list[Row]]:
    """All groups, each read by itself."""
    return [read_group(data, index, number) for number in range(len(index.groups))]


def same(one: Any, other: Any) -> bool:
    """Whether two rows are the same; NaN is equal to itself."""
    return json.dumps(one) == json.dumps(other)


@settings(max_examples=40, deadline=None)
@given(groups=steps())
def test_every_group_is_a_frame_that_the_index_finds(tmp_path_factory: pytest.TempPathFactory, groups: Groups) -> None:
    data, index = write_step(tmp_path_factory.mktemp("step"), groups)
    groups = [group for group in groups if group]
    wanted = [[build_row(rollout, 3) for rollout in group] for group in groups]
    assert same(read_all(data, index), wanted)
    assert same(read_lines(data), [row for rows in wanted for row in rows])
    assert same(vars(index), vars(build_index(data)))
    assert read_index_groups(name_index(data)) == index.groups
    for line in iterate_lines(name_index(data)):
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    for group, place in zip(groups, index.groups, strict=True):
        # A frame alone, with nothing before it.
        frame = data.read_bytes()[place["offset"] : place["offset"] + place["length"]]
        assert len(zstandard.decompress(frame)) == place["size"]
        assert (place["skip"], place["n"]) == (0, len(group))
        assert place["n_right"] == sum(rollout.grade is not None and rollout.grade.correct for rollout in group)
    assert index.columns.get("group", []) == [number for number, group in enumerate(groups) for _ in group]
    assert index.columns.get("answer", []) == [number for group in groups for number in range(len(group))]


@settings(max_examples=30, deadline=None)
@given(groups=steps(), pieces=st.integers(1, 3), torn=st.booleans())
def test_files_that_were_written_in_another_way_have_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, groups: Groups, pieces: int, torn: bool
) -> None:
    """As one frame, as frames that end within lines, and as plain lines of an evaluation; also with a torn end."""
    folder = tmp_path_factory.mktemp("other")
    rows = [{"decoding": "greedy", **build_row(rollout, 3)} for group in groups for rollout in group]
    content = encode_lines("".join(map(encode_line, rows))) + (b'{"torn' if torn else b"")
    cuts = [len(content) * number // pieces for number in range(pieces + 1)]
    framed = b"".join(zstandard.compress(content[cuts[n] : cuts[n + 1]]) for n in range(pieces))
    for name, stored in (("some.jsonl", content), ("some.jsonl.zst", framed)):
        data = folder / name
        data.write_bytes(stored)
        index = build_index(data)
        assert index.bytes == len(stored)
        assert same([row for some in read_all(data, index) for row in some], rows)
        assert same(read_lines(data), rows)
        assert all(place["decoding"] == "greedy" for place in index.groups)
        for some in read_all(data, index):
            assert len({row["group_id"] for row in some}) == 1
        write_index(folder / "cache" / "some.index.zst", index)
        assert same(vars(read_index(folder / "cache" / "some.index.zst")), vars(index))


def make_row(tokens: list[int], logps: list[float] | None = None, **fields: Any) -> Row:
    """A row of tokens."""
    return {"tokens": tokens, "logps": logps or [-1.0] * len(tokens), **fields}


@settings(max_examples=50, deadline=None)
@given(tokens=st.lists(st.integers(0, 2), max_size=40), seed=st.integers(0, 99))
def test_measures_are_those_of_their_definition(tokens: list[int], seed: int) -> None:
    logps = (-6 * np.random.default_rng(seed).random(len(tokens))).tolist()
    mask = [number % 3 for number in range(len(tokens))]
    found = measure_answer(make_row(tokens, logps, sampled_mask=mask))
    grams = [tuple(tokens[start : start + 8]) for start in range(len(tokens) - 7)]
    repeated = sum(gram in grams[:number] for number, gram in enumerate(grams))
    assert found["repetition"] == (round(repeated / len(grams), 4) if grams else 0.0)
    sampled = [logp for logp, own in zip(logps, mask, strict=True) if own]
    assert found["rare"] == (round(sum(x < math.log(0.01) for x in sampled) / len(sampled), 4) if sampled else None)
    assert len(found["shingles"]) == (8 if tokens else 0)
    assert all(0 <= value < 1 << 32 for value in found["shingles"])


def test_answers_that_share_content_share_their_hashes() -> None:
    source = np.random.default_rng(0)
    one, other = (source.integers(0, 50_000, 2000).tolist() for _ in range(2))
    near = [*one[:1000], *other[:20], *one[1000:]]
    first, second, third = (measure_answer(make_row(tokens))["shingles"] for tokens in (one, near, other))
    assert sum(map(int.__eq__, first, second)) >= 6
    assert not set(first) & set(third)


@pytest.mark.parametrize(
    "row", [{"tokens": "no"}, {"tokens": [[1]]}, {"tokens": [None]}, {"tokens": [1 << 70]}, {"tokens": {"a": 1}}, {}]
)
def test_rows_without_tokens_have_no_measures(row: Row) -> None:
    assert measure_answer(row) == {"repetition": None, "rare": None, "shingles": None}


def test_values_of_another_kind_are_none(tmp_path: Path) -> None:
    """A file of somebody else's, which no run has written."""
    odd = {
        "group_id": ["p"],
        "question": 3,
        "reward": "high",
        "correct": 1,
        "tier": {},
        "parts": {"a": [1]},
        "gold": "x" * 999,
    }
    rows = [
        odd,
        {"reward": 1e999, "advantage": ["a"], "version": True, "n_tokens": 10**400},
        {},
        {"reward": 2.0, "source": "y" * 999},
    ]
    data = tmp_path / "odd.jsonl"
    data.write_bytes(encode_lines("".join(map(encode_line, rows))))
    index = build_index(data)
    assert [place["n"] for place in index.groups] == [1, 2]
    assert index.columns["reward"] == [None, None, 2.0]
    assert index.columns["parts/a"] == index.columns["n_tokens"] == [None, None, None]
    assert len(index.groups[0]["gold"]) == 300
    assert len(index.columns["source"][2]) == 100
    assert index.groups[0]["id"] is None


def test_countless_columns_are_left_out(tmp_path: Path) -> None:
    data = tmp_path / "odd.jsonl"
    data.write_text("".join(encode_line({"parts": {f"{row}-{n}": 1 for n in range(90)}}) for row in range(9)))
    assert len(build_index(data).columns) == 100


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"schema": 2, "bytes": 9, "groups": []},
        {"schema": 1, "bytes": 9, "groups": [{}]},
        {"schema": 1, "bytes": 9, "groups": [{"offset": -1, "length": 1, "skip": 0, "size": 1, "n": 1}]},
        {"schema": 1, "bytes": 9, "groups": [{"offset": 0, "length": 1, "skip": 0, "size": 1, "n": 3}]},
    ],
)
def test_an_index_that_is_damaged_is_none(tmp_path: Path, head: Row) -> None:
    path = tmp_path / "x.index.zst"
    path.write_bytes(b"".join(map(zstandard.compress, (encode_line(head).encode(), b'{"rows": {"reward": [1]}}\n'))))
    assert read_index(path) is None
    for content in (b"", b"junk", zstandard.compress(b"[1]\n"), zstandard.compress(b"[" * 99_999 + b"\n")):
        path.write_bytes(content)
        assert read_index(path) is None
        assert read_index_groups(path) is None


def test_an_index_of_another_file_is_none(tmp_path: Path) -> None:
    problem = Problem("p", "?", "1")
    data, index = write_step(tmp_path, [[Rollout(problem, (1,), (2,), (-1.0,), "a", "stop")]])
    assert read_index(name_index(data), data) == index
    data.write_bytes(data.read_bytes() * 2)
    assert read_index(name_index(data)) is None
    assert read_index_groups(name_index(data), data) is None
    assert read_index(tmp_path / "none.index.zst") is None
    # What lies at the place is told, and never taken for the group.
    for place in ({"n": 2}, {"size": 1 << 40}, {"skip": 5}, {"offset": 3}):
        wrong = StepIndex(index.bytes, [{**index.groups[0], **place}], index.columns)
        with pytest.raises(DataError, match=r"step_000003\.jsonl\.zst"):
            read_group(data, wrong, 0)


def test_a_file_that_is_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "x.jsonl"
    data.write_bytes(b'{"a": 1}\n[1]\n')
    with pytest.raises(DataError, match=r"x\.jsonl, line 2, cannot be read"):
        build_index(data)
    data.write_bytes(b'{"a": ' + b"[" * 99_999 + b"\n")
    for read in (build_index, read_lines):
        with pytest.raises(DataError, match="nested too deeply"):
            read(data)
    monkeypatch.setattr(step_file, "MAX_LINE", 99)
    for read in (build_index, read_lines):
        with pytest.raises(DataError, match="a line is longer than"):
            read(data)


def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_file, "MAX_LINE", 1 << 22)
    data = tmp_path / "bomb.jsonl.zst"
    data.write_bytes(zstandard.compress(bytes(1 << 26)))
    for read in (build_index, lambda path: list(iterate_lines(path))):
        with pytest.raises(DataError, match="a line is longer than"):
            read(data)


def test_statistics_are_read_back(tmp_path: Path) -> None:
    rows = [{"group": 0, "answer": 1, "entropy": [0.5, None]}, {"group": 2, "answer": 0, "top": [[[3, -0.5]]]}]
    path = name_stats(tmp_path / "step_000003.jsonl.zst")
    assert path.name == "step_000003.stats.zst"
    assert read_lines(path) == []
    path.write_bytes(encode_stats(rows))
    assert read_lines(path) == rows
    path.write_bytes(zstandard.compress(b"[]\n"))
    with pytest.raises(DataError, match=r"step_000003\.stats\.zst"):
        read_lines(path)


def test_a_run_that_goes_on_drops_the_files_of_later_steps(tmp_path: Path) -> None:
    run, problem = Run(tmp_path), Problem("p", "?", "1")
    for step in (1, 2):
        run.metrics({"step": step})
        run.rollouts(step, [[Rollout(problem, (1,), (2,), (-1.0,), "a", "stop")]])
        run.token_stats(step, [{"group": 0, "answer": 0}])
    run.truncate(1)
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == [
        "step_000001.index.zst",
        "step_000001.jsonl.zst",
        "step_000001.stats.zst",
    ]


def test_what_reads_a_folder_needs_no_torch() -> None:
    names = "import qed.runs.step_index, qed.runs.token_stats, qed.runs.run, qed.models.token_text, sys; "
    check = "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", names + check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
