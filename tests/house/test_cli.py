"""Commands, help, sweeps and exit codes, with the recipes replaced by small stand-ins."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qed.cli.main import main
from qed.config import plugins
from qed.config.phases import PipelineSettings, Settings
from qed.errors import DataError, Diverged, ModelError, NothingTrained, QedError

HEAVY = ["torch", "transformers", "datasets", "ray", "wandb", "math_verify", "tyro", "rich", "numpy"]
Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., str]


# Help


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["grpo", "--help"], ["pipeline", "--help-all"], ["config", "show", "sft"], ["grpo", "--lrr"]],
)
def test_help_and_mistakes_import_nothing_heavy(elsewhere: Path, arguments: list[str]) -> None:
    assert not list_imported(arguments) & set(HEAVY)


def test_a_folder_without_a_run_to_resume_is_refused_at_once(elsewhere: Path) -> None:
    """Before torch is imported, which takes most of a minute on a busy machine."""
    imported = list_imported(["grpo", "--resume", "--out", "nothing"])
    assert "qed" in imported
    assert not imported & {"torch", "transformers", "datasets"}
    assert not Path("nothing").exists()


def test_a_folder_that_is_gone_is_told_before_anything_is_loaded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = run("sft", "--out", str(tmp_path / "run"))
    assert (code, err.startswith("error: The current folder no longer exists. Go to a folder that exists")) == (2, True)
    assert run("sft", "--help")[0] == run("--version")[0] == 0


def test_python_without_docstrings_is_refused() -> None:
    done = subprocess.run([sys.executable, "-OO", "-m", "qed", "sft"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "python -OO, or PYTHONOPTIMIZE of 2 or more" in done.stderr
    helped = subprocess.run([sys.executable, "-OO", "-m", "qed", "--help"], capture_output=True, text=True)
    assert helped.returncode == 0


def test_ranks_are_refused_together_when_they_have_met(
    run: Run, recipes: Any, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first one ended at once, the others would wait for it."""
    refused = run("grpo", "--resume", "--out", "nothing")
    assert (refused[0], recipes.calls) == (2, [])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run("grpo", "--resume", "--out", "nothing")
    assert [launch.resume for _, _, launch in recipes.calls] == [True]


