"""What makes the table of speeds, guards them and draws how they grow, on made-up figures."""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import commands
import learner
import pytest
from guard_parts import commits
from guard_parts.verdict import FASTER, SAME, SLOWER, UNKNOWN, judge
from results import print_result
from speed_parts import load, places, sft_plain
from speed_parts.command import Command
from speed_parts.growth_figure import Panel, draw_growth, fit_slope
from table_parts import page, runner
from table_parts.rows import ROWS, SECONDS, Figure, Row

from qed.models.shapes import KNOWN

QUIET = {"others": 0.01, "load": 0.2, "busy": False}
PYTHONS = {"vllm": "", "lm_eval": sys.executable}
# The function of each script that reads its arguments.
READERS = {"step": "_asked", "sampler": "_asked", "learner": "_asked", "sft": "_asked", "commands": "_parse"}


def make_table(folder: Path, results: Sequence[dict[str, Any]]) -> Any:
    """A table whose rows are not measured: each takes the next of the results."""
    table = runner.Table(folder / "state.json", {}, PYTHONS, folder)
    left = iter(results)
    table._run = lambda name, command: next(left)  # type: ignore[method-assign]
    return table


def measured(**figures: Any) -> dict[str, Any]:
    return {"status": "measured", "seconds": 1.0, "command": "x", "result": {"load": QUIET, **figures}}


ONE = Row("one", "a row", "step.py", (Figure("processor time", "ratio", 5),), "--rounds 2")


def test_rows_have_names_of_their_own_and_read_figures_with_goals() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.figures for row in ROWS)
    goals = {row.name: row.figures[0].goal for row in ROWS if row.figures[0].goal is not None}
    assert {"step-tiny": 5, "sampler-large-even": 1.5, "grade": 40_000, "quickstart": 90}.items() <= goals.items()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("quick", [False, True])
def test_the_scripts_know_the_arguments_of_rows(row: Row, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    command = runner.Table(Path("none"), {}, PYTHONS, Path("place")).build_command(row, quick)
    script = command[0].removesuffix(".py")
    module = importlib.import_module(script)
    monkeypatch.setattr(sys, "argv", [*command, "--json", "x.json"])
    asked = getattr(module, READERS[script])() if script in READERS else module._parser().parse_args()
    assert asked.json == Path("x.json")
    if script in ("step", "sampler", "learner", "sft"):
        places.find_size(asked.model)


def test_the_half_billion_has_the_published_shape() -> None:
    size, inner = places.find_size("new:qwen2.5-0.5b")
    known = KNOWN["Qwen/Qwen2.5-0.5B"]
    assert (size.layers, size.width, inner) == (known.layers, known.width, known.inner)
    assert (size.heads, size.kv_heads, size.vocabulary) == (known.heads, known.kv_heads, known.vocabulary)
    assert places.find_size("new:tiny@9000")[0].vocabulary == 9000


def test_less_is_better_for_seconds_only() -> None:
    assert Figure("", "", 5).is_reached(6)
    assert not Figure("", "", 5).is_reached(4)
    assert Figure("", "", 5, SECONDS).is_reached(4)
    assert not Figure("", "", 5, SECONDS).is_reached(6)
    assert Figure("", "").is_reached(4) is Figure("", "", 5).is_reached(None) is None


def test_a_table_names_goals_and_a_busy_machine() -> None:
    found = measured(ratio=5.5, ours={"cpu": 1.0}, rival={"cpu": 5.5})
    quiet = page.sum_up_row(ONE, found)
    assert quiet["figures"][0] == {"label": "processor time", "value": 5.5, "goal": 5, "reached": True, "unit": "times"}
    busy = {**quiet, "load": {"others": 1.2, "load": 3.0, "busy": True}}
    unknown = {**quiet, "load": {"others": None, "load": None, "busy": None}}
    skipped = page.sum_up_row(ONE, {"status": "skipped", "reason": "no rival"})
    *_, first, second, third, last = page.render_table([quiet, busy, unknown, skipped]).splitlines()
    assert "| 5.00 | 5.50 ✓ | 1.000, 5.500 |" in first
    assert "(busy)" not in first
    assert "5.50 ✓ (busy)" in second
    assert "others took 1.20 cores" in second
    assert "not known" in third
    assert "skipped: no rival" in last


def test_rows_that_are_done_are_kept(tmp_path: Path) -> None:
    failed = {"status": "failed", "reason": "no"}
    table = make_table(tmp_path, [failed, measured(ratio=1), measured(ratio=2), measured(ratio=3)])
    assert table.measure(ONE, True)["status"] == "failed"
    assert table.measure(ONE, True)["result"]["ratio"] == 1, "what failed is measured again"
    assert table.measure(ONE, True)["kept"]
    assert table.measure(ONE, False)["result"]["ratio"] == 2, "other arguments"
    assert make_table(tmp_path, []).measure(ONE, False)["result"]["ratio"] == 2, "another process goes on"
    table.forget(["one"])
    assert table.measure(ONE, False)["result"]["ratio"] == 3


def test_a_row_is_measured_again_where_a_file_that_it_needs_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "HERE", tmp_path / "benchmarks")
    (tmp_path / "data").mkdir()
    (tmp_path / "qed").mkdir()
    file, kernel = tmp_path / "data" / "rows.jsonl", tmp_path / "qed" / "kernel.cpp"
    row = Row("one", "a row", "step.py", ONE.figures, "", needs=("data/rows.jsonl",))
    file.write_text("one")
    kernel.write_text("int one;")
    table = make_table(tmp_path, [measured(ratio=1), measured(ratio=2)])
    assert [table.measure(row, True)["result"]["ratio"] for _ in range(2)] == [1, 1]
    file.write_text("two")
    assert table.measure(row, True)["result"]["ratio"] == 2
    kernel.write_text("int two;")
    assert make_table(tmp_path, [measured(ratio=3)]).measure(row, True)["result"]["ratio"] == 3


