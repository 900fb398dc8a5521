"""With `evaluation.sampler` evaluations are made on a server of their own while training goes on: the same ones.

Here the server is a copy of the model in this process, whose sampler is the native one. It holds every evaluation back
until the next one is asked for, or until training waits for it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import by_chance, forked

from qed.cli.main import main
from qed.errors import QedError
from qed.guards.watchdog import list_children
from qed.loops import background_evaluator, evaluation_servers
from qed.models import load
from qed.models.precision import read_precision
from qed.runs import manifest
from qed.runs.run import read_lines
from qed.sampling import native

STEPS = 6
BASE = ["sft", "--model", "new:tiny", "--steps", STEPS, "--lr", 3e-3, "--learner.batch_size", 4, "--run.threads", 1]
BASE += ["--sampling.max_tokens", 6, "--evaluation.problems", 4, "--evaluation.every", 1, "--run.preflight", "false"]
BASE += ["--data.validation_split", 0.3]
BESIDE = ["--evaluation.sampler", "native"]
KEPT = ["--run.save_every", 3, "--run.keep_last", 1]
ASYNC = ["--run.save_async", "true"]
Qed = Callable[..., Any]
START = evaluation_servers.start_servers


class Copy:
    """Stands in for a server: see the module."""

    fails: frozenset[int] = frozenset()  # the steps whose weights it refuses

    def __init__(self, setup: Any, settings: Any) -> None:
        self.model = copy.deepcopy(setup.model)
        ends = load.find_end_ids(setup.model, setup.tokenizer, setup.materials[-1].template.leaf.CHAT)
        rows = settings.sampling.rows_per_batch
        self.sampler = native.make(self.model, setup.tokenizer, ends, rows, read_precision(settings.model))
        self.released: dict[int, threading.Event] = {}
        self.closed = False

    def prepare(self, model: Any, version: int) -> Callable[[], None]:
        self.release()
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.released[version] = threading.Event()

        def take() -> None:
            assert self.released[version].wait(60)
            if self.closed or version in self.fails:
                raise QedError("its weights are refused.")
            self.model.load_state_dict(weights)
            self.sampler.load(self.model, version)

        return take

    def release(self) -> None:
        for event in self.released.values():
            event.set()

    def close(self) -> None:
        self.closed = True
        self.release()


@pytest.fixture(autouse=True)
def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations beside training have a copy as server, and chance judges all."""
    made: list[Copy] = []

    def start(setup: Any, settings: Any) -> Copy:
        made.append(Copy(setup, settings))
        return made[-1]

    real = background_evaluator.BackgroundEvaluator.collect

    def collect(self: Any, most: int = 2) -> Any:
        if made and len(self.steps) > most:
            made[-1].release()
        return real(self, most)

    monkeypatch.setattr(background_evaluator.BackgroundEvaluator, "collect", collect)
    monkeypatch.setattr(evaluation_servers, "start_servers", start)
    monkeypatch.setattr("qed.loops.evaluate.grade", by_chance)


def figures(run: Path) -> dict[int, dict[str, Any]]:
    """The rows of evaluations by step, without their seconds."""
    rows = [row for row in read_lines(run / "metrics.jsonl") if "time/evaluate" in row]
    found = {row["step"]: {name: value for name, value in row.items() if not name.startswith("time/")} for row in rows}
    assert len(found) == len(rows), "one row for each evaluation"
    return found


def assert_evaluated_alike(one: Path, other: Path) -> None:
    """The same evaluations under the same steps, the same checkpoints, and the same best one."""
    names = sorted(path.relative_to(one) for path in one.glob("eval/*/*"))
    assert names == sorted(path.relative_to(other) for path in other.glob("eval/*/*"))
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert figures(one) == figures(other)
    assert manifest.list_checkpoints(one).keys() == manifest.list_checkpoints(other).keys()
    for pointer in ("LATEST", "BEST"):
        assert manifest.read_pointer(one, pointer) == manifest.read_pointer(other, pointer)
    for folder in manifest.list_checkpoints(other).values():
        assert not manifest.list_damage(folder)


MORE = [(), KEPT, ("--run.keep_last", 2)]