def list_imported(arguments: list[str]) -> set[str]:
    """The packages that a command has imported when it ends."""
    boot = "import sys\nfrom qed.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    code = f"{boot}print(*sys.modules, sep='\\n')"
    environment = {**os.environ, "COVERAGE_PROCESS_START": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return {line.partition(".")[0] for line in done.stdout.splitlines()}


def test_the_overview_is_one_screen_with_every_command(run: Run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 18 + len(plugins.list_leaves("algorithms")) + len(plugins.list_leaves("commands"))
    for command in (
        "quickstart",
        "pipeline",
        "dr-grpo",
        "expert-iteration",
        "report",
        "config",
        "grade",
    ):
        assert f"\n  {command} " in out
    assert all(len(line) <= 110 for line in out.splitlines())
    assert run("-h") == (0, out, "")
    assert run() == (2, "", out)


@pytest.mark.parametrize("command", [*plugins.list_leaves("algorithms"), "expert-iteration", "pipeline", "quickstart"])
def test_every_command_explains_itself(run: Run, command: str) -> None:
    for option in ("--help", "--help-all"):
        code, out, err = run(command, option)
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        assert "--model TEXT" in out or "--model.name TEXT" in out
        assert "--resume" in out


def test_help_all_documents_every_setting(run: Run) -> None:
    short, everything = run("grpo", "--help")[1], run("grpo", "--help-all")[1]
    shown = re.findall(r"^  --(?:\[no-\])?([a-z]+\.[a-z.-]+)", everything, re.MULTILINE)
    known = json.loads(run("config", "show", "grpo", "--json")[1])
    assert sorted(key.replace("-", "_") for key in shown) == sorted(known)
    joined = " ".join(everything.split())
    assert "--learner.lr NUMBER Peak learning rate. (default: 1e-06)" in joined
    assert "--[no-]run.save-rollouts Save every rollout, compressed. (default: true)" in joined
    assert "--learner.schedule constant|linear|cosine" in joined
    assert "--algorithm.kl NUMBER" in short
    assert "--learner.clip-norm" not in short
    assert len(short) < len(everything)


def test_help_knows_the_algorithms_chosen_and_their_defaults(run: Run) -> None:
    assert "--rl.algorithm.surrogate clip|plain" in run("pipeline", "--rl.method", "reinforce", "--help-all")[1]
    assert "(default: 1e-05, by sft)" in run("sft", "--help-all")[1]
    assert "--rl.algorithm.kl" in run("pipeline", "--rl.method", "nonsense", "--help-all")[1]


def test_headings_are_bold_on_a_terminal_unless_no_color_is_set(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[1mUsage\x1b[0m" in run("--help")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("--help")[1]


def test_the_version(run: Run) -> None:
    assert re.fullmatch(r"qed \d+\.\d+\.\d+\n", run("--version")[1])


@pytest.mark.parametrize(
    ("name", "meant"), [("grop", "grpo"), ("expert_iterations", "expert-iteration"), ("raport", "report")]
)
def test_an_unknown_command_is_refused_with_the_nearest(run: Run, name: str, meant: str) -> None:
    code, out, err = run(name)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: There is no command '{name}'. Did you mean '{meant}'?")


# Training commands


def test_an_algorithm_is_trained_with_its_settings_and_origins(run: Run, recipes: Any, write: Write) -> None:
    write("", "runs/x/settings.yaml")
    code, out, _ = run("dr-grpo", write("run.seed: 3"), "--lr", "1e-3", "--resume", "--out", "runs/x")
    [(name, settings, launch)] = recipes.calls
    assert (code, out, name) == (0, "", "train")
    assert isinstance(settings, Settings)
    assert (settings.method, settings.run.seed, settings.learner.lr) == ("dr_grpo", 3, 1e-3)
    assert launch is not None
    assert launch.command == ("qed", "dr-grpo", "x.yaml", "--lr", "1e-3", "--resume", "--out", "runs/x")
    assert (launch.resume, launch.overwrite, launch.json) == (True, False, False)
    assert (launch.origins["run.seed"], launch.origins["learner.lr"]) == ("x.yaml:1", "command line")


@pytest.mark.parametrize("command", ["pipeline", "quickstart"])
def test_pipelines_have_recipes_of_their_own(run: Run, recipes: Any, command: str) -> None:
    assert run(command, "--skip-rl")[0] == 0
    [(name, settings, _)] = recipes.calls
    assert name == f"run_{command}"
    assert isinstance(settings, PipelineSettings)
    assert settings.skip_rl


def test_json_is_the_last_line_of_stdout(run: Run, recipes: Any) -> None:
    def answer(settings: Any) -> dict[str, Any]:
        sys.stdout.write("on the way\n")
        return {"reward": 0.25, "run": Path("runs/x")}

    recipes.answer = answer
    code, out, _ = run("grpo", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1]) == {"reward": 0.25, "run": "runs/x"}
    assert recipes.calls[0][2] is not None
    assert recipes.calls[0][2].json


def test_a_dry_run_trains_nothing(run: Run, recipes: Any) -> None:
    assert run("grpo", "--dry-run")[0] == 0
    code, _, err = run("grpo", "--dry-run", "--json")
    assert (code, "leave --json out" in err) == (2, True)
    assert [name for name, _, _ in recipes.calls] == ["run_dry"]


# Errors


@pytest.mark.parametrize(
    ("kind", "code"), [(QedError, 1), (DataError, 3), (ModelError, 3), (Diverged, 4), (NothingTrained, 5)]
)
def test_every_error_has_its_exit_code_and_no_traceback(
    run: Run, recipes: Any, kind: type[QedError], code: int
) -> None:
    recipes.answer = raising(kind("It went wrong."))
    assert run("grpo") == (code, "", "error: It went wrong.\n")
    err = run("grpo", "--debug")[2]
    assert "Traceback" in err
    assert err.endswith("error: It went wrong.\n")


def raising(error: BaseException) -> Callable[[Any], dict[str, Any]]:
    def answer(settings: Any) -> dict[str, Any]:
        raise error

    return answer


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "RuntimeError: DefaultCPUAllocator: can't allocate memory",
        ),
    ],
)
def test_memory_that_runs_out_is_no_bug(
    run: Run, recipes: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setattr("qed.cli.main.find_users_line", lambda error: "")
    recipes.answer = raising(error)
    assert run("grpo")[2].startswith(f"error: {said} (out of memory: use a smaller model")


def test_a_bug_is_one_line_that_says_where_the_traceback_is(
    run: Run, recipes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("two\nlines")
    recipes.answer = raising(error)
    assert f"(line {raising.__code__.co_firstlineno + 2} of {__file__}; run again" in run("grpo")[2]
    # As if no function of a user's own were called.
    monkeypatch.setattr("qed.cli.main.find_users_line", lambda error: "")
    recipes.answer = raising(error)
    code, _, err = run("grpo")
    assert (code, len(err.splitlines())) == (1, 1)
    assert err.startswith("error: ValueError: two lines (a bug in qed, or an unusual environment; ")
    assert "run again with --debug for the traceback" in err
    error.qed_log = Path("runs/x/logs/attempt_1/main.log")  # type: ignore[attr-defined]
    assert "the traceback is in runs/x/logs/attempt_1/main.log" in run("grpo")[2]
    assert "Traceback" in run("grpo", "--debug")[2]


def test_an_interrupt_exits_130_and_an_exit_passes(run: Run, recipes: Any) -> None:
    recipes.answer = raising(KeyboardInterrupt())
    assert run("grpo")[0] == 130
    recipes.answer = raising(SystemExit(143))
    assert run("grpo")[0] == 143


def test_a_cleanup_that_fails_after_an_interrupt_is_no_bug(run: Run, recipes: Any) -> None:
    def interrupt(*arguments: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("half of it is there")

    recipes.answer = interrupt
    assert run("grpo") == (130, "", "interrupted\n")
    assert "AttributeError: half of it is there" in run("grpo", "--debug")[2]


def test_an_interrupt_before_the_command_line_is_there(elsewhere: Path) -> None:
    boot = (
        "import sys\nclass Interrupt:\n"
        "    def find_spec(self, name, *more):\n        if name == 'qed.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\nfrom qed.__main__ import run\nrun()\n"
    )
    done = subprocess.run([sys.executable, "-c", boot], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_reader_that_has_gone_is_no_error(elsewhere: Path) -> None:
    command = [sys.executable, "-c", "from qed.cli.main import main; main()", "grpo", "--help-all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_closed_streams_are_no_error(elsewhere: Path) -> None:
    """As `>&-` and `<&-` leave them; no file of the run gets their numbers."""
    (elsewhere / "answers.jsonl").write_text('{"id": 1, "gold": "4", "response": "4"}\n')
    words = f"{sys.executable} -m qed grade answers.jsonl --out graded.jsonl >&- 2>&- <&-"
    assert subprocess.run(words, shell=True, check=False, timeout=60).returncode == 0
    assert len((elsewhere / "graded.jsonl").read_text().splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_no_bug(elsewhere: Path) -> None:
    (elsewhere / "answers.jsonl").write_text('{"id": 1, "gold": "4", "response": "4"}\n')
    command = [sys.executable, "-m", "qed", "grade", "answers.jsonl"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "error: No space left on device. Free some space, and run the command again."


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_work_is_finished_when_its_reader_has_gone(elsewhere: Path, closed: str) -> None:
    """Tables go to stdout, and to stderr beside JSON; either may end in `head`."""
    (elsewhere / "answers.jsonl").write_text('{"id": 1, "gold": "4", "response": "4"}\n')
    words = ["evaluate", "--responses", "answers.jsonl", "--out", "run"] + ["--json"] * (closed == "stderr")
    command = [sys.executable, "-c", "from qed.cli.main import main; main()", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        gone = streams.pop(closed)
        assert gone is not None
        gone.close()
        (other,) = streams.values()
        assert other is not None
        said = other.read()
    assert process.returncode == 0
    assert len((elsewhere / "run/eval/step_000000/answers.jsonl").read_text().splitlines()) == 1
    assert json.loads(said)["tasks"]["answers"]["accuracy"] == 1 if closed == "stderr" else said == ""


def test_another_broken_pipe_is_an_error(run: Run, recipes: Any) -> None:
    recipes.answer = raising(BrokenPipeError("a worker has died"))
    code, _, err = run("grpo")
    assert code == 1
    assert "BrokenPipeError: a worker has died" in err


def test_a_mistake_on_the_command_line_runs_nothing(run: Run, recipes: Any) -> None:
    code, out, err = run("grpo", "--lernaer.lr", "1")
    assert (code, out, recipes.calls) == (2, "", [])
    assert err.startswith("error: command line: --lernaer.lr")
    assert "Traceback" not in err


# Configurations and reports


def test_config_list_names_the_configurations_of_the_user_and_of_qed(run: Run, write: Write) -> None:
    write("# My own settings: for a test.\nrun.seed: 3\n", "configs/mine.yaml")
    write("run.seed: 3\n", "configs/bare.yml")
    code, out, _ = run("config", "list")
    lines = out.splitlines()[1:]
    assert code == 0
    assert sorted(lines) == lines
    assert "  mine               My own settings" in lines
    assert "  bare" in [line.rstrip() for line in lines]
    assert "  gsm8k-grpo         GRPO on GSM8K from a small base model, on one GPU" in lines


def test_config_show_prints_values_and_origins(run: Run, write: Write) -> None:
    config = write("learner:\n  lr: 1e-3\n")
    code, out, _ = run("config", "show", "sft", config, "--tasks", "arithmetic:test")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert code == 0
    assert rows["learner.lr"] == "0.001 x.yaml:2"
    assert rows["data.tasks"] == "[arithmetic:test] command line"
    assert rows["learner.schedule"] == "linear default of sft"
    assert rows["run.out"] == '"" default'
    as_json = json.loads(run("config", "show", "sft", config, "--json")[1])
    assert as_json["learner.lr"] == {"value": 0.001, "origin": "x.yaml:2"}
    assert list(as_json) == list(rows)


def test_config_show_says_what_an_online_step_comes_to(run: Run) -> None:
    asked = ["--sampling.problems-per-step", "4", "--sampling.group-size", "8", "--sampling.max-tokens", "64"]
    told = run("config", "show", "grpo", *asked)[1].split("In one step of")[1]
    assert "32 answers: 1 optimizer step of 32 rows" in told
    assert f"{1 / (32 * 8):.2g} in a row of 8, {1 / (32 * 32):.2g} in a row of 32" in told
    assert "its clip never binds" in told
    told = run("config", "show", "dr-grpo", *asked, "--algorithm.scale", "verl", "--learner.batch-size", "10")[1]
    assert "4 optimizer steps of 10 rows" in told
    assert f"1/(10 rows x 64 tokens) x 10 (verl) = {1 / 64:.2g}" in told
    assert "never binds" not in told
    told = run("config", "show", "cispo", "--algorithm.cispo-clip", "trl", "--algorithm.clip-high", "0.28")[1]
    assert "scaled down to 0.28 at most" in told
    assert "In one step of" not in run("config", "show", "sft")[1]


def test_a_filter_is_taken_in_training_and_a_penalty_is_explained(run: Run, write: Write) -> None:
    for arguments in (
        ["--sampling.top-p", "0.9", "--sampling.stop", "</answer>,####"],
        [write("sampling: {top_k: -1, min_p: 0.1, min_tokens: 4}")],
    ):
        assert run("config", "validate", "grpo", *arguments)[0] == 0
    for arguments in (["--sampling.repetition-penalty", "1.1"], [write("sampling:\n  presence_penalty: 1")]):
        code, _, err = run("grpo", *arguments)
        assert code == 2
        assert "have another distribution than the answers" in err
    assert "Did you mean 'sampling.min_tokens'" in run("grpo", write("min_new_tokens: 3"))[2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("top_p: 0", "top_p must lie in (0, 1]"),
        ("top_p: 1.2", "top_p must lie in (0, 1]"),
        ("top_k: -2", "0 or -1 keeps all"),
        ("min_p: 1", "min_p must lie in [0, 1)"),
        ("min_tokens: 256", "below max_tokens"),
        ("stop: [a, '']", "empty string"),
    ],
)
def test_a_filter_out_of_range_is_refused(run: Run, write: Write, value: str, message: str) -> None:
    code, _, err = run("config", "validate", "grpo", write(f"sampling: {{{value}}}"))
    assert code == 2
    assert message in err


def test_config_validate_answers_by_its_exit_code(run: Run, write: Write) -> None:
    assert run("config", "validate", "grpo", write("run.seed: 1"))[:2] == (
        0,
        f"Valid: 1 of {len(json.loads(run('config', 'show', 'grpo', '--json')[1]))} settings are given, "
        "the others are defaults.\n",
    )
    assert run("config", "validate", "grpo", write("run.sed: 1"))[0] == 2


@pytest.mark.parametrize("arguments", [["frobnicate", "grpo"], ["show"], ["show", "grop"], ["validate", "report"]])
def test_config_needs_an_action_and_a_command(run: Run, arguments: list[str]) -> None:
    assert run("config", *arguments)[0] == 2


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Path], Path]]:
    """Stands in for the report, and remembers what was to be written."""
    written: list[tuple[list[Path], Path]] = []
    module = ModuleType("qed.report.write")
    module.write_report = lambda runs, out: written.append((runs, out)) or out  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return written


def test_a_report_is_written_into_the_first_run_or_where_told(
    run: Run, reports: list[tuple[list[Path], Path]], elsewhere: Path
) -> None:
    (elsewhere / "a").mkdir()
    (elsewhere / "b").mkdir()
    assert run("report", "a") == (0, "a/report.html\n", "")
    assert run("report", "a", "b", "--out", "c.html")[1] == "c.html\n"
    assert run("report", "a", "--out=d.html")[0] == 0
    assert reports == [
        ([Path("a")], Path("a/report.html")),
        ([Path("a"), Path("b")], Path("c.html")),
        ([Path("a")], Path("d.html")),
    ]


@pytest.mark.parametrize("arguments", [[], ["gone"], [".", "--out"], [".", "--nope"]])
def test_a_report_of_nothing_is_refused(run: Run, arguments: list[str]) -> None:
    assert run("report", *arguments)[0] == 2


def test_report_and_config_explain_themselves(run: Run) -> None:
    assert "usage: qed report" in run("report", "--help")[1]
    assert "Usage: qed config" in run("config")[1]


def test_main_reads_the_process_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["qed", "--version"])
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    with pytest.raises(SystemExit) as caught:
        main()
    assert (caught.value.code, out.getvalue()[:4]) == (0, "qed ")
