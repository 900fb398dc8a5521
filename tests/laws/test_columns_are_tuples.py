"""A rollout's columns are tuples in every respect but their size."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_holes, make_rollout

from qed.rollout.append import append_tokens
from qed.rollout.replay import decode_rollout, encode_rollout
from qed.training.batch import COLUMNS, collate, split_rows
from qed.types import Column, Completion, Problem, Rollout, pack_column

KINDS = {
    "i": st.integers(-(2**31), 2**31 - 1),
    "d": st.floats(allow_nan=False),
    "b": st.booleans(),
}
values = st.sampled_from(list(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(KINDS[kind])))


@given(values, st.integers(-12, 12), st.integers(-12, 12))
def test_a_column_is_its_tuple(kind_and_numbers: tuple[str, list[Any]], first: int, last: int) -> None:
    kind, numbers = kind_and_numbers
    expected = tuple(numbers)
    column = pack_column(kind, numbers)
    assert column == expected
    assert expected == column
    assert hash(column) == hash(expected)
    assert {column: 1}[expected] == 1
    assert repr(column) == repr(expected)
    assert list(map(type, column)) == list(map(type, expected))
    assert column[first:last] == expected[first:last]
    assert column[first:last:2] == expected[first:last:2]
    others = (1, 0), pack_column("i", (1, 0))
    for other in others:
        assert column + other == (*expected, 1, 0)
        assert other + column == (1, 0, *expected)
    assert list(reversed(column)) == numbers[::-1]
    for number in numbers[:3]:
        assert number in column
        assert column.index(number) == expected.index(number)
        assert column.count(number) == expected.count(number)
    for copied in (copy.deepcopy(column), pickle.loads(pickle.dumps(column)), pack_column(kind, column)):
        assert copied == column
    assert bool(column) == bool(expected)
    if numbers:
        assert type(column[-1]) is type(expected[-1])
        assert column != expected[:-1]
        assert column != list(expected)


def test_unknown_log_probs_equal_themselves() -> None:
    first, second = (pack_column("d", (-1.0, math.nan)) for _ in range(2))
    assert first == second
    assert first != pack_column("d", (math.nan, -1.0))
    assert pack_column("d", (0.0,)) == pack_column("d", (-0.0,))


def test_every_field_is_packed_when_it_is_set() -> None:
    rollout = Rollout(Problem("p", "", ""), [1, 2], (3,), [-0.5], "", "stop", sampled_mask=[True], behaviour=(-1,))
    rollout.old_logps, rollout.ref_logps = (-0.25,), None
    for name in ("prompt", "output", "logps", "sampled_mask", "behaviour", "old_logps"):
        assert isinstance(getattr(rollout, name), Column), name
    assert rollout.ref_logps is None
    assert rollout.loss_mask == ()
    assert rollout.sampled_mask[0] is True
    assert replace(rollout, index=1).prompt is rollout.prompt
    assert isinstance(append_tokens(rollout, (4, 5), (-1.0, -2.0)).output, Column)
    assert isinstance(Completion((1, 2), (-0.5, -1.0), "stop").tokens, Column)
    with pytest.raises(OverflowError):
        replace(rollout, prompt=(2**31,))


def test_a_token_id_takes_four_bytes_and_a_log_prob_eight() -> None:
    count = 10_000
    for kind, numbers, size in (("i", range(count), 4), ("d", [0.1] * count, 8), ("b", [True] * count, 1)):
        column = pack_column(kind, numbers)
        assert isinstance(column, Column)
        assert sys.getsizeof(column) + sys.getsizeof(column.numbers) <= 1.05 * size * count + 200


@given(st.randoms(use_true_random=False))
def test_a_batch_has_the_numbers_of_its_rows(source: random.Random) -> None:
    """Bit by bit, from the tokens one by one; log-probs survive the way into a batch of float64 and back."""
    rows = [make_holes(source, make_rollout(source)) for _ in range(4)]
    for row in rows:
        row.values, row.returns = ([source.random() for _ in row.output] for _ in range(2))
    if source.random() < 0.5:
        rows[0] = replace(rows[0], prompt=(), advantage=tuple(source.random() for _ in rows[0].output))
    for dtype in (torch.float32, torch.float64):
        batch = collate(rows, dtype=dtype)
        for number, row in enumerate(rows):
            tokens = [*row.prompt, *row.output]
            assert batch.inputs[number, : len(tokens) - 1].tolist() == tokens[:-1]
            assert batch.labels[number, : len(tokens) - 1].tolist() == tokens[1:]
            first, skipped = max(0, len(row.prompt) - 1), int(not row.prompt)
            advantages = row.advantage if isinstance(row.advantage, tuple) else (row.advantage,) * len(row.output)
            expected = {
                "mask": row.trained,
                "expert": row.off_policy,
                "advantages": advantages,
                "sampled_logps": row.logps,
                "old_logps": row.old_logps,
                "ref_logps": row.ref_logps,
                "values": row.values,
                "returns": row.returns,
                "behaviour_logps": row.behaviour or (math.nan,) * len(row.output),
            }
            for name, numbers in expected.items():
                untrained = math.nan if name in ("behaviour_logps", "returns") else 0.0
                kept = [value if use else untrained for value, use in zip(numbers, row.trained, strict=True)][skipped:]
                found = getattr(batch, name)[number, first : len(tokens) - 1]
                assert torch.equal(found.nan_to_num(7), torch.tensor(kept, dtype=dtype).nan_to_num(7)), name
        assert set(expected) | {"inputs", "labels", "attention", "weights", "prepared", "log_squares"} == set(COLUMNS)
    for row, logps in zip(rows, split_rows(batch.old_logps, rows), strict=True):
        kept = [value if use else 0.0 for value, use in zip(row.old_logps, row.trained, strict=True)]
        assert logps == (tuple(kept) if row.prompt else (0.0, *kept[1:]))


@given(st.randoms(use_true_random=False))
def test_json_keeps_every_bit(source: random.Random) -> None:
    row = make_holes(source, make_rollout(source))
    packed = json.loads(json.dumps(encode_rollout(row)))
    assert decode_rollout(packed, {row.problem.id: row.problem}) == row