@pytest.mark.parametrize("more", [(*KEPT, *ASYNC), *(pytest.param(more, marks=pytest.mark.faults) for more in MORE)])
def test_evaluations_beside_training_are_those_of_training_itself(
    uncut: Callable[[list[Any]], Path], more: tuple[Any, ...]
) -> None:
    expected, run = uncut([*BASE, *more]), uncut([*BASE, *more, *BESIDE])
    assert_evaluated_alike(expected, run)
    rows = [row["step"] for row in read_lines(run / "metrics.jsonl")]
    assert rows != sorted(rows), "training went on meanwhile"
    assert manifest.read_pointer(run, "BEST") not in (None, STEPS), "the best step is one in between"
    assert len(figures(run)) == STEPS + 1


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["sigterm", "kill"])
def test_an_evaluation_that_is_cut_off_is_made_again(
    uncut: Callable[[list[Any]], Path], tmp_path: Path, fault: str
) -> None:
    """Two are under way, and both steps have checkpoints because they might be the best."""
    arguments, run, log = [*BASE, *KEPT], tmp_path / "run", tmp_path / "log"
    code, said = forked([*arguments, *BESIDE, "--out", run], log, f"update:{fault}:5")
    assert code == {"sigterm": 143, "kill": -9}[fault], said
    assert "Traceback" not in said
    assert len(figures(run)) < len(manifest.list_checkpoints(run)) + 4
    code, said = forked([*arguments, *BESIDE, "--out", run, "--resume"], log)
    assert code == 0, said
    assert_evaluated_alike(uncut(arguments), run)


def test_an_evaluation_that_fails_is_missed_with_a_warning(
    qed: Qed, uncut: Callable[[list[Any]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a phase the learner's process makes it instead."""
    monkeypatch.setattr(Copy, "fails", frozenset({2, STEPS}))
    run = tmp_path / "run"
    done = qed(*BASE, *BESIDE, "--out", run)
    assert done.code == 0, done.err
    assert "Warning: step 2 has no evaluation: its weights are refused." in done.out
    events = [row for row in read_lines(run / "events.jsonl") if row["event"] == "evaluation_missed"]
    assert [row["step"] for row in events] == [2, STEPS]
    expected = figures(uncut(BASE))
    assert figures(run) == {step: row for step, row in expected.items() if step != 2}
    last = f"eval/step_{STEPS:06d}/validation.jsonl"
    assert (run / last).read_bytes() == (uncut(BASE) / last).read_bytes()


def test_without_a_validation_part_a_cut_off_evaluation_is_missed(tmp_path: Path) -> None:
    """Nothing has saved its step, so its weights are gone; the run says so and goes on."""
    arguments, run, log = [*BASE[:-2], "--run.save_every", 3], tmp_path / "run", tmp_path / "log"
    code, said = forked([*arguments, *BESIDE, "--out", run], log, "update:kill:4")
    assert code == -9, said
    assert list(manifest.list_checkpoints(run)) == [3]
    code, said = forked([*arguments, *BESIDE, "--out", run, "--resume"], log)
    assert code == 0, said
    assert "Warning: step 2 has no evaluation: the run was stopped during it" in said
    assert sorted(figures(run)) == [step for step in range(STEPS + 1) if step != 2]


def test_settings_of_the_servers(tmp_path: Path, qed: Qed) -> None:
    done = qed(*BASE, "--evaluation.sampler", "server", "--out", tmp_path / "run")
    assert (done.code, "evaluation.url" in done.err) == (2, True)


@pytest.mark.faults
def test_a_server_in_processes_of_its_own_evaluates_alike(
    uncut: Callable[[list[Any]], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`qed serve`, started by the run and given its weights by folder; none of its processes outlives the run."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(evaluation_servers, "start_servers", START)
    arguments = [*BASE, *KEPT, "--seed", 1]  # of all problems, as slow tests are
    expected, run = uncut(arguments), tmp_path / "run"
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in [*arguments, *BESIDE, "--out", run]])
    assert not left.value.code
    assert_evaluated_alike(expected, run)
    assert not [child for child in list_children() if "serve" in str(child["command"])]
