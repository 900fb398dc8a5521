"""`qed doctor`: a card and an object, whatever is broken; advice on threads; what fits, reckoned from peaks."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from qed import host
from qed.doctor import card, fit, hardware, surroundings, trial, tune
from qed.doctor.card import Card, Finding
from qed.doctor.fit import find_largest
from qed.doctor.trial import Lengths, Peak, TrialRequest, TrialResult
from qed.doctor.tune import ComputeMode, Seconds
from qed.errors import ModelError

MIB = 2**20


def test_the_card_and_the_object_tell_the_same(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All checks run, and none of them opens a connection."""

    def forbidden(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a check used the network")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, _ = run("doctor", "--json")
    told = json.loads(out)
    assert code == 0
    assert set(told) == {*card.CHECKS, "advice"}
    assert not [name for name in card.CHECKS if "failed" in told[name]]
    assert told["device"]["devices"][-1]["device"] == "cpu"
    assert "math" in told["attention"]["sdpa"]["float32"]
    assert told["versions"]["torch"]
    assert told["hub"]["offline"] is True
    code, out, _ = run("doctor")
    assert code == 0
    starts = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert starts == list(card.CHECKS)


@pytest.mark.parametrize("name", card.CHECKS)
def test_a_check_that_fails_is_a_line_and_the_others_go_on(
    run: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def broken() -> Finding:
        raise RuntimeError("driver\nmismatch")

    for module, room in (("hardware", hardware), ("surroundings", surroundings)):
        for other in (check for check, place in card.CHECKS.items() if place == module):
            monkeypatch.setattr(
                room, f"check_{other}", broken if other == name else lambda: Finding(("fine",), {"fine": True})
            )
    code, out, err = run("doctor")
    assert code == 0
    assert f"{name:<13}this check failed: RuntimeError: driver mismatch" in out
    assert out.count("fine") == len(card.CHECKS) - 1
    assert "Traceback" not in out + err


def test_torch_that_cannot_be_loaded_costs_only_its_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = card.import_module

    def loads(name: str) -> Any:
        if name.endswith("hardware"):
            raise ImportError("libcudart.so.13 is missing")
        return real(name)

    monkeypatch.setattr(card, "import_module", loads)
    told = card.run_checks().as_object()
    assert [name for name in card.CHECKS if "failed" in told[name]] == [
        "device",
        "dtypes",
        "attention",
        "products",
        "kernels",
    ]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, []),
        ({"OMP_NUM_THREADS": "2"}, []),
        ({"OMP_NUM_THREADS": "64"}, ["64 asks for more threads than the 2 cores"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["waiting threads spin"]),
        ({"GOMP_SPINCOUNT": "infinity"}, ["waiting threads spin"]),
        ({"GOMP_SPINCOUNT": "100"}, []),
        ({"OMP_WAIT_POLICY": "PASSIVE", "OMP_PROC_BIND": "close"}, ["OMP_PROC_BIND bind threads"]),
    ],
)
def test_settings_of_threads_that_hurt_are_named(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str], words: list[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told.get("OMP_NUM_THREADS", ""))
    advice = surroundings.find_harmful_settings(told, 2)
    assert len(advice) == len(words)
    for word, line in zip(words, advice, strict=True):
        assert word in line


@pytest.mark.parametrize(
    ("mode", "advice"),
    [("OFF", "MKL_CBWR is OFF: unset it"), (host.REPRODUCIBLE, "torch computed a product before")],
)
def test_products_that_depend_on_alignment_are_said(monkeypatch: pytest.MonkeyPatch, mode: str, advice: str) -> None:
    monkeypatch.setenv(host.MKL_MODE, mode)
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    for matters in (False, True):
        monkeypatch.setattr("qed.models.alignment.depends_on_alignment", lambda matters=matters: matters)
        found = hardware.check_products()
        assert found.facts == {"library": "MKL", "mkl_cbwr": mode, "alignment_matters": matters}
        assert [advice in line for line in found.advice] == [True] * matters


def test_a_busy_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "count_usable_cores", lambda: 4)
    for load, lines in ((0.5, 0), (3.0, 1)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert len([line for line in surroundings.check_threads().advice if "Other processes" in line]) == lines


def test_a_password_in_an_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_URL", "http://me:secret@host:8000/v1?key=secret")
    found = surroundings.check_vllm()
    assert found.facts["url"] == "http://host:8000"
    assert "secret" not in Card({"vllm": found}).text()
    monkeypatch.setenv("VLLM_URL", "host:8000")
    assert surroundings.check_vllm().advice


@pytest.mark.parametrize(("may_write", "compiled"), [(True, False), (False, True), (False, False)])
def test_starts_without_bytecode_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, may_write: bool, compiled: bool
) -> None:
    origin, cached = tmp_path / "torch" / "__init__.py", tmp_path / "torch.pyc"
    origin.parent.mkdir()
    cached.write_bytes(b"") if compiled else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=str(origin)))
    monkeypatch.setattr("importlib.util.cache_from_source", lambda path: str(cached))
    monkeypatch.setattr("sys.dont_write_bytecode", not may_write)
    advice = surroundings.check_versions().advice
    assert bool(advice) == (not may_write and not compiled)
    assert all("PYTHONDONTWRITEBYTECODE" in line and "uv sync --compile-bytecode" in line for line in advice)


