"""A run's folder belongs to one process at a time, and one that was killed too early leaves nothing in the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.errors import UsageError
from qed.loops.phase import Phase
from qed.runs import manifest
from qed.runs.choose import is_run, suggest_run
from qed.runs.folder import lock_folder, open_folder
from qed.runs.run import Launch, Run, read_evaluations, read_lines, write_evaluation

TINY = ["--steps", 1, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 4]
TINY += ["--evaluation.problems", 2, "--algorithm.entropy", 0.01]
HOLD = "import sys\nfrom pathlib import Path\nfrom qed.runs.folder import lock_folder\n"
HOLD += "with lock_folder(Path(sys.argv[1])):\n"
HOLD += "    print('held', flush=True)\n    sys.stdin.read()"


def a_run(folder: Path, name: str) -> None:
    """What makes a folder a run."""
    folder.mkdir(parents=True)
    for file in ("settings.yaml", "metrics.jsonl"):
        (folder / file).write_text(name)


def killed_early(folder: Path) -> None:
    """What a process leaves that is killed before it has written its settings."""
    folder.mkdir(parents=True, exist_ok=True)
    Run(folder).event("gone")
    (folder / ".lock").touch()


def test_two_processes_do_not_write_one_run(qed: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert qed("grpo", "--out", run, *TINY).code == 0
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdin=-1, stdout=-1)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    for how in ("--resume", "--overwrite"):
        done = qed("grpo", "--out", run, *TINY, how)
        assert done.code == 2
        assert f"is being written by process {holder.pid} on" in done.err
    holder.kill()
    holder.communicate()
    assert qed("grpo", "--out", run, *TINY, "--steps", 2, "--resume").code == 0


def test_a_disk_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refused)
    with lock_folder(tmp_path), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path / "missing"):
        pass


@pytest.mark.parametrize("name", ["a", "a/run"])
def test_links_in_a_circle_are_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match=f"The folder .*/{name} cannot be made or written: "):
        open_folder(str(tmp_path / name), "x", Launch())
    with pytest.raises(UsageError, match="holds no run to resume"):
        open_folder(str(tmp_path / name), "x", Launch(resume=True))


def test_what_was_killed_before_it_had_begun_counts_as_nothing(qed: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed_early(run)
    refused = qed("grpo", "--out", run, *TINY, "--resume")
    assert refused.code == 2
    assert "Start one without --resume" in refused.err
    assert qed("grpo", "--out", run, *TINY).code == 0
    assert (run / "logs" / "attempt_2").is_dir()


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_comes_back_that_a_killed_process_was_to_replace(tmp_path: Path, begun: bool) -> None:
    run, aside = tmp_path / "run", tmp_path / ".run.replaced-0123abcd"
    a_run(aside, "old")
    killed_early(run)
    if begun:
        (run / "settings.yaml").write_text("new")
    with pytest.raises(UsageError, match="Continue it with --resume"):
        open_folder(str(run), "", Launch())
    assert (run / "settings.yaml").read_text() == "old"
    assert not aside.exists()


def test_a_run_that_was_replaced_goes_once_the_new_one_is_prepared(tmp_path: Path) -> None:
    run, aside = tmp_path / "run", tmp_path / ".run.replaced-0123abcd"
    a_run(aside, "old")
    a_run(run, "new")
    assert open_folder(str(run), "", Launch(resume=True)) == (run, None)
    assert (run / "settings.yaml").read_text() == "new"
    assert not aside.exists()


def test_a_run_stays_where_no_other_can_be_made_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(tmp_path / "run", "old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match="No space left on device"):
        open_folder(str(tmp_path / "run"), "run", Launch(overwrite=True))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "settings.yaml").read_text() == "old"


def test_a_run_that_comes_back_does_not_hold_the_failure_of_the_other(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("a mistake that is found late")

    run = tmp_path / "run"
    a_run(run, "old")
    (run / "logs" / "attempt_1").mkdir(parents=True)
    for name in ("_build_setup", "_settle"):
        monkeypatch.setattr(f"qed.loops.setup.{name}", refuse)
        done = qed("grpo", "--out", run, *TINY, "--overwrite")
        assert (done.code, "found late" in done.err) == (2, True), done.err
        assert not (run / "events.jsonl").exists()
        assert not list(run.glob("logs/attempt_1/*"))
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
        assert (run / "settings.yaml").read_text() == "old"


def test_the_event_of_a_second_ctrl_c_has_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Run(tmp_path):
        raise KeyboardInterrupt
    (event,) = read_lines(tmp_path / "events.jsonl")
    assert (event["event"], event["exit_code"]) == ("interrupted", 130)


def test_an_attempt_has_a_number_of_its_own_where_older_logs_are_deleted(tmp_path: Path) -> None:
    for kept in ("attempt_2", "attempt_9", "attempt_10", "attempt_x"):
        (tmp_path / "logs" / kept).mkdir(parents=True)
    assert Run(tmp_path).attempt == 11
    assert Run(tmp_path).attempt == 12


def test_a_folder_whose_parent_may_not_be_listed_can_hold_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one's own in /scratch, or a name with a typing error beside other people's."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert suggest_run(tmp_path / "nosuch") == ""
    monkeypatch.undo()
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr("qed.runs.folder._is_occupied", lambda folder: False)
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert open_folder(str(tmp_path / "mine"), "run", Launch()) == (tmp_path / "mine", None)


def test_another_persons_folder_is_no_suggestion_and_may_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To say that it is no run, or to take it for a model, would hide why."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "other").mkdir()
    monkeypatch.setattr("os.stat", refuse)
    monkeypatch.setattr(Path, "is_file", refuse)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert suggest_run(tmp_path / "othr") == ""
    with pytest.raises(PermissionError):
        is_run(tmp_path / "other")


def test_a_users_copies_among_the_steps_are_not_read_as_steps(tmp_path: Path) -> None:
    for name in ("step_999999", "step_1000000", "step_best", "step_000003_copy"):
        write_evaluation(tmp_path, 0, "task", [], {"greedy": {}})
        (tmp_path / "eval" / "step_000000").rename(tmp_path / "eval" / name)
    assert [step for step, _ in read_evaluations(tmp_path)] == [999999, 1000000]
    (tmp_path / "rollouts").mkdir()
    for name in ("step_000002.jsonl.zst", "step_000003.index.zst", "step_notes.txt"):
        (tmp_path / "rollouts" / name).touch()
    Run(tmp_path).truncate(2)
    assert {path.name for path in tmp_path.glob("rollouts/*")} == {"step_000002.jsonl.zst", "step_notes.txt"}
    assert {path.name for path in tmp_path.glob("eval/*")} == {"step_best", "step_000003_copy"}


def test_nobody_elses_files_are_touched(tmp_path: Path) -> None:
    run, aside = tmp_path / "run", tmp_path / ".run.replaced-0123abcd"
    a_run(aside, "old")
    killed_early(run)
    (run / "thesis.tex").write_text("mine")
    for launch in (Launch(), Launch(overwrite=True)):
        with pytest.raises(UsageError, match="It is not a run"):
            open_folder(str(run), "", launch)
    with pytest.raises(UsageError, match="holds no run to resume"):
        open_folder(str(run), "", Launch(resume=True))
    assert (run / "thesis.tex").read_text() == "mine"
    assert aside.is_dir()


def test_one_command_begins_a_run_and_goes_on_with_it(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cluster starts a job again: before there is anything, without a checkpoint, from one, at the end."""
    run, killed = tmp_path / "run", tmp_path / "killed"
    again = ["grpo", *TINY, "--steps", 3, "--requeue", "--out"]
    assert qed(*again[:-1]).code == 2, "nobody could find a folder again that has no name"
    assert qed(*again, run, "--resume").code == 2
    assert qed(*again, run).code == 0
    killed_early(killed)
    record = Phase.record

    def record_and_die(self: Phase, step: int, *rest: Any) -> Any:
        if step == 2:
            raise KeyboardInterrupt
        return record(self, step, *rest)

    for every in (0, 1):  # the first time there is nothing to go on from
        with monkeypatch.context() as patch:
            patch.setattr(Phase, "record", record_and_die)
            patch.setattr(Phase, "save_and_describe_exit", lambda _: "")
            assert qed(*again, killed, "--run.save_every", every).code == 130
        assert list(manifest.list_checkpoints(killed)) == [1] * every
    for _ in range(2):
        assert qed(*again, killed).code == 0
    files = [folder / "final" / "hf" / "model.safetensors" for folder in (run, killed)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [row["step"] for row in read_lines(killed / "metrics.jsonl")] == [0, 1, 2, 3, 3]