def test_tests_that_are_not_found_are_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command([sys.executable, "-c", "raise SystemExit(5)"], folder=tmp_path, codes=(0,))
    with pytest.raises(SystemExit, match="exit code 5"):
        command.round()
    monkeypatch.setattr(sys, "argv", ["commands.py"])
    assert commands._build("tests", tmp_path, commands._parse()).codes == (0,)


@pytest.mark.parametrize("options", [["--sides", "qed,tlr"], ["--micro", "3"], ["--rounds", "0"], ["--set", "x"]])
def test_an_update_is_measured_on_all_sides_and_rows_that_are_named(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["learner.py", *options])
    with pytest.raises(SystemExit):
        learner._asked()


def test_a_row_is_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(quick: bool = False, **more: Any) -> str:
        return runner.find_obstacle(Row("x", "", "step.py", (), **more), quick, PYTHONS)

    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    assert told() == ""
    assert "--full" in told(quick=True)
    assert "TRL is not installed" in told(needs=("trl",))
    assert "no/such/file" in told(needs=("no/such/file",))
    assert "GiB" in told(memory=10**6)


def test_other_processes_are_what_the_machine_did_besides_us(tmp_path: Path) -> None:
    def write(machine: int, own: int, child: int) -> None:
        (tmp_path / "stat").write_text(f"cpu {machine} 0 0 999 0 0 0 0 0 0\n")
        for number, parent, ticks in ((os.getpid(), 1, own), (999_999, os.getpid(), child), (999_998, 1, 10**6)):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            fields = " ".join(["S", str(parent), *["0"] * 9, str(ticks), "0", "0", "0"])
            (tmp_path / str(number) / "stat").write_text(f"{number} (a b) {fields}\n")

    second = round(1 / load.TICK)
    write(0 + second, 0, 0)
    watch = load.Watch(tmp_path)
    write(5 * second, second, 2 * second)
    lap = watch.lap()
    assert lap["others"] * lap["elapsed"] == pytest.approx(1.0)
    assert load.Watch(tmp_path / "none").lap()["others"] is None