def test_room_is_looked_for_where_a_folder_will_be(tmp_path: Path) -> None:
    assert surroundings.check_disk(tmp_path / "not" / "yet").facts["folder"] == str(tmp_path)


# What fits.

sizes = some.builds(
    lambda base, row, rows: [Peak(rows, int(base + row * rows)), Peak(2 * rows, int(base + 2 * row * rows))],
    base=some.floats(1, 1000).map(lambda many: many * MIB),
    row=some.floats(0.01, 100).map(lambda many: many * MIB),
    rows=some.integers(1, 512),
)


@given(peaks=sizes, budget=some.floats(1, 1e5))
def test_what_fits_is_on_the_line_and_one_row_more_is_not(peaks: list[Peak], budget: float) -> None:
    rows, along = find_largest(peaks, budget * MIB), fit.fit_line(peaks)
    slack = along.row * 0.01 + len(peaks) * MIB * 1e-3
    if rows:
        assert along.base + along.row * rows <= budget * MIB + slack
    assert along.base + along.row * (rows + 1) >= budget * MIB - slack


@given(
    taken=some.lists(some.integers(1, 10_000), min_size=1, max_size=6),
    ran_out=some.booleans(),
    budgets=some.tuples(some.floats(0, 1e6), some.floats(0, 1e6)),
)
def test_more_memory_never_gives_a_smaller_batch(taken: list[int], ran_out: bool, budgets: tuple[float, float]) -> None:
    """Whatever was measured, noise and all."""
    peaks = [Peak(1 << power, many * MIB) for power, many in enumerate(taken)]
    peaks += [Peak(1 << len(taken), None)] if ran_out else []
    less, more = (find_largest(peaks, budget * MIB) for budget in sorted(budgets))
    assert less <= more


def test_nothing_fits_where_even_one_row_ran_out() -> None:
    assert find_largest([Peak(1, None)], 1e12) == 0
    assert find_largest([Peak(1, 100 * MIB)], 50 * MIB) == 0
    assert find_largest([Peak(1, 100 * MIB), Peak(2, 100 * MIB)], 50 * MIB) == 0
    assert find_largest([Peak(1, 100 * MIB), Peak(2, None)], 1e12) == 1


def stand_in(monkeypatch: pytest.MonkeyPatch, row: int) -> list[TrialRequest]:
    """In place of the children: a machine of 8 GiB where a row takes so many MiB beside 100."""
    asked: list[TrialRequest] = []

    def measured(one: TrialRequest) -> TrialResult:
        asked.append(one)
        peaks = [Peak(rows, (100 + rows * row) * MIB) for rows in (64, 128)]
        return TrialResult("cpu", 8192 * MIB, {"sampler": peaks, "learner": peaks})

    monkeypatch.setattr(fit, "run_trial", measured)
    return asked


def test_what_is_printed_is_a_configuration(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = stand_in(monkeypatch, row=10)
    options = ["--lengths", "20,30", "--group", "4", "--memory", "1"]
    code, out, err = run("doctor", "--fit", "new:small", *options, "model.precision=bfloat16", "learner.lr=1e-7")
    assert code == 0
    assert [(one.prompt, one.answer) for one in asked] == [(20, 30)]
    assert "Measuring" in err
    told = yaml.safe_load(out)
    rows = int((0.9 * 1024 - 100) / 10)
    step = 4 * 16
    assert told["learner.tokens_per_microbatch"] == min(rows, step) * 49
    assert told["sampling.rows_per_batch"] == min(rows, step)
    assert f"up to {rows} rows at once" in out
    Path("fits.yaml").write_text(out, encoding="utf-8")
    code, shown, _ = run("config", "show", "grpo", "fits.yaml", "--json")
    assert code == 0
    settings = {key: found["value"] for key, found in json.loads(shown).items()}
    assert settings["model.name"] == "new:small"
    assert settings["model.precision"] == "bfloat16"
    assert settings["learner.lr"] == 1e-7
    assert (settings["sampling.group_size"], settings["sampling.max_tokens"]) == (4, 30)


def test_a_limit_above_what_there_is_does_not_count(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, row=10)
    found = [
        json.loads(run("doctor", "--fit", "new:small", "--lengths", "20,30", "--memory", memory, "--json")[1])
        for memory in ("8", "1000")
    ]
    assert found[0] == found[1]
    assert found[0]["learner"]["rows"] == int((0.9 * 8192 - 100) / 10)


def test_what_does_not_fit_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, row=10)
    code, out, err = run("doctor", "--fit", "new:small", "--lengths", "20,30", "--memory", "0.05")
    assert (code, out) == (ModelError.exit_code, "")
    assert "Not even one row of 20 + 30 tokens fits 0.05 GiB" in err
    assert "--lengths" in err


