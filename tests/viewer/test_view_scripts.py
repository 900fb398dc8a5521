"""What the page's scripts compute, run by node: filters, ranges, colour scales, differences of texts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from node_scripts import Script, needs_node, prepare_modules

pytestmark = needs_node
MODULES = {"filters": "views/filters.js", "signals": "views/signals.js", "histogram": "histogram.js", "diff": "diff.js"}
ROWS: dict[str, Any] = {
    "groups": [
        {"group": 0, "subject": "algebra", "level": 2, "n": 2, "n_right": 1, "reward_min": 0, "reward_max": 1},
        {"group": 1, "subject": "geometry", "level": 10, "n": 2, "n_right": 0, "reward_min": 0, "reward_max": 0},
    ],
    "rows": {
        "group": [0, 0, 1, 1],
        "answer": [0, 1, 0, 1],
        "reward": [1.0, 0.0, 0.0, None],
        "correct": [True, False, False, None],
        "format_ok": [True, True, False, None],
        "n_tokens": [10, 20, 64, 9],
        "stop_reason": ["stop", "stop", "length", "stop"],
        "source": ["policy", "policy", "policy", "expert"],
        "version": [3, 4, 4, None],
    },
    "parts": {"correct": [1, 0, 0, None]},
}


@pytest.fixture(scope="module")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Returns what a body, the inside of a function of `given`, returns; the modules that only compute are at hand."""
    compute = prepare_modules(tmp_path_factory.mktemp("scripts"), MODULES)
    return lambda body, given=None: compute(f"(() => {{ {body} }})()", given)


def test_filters_keep_what_they_say(run_script: Script) -> None:
    """Each by its words in the address; several at once narrow."""
    queries: dict[str, tuple[dict[str, str], list[str]]] = {
        "none": ({}, ["0/0", "0/1", "1/0", "1/1"]),
        "verdict": ({"verdict": "wrong"}, ["0/1", "1/0"]),
        "not graded": ({"verdict": "ungraded"}, ["1/1"]),
        "wrong in format": ({"verdict": "wrong-format"}, ["0/1"]),
        "reward": ({"reward": "0.5.."}, ["0/0"]),
        "tokens": ({"tokens": "10..20"}, ["0/0", "0/1"]),
        "cut": ({"cut": "1"}, ["1/0"]),
        "no signal": ({"signal": "none"}, ["1/0", "1/1"]),
        "version": ({"version": "4"}, ["0/1", "1/0"]),
        "level": ({"level": "10", "source": "expert"}, ["1/1"]),
        "unknown verdict": ({"verdict": "<b>"}, ["0/0", "0/1", "1/0", "1/1"]),
    }
    kept = run_script(
        "const rows = filters.buildRows(given.table);"
        "const keep = (query) => filters.filterRows(rows, filters.readFilters(query));"
        "return given.queries.map((query) => keep(query).map((row) => row.key));",
        {"table": ROWS, "queries": [query for query, _ in queries.values()]},
    )
    assert dict(zip(queries, kept, strict=True)) == {name: wanted for name, (_, wanted) in queries.items()}


def test_a_rate_is_that_of_the_graded_answers(run_script: Script) -> None:
    groups = [{"n": 4, "n_graded": 1, "n_right": 1}, {"n": 4, "n_graded": 0, "n_right": 0}, {"n": 4, "n_right": 1}, {}]
    rates = run_script("return given.map((group) => [filters.readRate(group), filters.nameRate(group)]);", groups)
    assert rates == [[1, "1 of 1"], [None, "not graded"], [0.25, "1 of 4"], [None, "not graded"]]


def test_ranges_survive_the_address(run_script: Script) -> None:
    """Written and read again; what is no range is none."""
    texts = ["0.1..1.1", "..5", "-1..2.5", "3..", "-0.5..-0.25", "1e-05..2"]
    read = run_script("return given.map((text) => filters.writeRange(filters.readRange(text)));", texts)
    assert read == [*texts[:5], "0.00001..2"]
    assert run_script("return ['x', '', '1', 'a..b', '1..2..3'].map(filters.readRange);") == [None] * 5


def test_rows_sort_with_gaps_last(run_script: Script) -> None:
    """Either way; equal ones keep their order, words sort like numbers where they hold numbers."""
    orders = run_script(
        "const rows = filters.buildRows(given);"
        "const sort = (read, down) => filters.sortRows(rows, read, down).map((row) => row.key);"
        "return [sort((row) => row.reward, false), sort((row) => row.reward, true),"
        " filters.sortRows([{v: 'a10'}, {v: 'a9'}, {v: ''}], (row) => row.v, false).map((row) => row.v)];",
        ROWS,
    )
    assert orders == [["0/1", "1/0", "0/0", "1/1"], ["0/0", "0/1", "1/0", "1/1"], ["a9", "a10", ""]]


def test_answers_are_summarised(run_script: Script) -> None:
    """Without the ones that have no verdict; problems without signal are counted once."""
    found = run_script("return filters.summarise(filters.buildRows(given));", ROWS)
    assert (found["n"], found["groups"], found["flat"], found["cut"]) == (4, 2, 1, 0.25)
    assert found["right"] == pytest.approx(1 / 3)