def test_a_busy_machine_is_one_on_which_others_work() -> None:
    laps = [{"others": others, "load": 1.0, "elapsed": elapsed} for others, elapsed in ((0.0, 9.0), (1.0, 1.0))]
    assert load.sum_up(laps) == {"others": pytest.approx(0.1), "load": 1.0, "busy": False}
    assert load.sum_up([*laps, laps[1]])["busy"]
    assert load.describe_load(load.sum_up(laps)) == ""
    assert "busy" in load.describe_load(load.sum_up(laps[1:]))
    assert load.sum_up([])["busy"] is load.sum_up([*laps, {**laps[0], "others": None}])["busy"] is None


def make_pairs(ratio: float, noise: float, starts: int = 3, rounds: int = 5) -> list[list[tuple[float, float]]]:
    """Costs of both sides, head over base, with log-normal noise."""
    chance = random.Random(0)
    return [
        [(chance.lognormvariate(0, noise), ratio * chance.lognormvariate(0, noise)) for _ in range(rounds)]
        for _ in range(starts)
    ]


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [(1.0, 0.02, SAME), (1.03, 0.005, SAME), (1.1, 0.02, SLOWER), (0.8, 0.02, FASTER), (1.1, 0.5, SAME)],
)
def test_a_guard_names_what_noise_does_not_explain(ratio: float, noise: float, verdict: str) -> None:
    found = judge(make_pairs(ratio, noise))
    assert found["verdict"] == verdict
    assert found["low"] <= found["ratio"] <= found["high"]
    assert found["pairs"] == 15


def test_a_guard_knows_that_a_process_has_a_speed_of_its_own() -> None:
    steady = [[(1.0, 0.99)] * 5, [(1.0, 1.0)] * 5, [(1.0, 1.3)] * 5]
    assert judge(steady)["verdict"] == SAME, "one start in three is slow in all of its rounds"
    assert judge(make_pairs(2.0, 0.01, 1, 4))["verdict"] == UNKNOWN
    assert judge(make_pairs(1.1, 0.01), limit=1.2)["verdict"] == SAME


def test_a_guard_measures_the_commit_that_it_is_told(tmp_path: Path) -> None:
    with commits.check_out(commits.HERE, tmp_path / "x") as (_, folder):
        Command(["true"], source=folder)
        assert (folder / "qed").is_dir()
    with pytest.raises(SystemExit, match="would be imported from"):
        Command(["true"], source=tmp_path)
    with pytest.raises(SystemExit, match="rev-parse"), commits.check_out("no-such-commit", tmp_path / "y"):
        pass


def test_a_guard_compiles_both_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Path] = []
    monkeypatch.setattr(commits.compileall, "compile_dir", lambda folder, quiet: compiled.append(folder))
    for commit in (commits.HERE, "HEAD"):
        with commits.check_out(commit, tmp_path / "tree") as (_, folder):
            assert compiled.pop() == folder / "qed"


def test_slopes_are_those_of_powers() -> None:
    points = [(x, 3 * x**0.5) for x in (1.0, 4.0, 100.0)]
    assert fit_slope(points) == (pytest.approx(0.5), pytest.approx(3))
    figure = draw_growth([Panel("Batch & more", "answers", {"sampling": points, "update": [(1, 1), (10, 10)]})] * 3)
    ElementTree.fromstring(figure)
    assert figure.count("sampling: slope 0.50") == 3


def test_the_plain_loop_packs_rows_that_see_themselves_alone() -> None:
    none = sft_plain.NO_LABEL
    ids, labels, positions, mask = sft_plain._collate([[([5, 6, 7], [none, 6, 7]), ([8, 9], [none, 9])]], 6)
    assert ids.tolist() == [[5, 6, 7, 8, 9, 0]]
    assert labels.tolist() == [[6, 7, none, 9, none, none]]
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0]]
    assert mask[0, 0, 3].tolist() == [False, False, False, True, False, False]
    assert mask[0, 0, 2].tolist() == [True, True, True, False, False, False]


def test_the_last_line_is_in_the_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"place": tmp_path}, tmp_path / "deep" / "x.json")
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "deep" / "x.json").read_text("utf-8"))