def child(monkeypatch: pytest.MonkeyPatch, code: int, *lines: dict[str, Any]) -> None:
    """In place of the process that measures: what it writes, and how it ends."""
    out = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.CompletedProcess([], code, out, "Traceback\nImportError: no such thing")
    monkeypatch.setattr(trial.subprocess, "run", lambda *arguments, **options: done)


def test_the_complaint_of_the_process_that_measures_is_the_commands_own(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(monkeypatch, 0, {"error": "The model x cannot be loaded.", "code": 3})
    code, _, err = run("doctor", "--fit", "x", "--lengths", "20,30")
    assert (code, err.splitlines()[-1]) == (3, "error: The model x cannot be loaded.")
    child(monkeypatch, 1)
    code, _, err = run("doctor", "--fit", "x", "--lengths", "20,30")
    assert code == 1
    assert "ended with 1: Traceback ImportError: no such thing" in err


def test_a_process_that_the_system_ends_has_run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = [{"sampler": {"rows": rows, "bytes": 10 * rows}} for rows in (1, 2)]
    child(monkeypatch, -9, {"device": "cpu", "room": 99}, *peaks, {"learner": {"rows": 1, "bytes": 50}})
    found = trial.run_trial(TrialRequest((), 20, 30)).peaks
    assert found == {"sampler": [Peak(1, 10), Peak(2, 20)], "learner": [Peak(1, 50), Peak(2, None)]}
    child(monkeypatch, -9, {"device": "cpu", "room": 99}, peaks[0])
    found = trial.run_trial(TrialRequest((), 20, 30)).peaks
    assert found == {"sampler": [Peak(1, 10), Peak(2, None)], "learner": [Peak(1, None)]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fit", "new:tiny"], "--lengths takes"),
        (["--fit", "new:tiny", "--lengths", "20"], "--lengths takes"),
        (["--fit", "new:tiny", "--lengths", "20,-3"], "--lengths takes"),
        (["--fit", "new:tiny", "--lengths", "20,0"], "--lengths takes"),
        (["--fit", "new:tiny", "--lengths", "20,30", "--memory", "-1"], "--memory"),
        (["--fit", "new:tiny", "--lengths", "20,30", "sampling.max_tokens=64"], "sampling.max_tokens=64 is given too"),
        (["--tune", "new:tiny", "max_tokens=64"], "the default --lengths makes sampling.max_tokens 32"),
        (["--tune", "new:tiny", "--group", "4", "sampling.group_size=8"], "--group makes sampling.group_size 4"),
        (["--fit", "--tune"], "Give one of them"),
        (["--fits"], "did you mean '--fit'"),
        (["new:tiny"], "--fit or --tune"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Any, arguments: list[str], words: str) -> None:
    code, out, err = run("doctor", *arguments)
    assert (code, out) == (2, "")
    assert words.lower() in err.lower()


# What is fastest.


def timed(**steps: float) -> dict[ComputeMode, list[Seconds]]:
    """Rounds of ways that are named like highest1 or medium2."""
    return {ComputeMode(int(name[-1]), name[:-1]): [Seconds(step, 0.0)] * 3 for name, step in steps.items()}


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ({"highest1": 1.0, "highest2": 0.97, "medium1": 1.2, "medium2": 1.1}, ComputeMode(1, "highest")),
        ({"highest1": 1.0, "highest2": 0.7, "medium1": 0.9, "medium2": 0.69}, ComputeMode(2, "highest")),
        ({"highest1": 1.0, "highest2": 0.7, "medium1": 0.9, "medium2": 0.5}, ComputeMode(2, "medium")),
        ({"highest1": 1.0, "medium1": 0.5}, ComputeMode(1, "medium")),
    ],
)
def test_another_way_is_proposed_only_where_it_is_clearly_faster(
    rounds: dict[str, float], expected: ComputeMode
) -> None:
    assert tune.choose_mode(timed(**rounds), ComputeMode(1, "highest")) == expected


def test_every_count_of_threads_up_to_the_cores_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "count_usable_cores", lambda: 6)
    monkeypatch.setattr(host, "choose_threads", lambda: 3)
    assert sorted({way.threads for way in tune.list_modes("cpu")}) == [1, 2, 3, 4, 6]
    assert {way.threads for way in tune.list_modes("cuda")} == {3}


def test_a_row_is_counted_as_the_learner_counts_it() -> None:
    assert Lengths(20, 30).row == 49
