"""`--ranks`: how it is spelled, what refuses it, and what starts the ranks instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from qed.cli import training
from qed.cluster import environment
from qed.cluster.environment import describe_separate_tasks, map_slurm, must_launch, read_world
from qed.config.arguments import drop_flags
from qed.config.resolve import resolve_settings
from qed.config.sweep import list_points
from qed.errors import UsageError

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]

pytestmark = pytest.mark.usefixtures("elsewhere", "alone")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank of anything."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int]]:
    """The commands that would have been started, and their numbers of ranks."""
    started: list[tuple[list[str], int]] = []
    monkeypatch.setattr(training, "run_ranks", lambda command, ranks: started.append((command, ranks)) or 0)
    monkeypatch.setattr("qed.cluster.sweep.run_ranks", lambda command, ranks, stdout: _answer(started, command, stdout))
    return started


def _answer(started: list[tuple[list[str], int]], command: list[str], stdout: Any) -> int:
    started.append((command, 2))
    stdout.write(b'progress\n{"run": "here", "steps": 3}\n')
    return 0


@pytest.mark.parametrize("given", [["--ranks", "2"], ["--ranks=2"], ["--ranks", "7", "--ranks=2"]])
def test_ranks_are_started_with_the_same_command(run: Run, launched: list[Any], given: list[str]) -> None:
    assert run("grpo", "--steps", "3", *given, "seed=4")[0] == 0
    ((command, ranks),) = launched
    assert ranks == 2
    assert command[-6:] == ["-m", "qed", "grpo", "--steps", "3", "seed=4"]


def test_the_launcher_is_light() -> None:
    """It lives as long as the run, beside ranks that need the memory."""
    code = (
        "import sys\nfrom qed.cli import main, training\ntraining.run_ranks = lambda *_: 0\n"
        "try:\n    main.main(['grpo', '--ranks', '2'])\nexcept SystemExit as left:\n    assert not left.code\n"
        "print({'torch', 'transformers', 'numpy', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_one_rank_is_this_process(run: Run, recipes: Any, launched: list[Any]) -> None:
    assert run("grpo", "--ranks", "1")[0] == 0
    assert len(recipes.calls) == 1
    assert not launched


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", "²", ""])
def test_a_number_of_ranks_that_is_none(error: Refused, count: str) -> None:
    assert "--ranks" in error("grpo", f"--ranks={count}")


def test_a_mistake_starts_nothing(run: Run, launched: list[Any]) -> None:
    code, _, err = run("grpo", "--ranks", "2", "--learner.lr", "fast")
    assert code == 2
    assert "learner.lr" in err
    code, _, err = run("grpo", "--ranks", "2", "--requeue")
    assert code == 2
    assert "--out" in err
    code, _, err = run("quickstart", "--ranks", "2")
    assert code == 2
    assert "one process" in err
    assert run("grpo", "--ranks", "2", "--help")[0] == 0
    assert not launched


def test_a_sweep_runs_each_point_with_ranks(run: Run, launched: list[Any]) -> None:
    code, out, _ = run("grpo", "--ranks", "2", "--sweep", "seed=0,1", "--out", "s", "--steps", "3")
    assert code == 0
    ends = [command[command.index("grpo") :] for command, _ in launched]
    assert ends == [
        ["grpo", "--out", "s", "--steps", "3", f"run.seed={seed}", f"run.out=s/seed={seed}", "--json"]
        for seed in (0, 1)
    ]
    assert out.splitlines()[1].split() == ["0", "3", "s/seed=0"]


def test_a_point_that_fails_is_a_failure_of_the_sweep(
    run: Run, monkeypatch: pytest.MonkeyPatch, launched: list[Any]
) -> None:
    monkeypatch.setattr("qed.cluster.sweep.run_ranks", lambda *_, stdout: 4)
    code, out, err = run("grpo", "--ranks", "2", "--sweep", "seed=0,1", "--out", "s")
    assert code == 1
    assert out.count("(failed)") == 2
    assert "exit code 4" in err
    monkeypatch.setattr("qed.cluster.sweep.run_ranks", lambda *_, stdout: 143)
    assert run("grpo", "--ranks", "2", "--sweep", "seed=0,1", "--out", "s")[0] == 143


@pytest.mark.parametrize("sweep", [["--sweep", "seed=0,1"], ["--sweep", "learner.lr=1e-3", "--sweep=run.threads=1,2"]])
def test_the_arguments_of_a_point_mean_the_point(sweep: list[str]) -> None:
    for point in list_points("grpo", ["--out", "s", "--ranks", "2", *sweep, "--steps", "3"]):
        assert resolve_settings("grpo", point.arguments).settings == point.resolved.settings


def test_flags_are_dropped_with_their_values() -> None:
    line = ["--ranks", "2", "a.yaml", "--sweep=seed=1,2", "--allow-change", "lr", "--fast", "seed=1", "--lr", "1"]
    assert drop_flags(line, "ranks", "sweep") == line[2:3] + line[4:]
    assert drop_flags(line, "allow_change", "fast") == [*line[:4], *line[7:]]


# Other launchers


def test_ranks_that_torchrun_has_started_start_no_others(
    run: Run, recipes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("grpo", "--ranks", "2", "--json") == (0, "", "")
    assert len(recipes.calls) == 1, "and rank 0 alone prints the result"
    code, _, err = run("grpo", "--ranks", "3")
    assert code == 2
    assert "one of 2" in err
    assert not must_launch(1)
    code, _, err = run("quickstart")
    assert (code, "Start it without the launcher" in err, len(recipes.calls)) == (2, True, 1)


@pytest.mark.parametrize(("rank", "world"), [("2", "2"), ("-1", "2"), ("0", "0"), ("x", "2")])
def test_an_environment_that_contradicts_itself(rank: str, world: str) -> None:
    with pytest.raises(UsageError, match="WORLD_SIZE"):
        read_world({"RANK": rank, "WORLD_SIZE": world})


SLURM = {
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "MASTER_ADDR": "node-1",
}


def test_a_task_of_srun_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "share_cores", lambda ranks: 10 * ranks)
    assert map_slurm(SLURM) == {
        "RANK": "9",
        "WORLD_SIZE": "11",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "2",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "30",
    }
    more = map_slurm({**SLURM, "MASTER_PORT": "5", "SLURM_CPUS_PER_TASK": "6"})
    assert more["OMP_NUM_THREADS"] == "6"
    assert "MASTER_PORT" not in more


def test_tasks_of_srun_without_an_address_are_said_to_be_runs_of_their_own(
    run: Run, recipes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SLURM, "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR")
    code, _, err = run("grpo", "--steps", "3")
    assert (code, len(recipes.calls)) == (0, 1)
    assert "srun has started 11 tasks, and each trains by itself" in err
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert run("grpo", "--steps", "3")[2] == ""
    assert describe_separate_tasks({**SLURM, "SLURM_PROCID": "0"}) == ""


@pytest.mark.parametrize("change", [{"RANK": "0"}, {"MASTER_ADDR": None}, {"SLURM_STEP_NUM_TASKS": "1"}])
def test_other_processes_of_slurm_are_none(change: dict[str, str | None]) -> None:
    changed = {**SLURM, **change}
    assert map_slurm({name: value for name, value in changed.items() if value is not None}) == {}


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, threads: int) -> None:
    monkeypatch.setattr("qed.host.choose_threads", lambda: cores)
    assert environment.share_cores(ranks) == threads


@pytest.mark.parametrize("command", ["report", "evaluate"])
def test_the_first_rank_alone_does_what_one_process_does(
    run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun each would evaluate all problems, and write the same files."""
    asked = run(command, "nowhere")
    assert asked[0] == UsageError.exit_code
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert run(command, "nowhere") == asked
    monkeypatch.setenv("RANK", "1")
    code, said, explained = run(command, "nowhere")
    assert (code, said) == (0, "")
    assert explained.startswith(f"qed {command}: rank 1 of 2 has nothing to do")
    assert "unset RANK and WORLD_SIZE" in explained
    assert run(command, "--help")[1].startswith("usage")
    monkeypatch.setenv("RANK", "of nothing")
    assert run(command, "nowhere") == asked
    monkeypatch.delenv("RANK")
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "MASTER_ADDR": "node-1"}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert run(command, "nowhere")[0] == 0
    monkeypatch.delenv("MASTER_ADDR")  # tasks that are no ranks
    assert run(command, "nowhere") == asked


def test_what_is_about_a_machine_is_done_by_each_rank(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert run("doctor", "--nonsense")[0] == UsageError.exit_code
