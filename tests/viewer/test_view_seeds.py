"""What the scripts of the comparing pages compute, run by node: seeds as one curve, differences, names of answers."""

from __future__ import annotations

from typing import Any

import pytest
from node_scripts import Script, needs_node, prepare_modules

from qed.report.numbers import format_p_value

pytestmark = needs_node
MODULES = {"seeds": "views/seeds.js", "visits": "views/visits.js", "figures": "views/figures.js"}


def _settings(**values: object) -> list[dict[str, object]]:
    return [{"key": f"run.{name}", "value": value} for name, value in values.items()]


RUNS: list[dict[str, Any]] = [
    {"key": "a", "settings": _settings(seed=0, save_every=5, out="a")},
    {"key": "slow", "settings": _settings(seed=0, save_every=50)},
    {"key": "b", "settings": _settings(save_every=5, seed=1, out="b")},
    {"key": "bare", "settings": []},
    {"key": "empty", "settings": []},
]


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Returns the value of an expression over `given` and the modules."""
    return prepare_modules(tmp_path_factory.mktemp("research"), MODULES)


def test_runs_that_differ_in_their_seed_alone_are_one_group(compute: Script) -> None:
    """The order of settings and the folder do not matter; a run without settings stands alone."""
    groups = compute("seeds.groupSeeds(given)", RUNS)
    assert [group["members"] for group in groups] == [["a", "b"], ["slow"], ["bare"], ["empty"]]
    assert groups[0]["seeds"] == [0, 1]
    assert groups[0]["label"] == "a and 1 more seed"
    alone = compute("seeds.groupSeeds(given, { alone: true })", RUNS)
    assert [group["members"] for group in alone] == [[run["key"]] for run in RUNS]


def test_seeds_merge_into_their_mean_with_a_band(compute: Script) -> None:
    """A point where one run has no value is the mean of the others."""
    curves = [[[1, 0.0], [2, 1.0], [3, None]], [[2, 3.0], [1, 1.0]], [[1, 2.0], [3, 5.0]]]
    merged = compute("seeds.mergeCurves(given)", curves)
    assert merged["points"] == [[1, 1.0], [2, 2.0], [3, 5.0]]
    assert merged["band"] == [[1, 0.0, 2.0], [2, 1.0, 3.0], [3, 5.0, 5.0]]
    assert compute("seeds.mergeCurves([[], []])") == {"points": [], "band": []}


def test_smoothing_keeps_the_ends(compute: Script) -> None:
    """The window is cut at the ends, and gaps are left out."""
    points = [[0, 0], [1, 3], [2, None], [3, 6], [4, 9]]
    assert compute("seeds.smoothCurve(given, 3)", points) == [[0, 1.5], [1, 3], [3, 6], [4, 7.5]]
    assert compute("seeds.smoothCurve(given, 0)", points) == points


def test_settings_that_differ_are_listed_once(compute: Script) -> None:
    """Null where a run lacks one."""
    found = compute("seeds.listDifferences(given)", RUNS[:3])
    assert found == [
        {"key": "run.seed", "values": [0, 0, 1]},
        {"key": "run.save_every", "values": [5, 50, 5]},
        {"key": "run.out", "values": ["a", None, "b"]},
    ]


def test_names_of_answers_survive_the_address(compute: Script) -> None:
    """Also where the name of a task has colons; a name of no visit is none."""
    known = [{"step": 3, "group": 1}, {"step": 3, "group": 1, "task": "maths:hard:1", "decoding": "sampled"}]
    names = compute("given.map((visit) => visits.writeAnswer(visit, 7))", known)
    assert names == ["3:1:7", "3:1:7:sampled:maths:hard:1"]
    read = compute("given.names.map((name) => visits.readAnswer(given.known, name))", {"names": names, "known": known})
    assert read == [{"visit": visit, "answer": 7} for visit in known]
    wrong = ["", "3", "3:2:7", "3:1:x", "3:1:7:greedy:maths"]
    read = compute("given.names.map((name) => visits.readAnswer(given.known, name))", {"names": wrong, "known": known})
    assert read == [None] * len(wrong)


def test_visits_are_in_the_order_of_time(compute: Script) -> None:
    """The evaluation of a step comes before its training, as a run does them."""
    training = [{"step": 4, "group": 0}, {"step": 2, "group": 3}]
    evaluations = [{"step": 4, "group": 9, "task": "maths", "decoding": "greedy"}]
    listed = compute("visits.listVisits(given)", {"training": training, "evaluations": evaluations})
    assert [(visit["step"], visit.get("task")) for visit in listed] == [(2, None), (4, "maths"), (4, None)]


def test_chances_read_as_in_the_report(compute: Script) -> None:
    """The same words and signs as the report's."""
    values = [1.0, 0.5, 0.0123, 0.001, 0.00099, 3e-8, 4.2e-120, 0.0]
    assert compute("given.map(figures.formatP)", values) == [format_p_value(value) for value in values]