def test_scales_stand_by_quantiles(run_script: Script) -> None:
    """Signed ones are symmetric around their centre; what lies beyond gets the last colour and a mark."""
    scales = {
        "logp": {"low": -4, "high": 0, "signed": False},
        "ratio": {"low": 0.9, "high": 1.2, "signed": True},
        "mismatch": {"low": 0, "high": 0, "signed": True},
    }
    classes = run_script(
        "const classes = (name, values) => values.map((value) =>"
        " signals.listClasses(value, signals.buildScale(name, given[name])));"
        "return [classes('logp', [0, -4, -90, null]), classes('ratio', [1, 1.2, 0.8, 7]), classes('mismatch', [0])];",
        scales,
    )
    assert classes == [
        ["heat s0", "heat s8", "heat s8 beyond", ""],
        ["heat p0", "heat p4", "heat n4", "heat p4 beyond"],
        ["heat p0"],
    ]


def test_extremes_leave_masked_tokens_out(run_script: Script) -> None:
    """A ratio of a half is as extreme as one of two; low log-probs come first."""
    ranks = run_script(
        "const rank = (name, scale, values, masks) =>"
        " signals.rankExtremes(values, signals.buildScale(name, scale), masks);"
        "return [rank('logp', {low: -4, high: 0, signed: false}, [-1, -30, -2, null], {loss: [1, 0, 1, 1]}),"
        " rank('ratio', {low: 0.9, high: 1.1, signed: true}, [1.9, 0.5, 1, 4], null)];"
    )
    assert ranks == [[2, 0], [3, 1, 0, 2]]


def test_differences_join_to_both_texts(run_script: Script) -> None:
    """For random texts, what is in both and in one side is that side; a shortest edit is found."""
    rng = random.Random(18)
    words = ["so ", "we", "\n", " add", "12", "é", "   "]
    pairs = [["".join(rng.choices(words, k=rng.randrange(25))) for _ in range(2)] for _ in range(200)]
    parts = run_script("return given.map(([a, b]) => diff.diffTexts(a, b));", pairs)
    for (left, right), found in zip(pairs, parts, strict=True):
        assert "".join(part["text"] for part in found if part["kind"] != "b") == left
        assert "".join(part["text"] for part in found if part["kind"] != "a") == right
        assert all(part["text"] for part in found)
    assert run_script("return diff.diffTexts('the quick brown fox', 'the slow red fox jumps');") == [
        {"kind": "same", "text": "the "},
        {"kind": "a", "text": "quick brown"},
        {"kind": "b", "text": "slow red"},
        {"kind": "same", "text": " fox"},
        {"kind": "b", "text": " jumps"},
    ]


def test_lines_of_both_texts_stand_level(run_script: Script) -> None:
    """Side by side, each line end that both texts have ends a row; a line of one text has an empty cell beside it."""
    rows = run_script(
        "const texts = (side) => side.map((part) => part.text).join('');"
        "const rows = diff.splitRows(diff.diffTexts(given[0], given[1]));"
        "return rows.map((row) => [texts(row.a), texts(row.b)]);",
        ["one\ntwo three\nlast", "one\ntwo four\nmore\nlast"],
    )
    assert rows[0] == ["one", "one"]
    assert rows[-1] == ["last", "last"]
    assert "\n".join(right for _, right in rows) == "one\ntwo four\nmore\nlast"


def test_huge_differences_are_bounded(run_script: Script) -> None:
    """Two texts of 300,000 words without a common line take seconds at most, and none of their words is lost."""
    seconds, whole, lines = run_script(
        "let seed = 1; const draw = () => (seed = (seed * 48271) % 2147483647);"
        "const text = () => Array.from({length: 300000}, () => 'w' + (draw() % 90000)).join(' ');"
        "const [a, b] = [text(), text()]; const begin = performance.now();"
        "const parts = diff.diffTexts(a, b); const seconds = (performance.now() - begin) / 1000;"
        "const line = (n) => `step ${n}: the sum\\n`; const many = Array.from({length: 9000}, (_, n) => line(n));"
        "const changed = many.map((text, n) => (n === 4000 ? line('changed') : text));"
        "const differ = (parts) => parts.filter((part) => part.kind !== 'same').map((part) => part.text);"
        "return [seconds, parts.filter((part) => part.kind !== 'b').map((part) => part.text).join('') === a,"
        " differ(diff.diffTexts(many.join(''), changed.join('')))];"
    )
    assert whole
    assert seconds < 5
    assert lines == ["4000", "changed"]


def test_a_bar_holds_the_answers_that_its_range_keeps(run_script: Script) -> None:
    """Also where values lie on the edge of two bars."""
    rng = random.Random(0)
    columns = [[rng.randint(0, most) for _ in range(60)] for most in (5, 24, 48, 100, 1000)]
    counted = run_script(
        "return given.map((values) => histogram.countBars(values, 24).map((bar) => ["
        "bar.count, values.filter((value) => value >= bar.least && value <= bar.most).length]));",
        columns,
    )
    assert [sum(count for count, _ in bars) for bars in counted] == [60] * 5
    assert all(count == kept for bars in counted for count, kept in bars)
