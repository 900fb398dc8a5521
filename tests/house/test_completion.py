"""The completion scripts, asked in their shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from qed.cli.completion import Words, collect_words, write_script
from qed.cli.main import main

ASK = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_qed
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def words() -> Words:
    return collect_words()


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "qed.bash"
    path.write_text(write_script("bash"))
    return path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("qed dr-g", {"dr-grpo"}),
        ("qed grpo --algorithm.surrog", {"--algorithm.surrogate"}),
        ("qed grpo --algorithm.surrogate gs", {"gspo", "gspo_token"}),
        ("qed grpo --algorithm.surrogate = cis", {"cispo"}),
        ("qed grpo --reward boxed,overl", {"boxed,overlong"}),
        ("qed grpo --tasks gsm", {"gsm8k"}),
        ("qed grpo cs336-", {"cs336-grpo", "cs336-instruct", "cs336-sft"}),
        ("qed grpo --no-model.grad", {"--no-model.gradient-checkpointing"}),
        ("qed pipeline --sft.meth", {"--sft.method"}),
        ("qed pipeline --rl.method dr", {"dr_grpo"}),
        ("qed data conv", {"convert"}),
        ("qed data convert --to par", {"parquet"}),
        ("qed config im", {"import"}),
        ("qed evaluate --mod", {"--model"}),
        ("qed debug-generations --whol", {"--whole"}),
        ("qed --completion z", {"zsh"}),
        ("qed grpo --dry", {"--dry-run"}),
        ("qed grpo --lr 1", {""}),
    ],
)
def test_what_bash_completes(bash: Path, line: str, expected: set[str]) -> None:
    asked = " ".join(f"'{word}'" for word in line.split(" "))
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK.format(script=bash, words=asked)], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.removesuffix("\n").split("\n")) == expected, done.stderr


def test_files_are_completed(bash: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    script = ASK.format(script=bash, words="qed grpo min")
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "mine.yaml"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid_in_its_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(write_script(shell))
    subprocess.run([shell, "-n", str(path)], check=True)


def test_what_fish_completes(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    path = tmp_path / "qed.fish"
    path.write_text(write_script("fish"))
    for line, expected in (
        ("qed grpo --algorithm.surrogate gs", "gspo"),
        ("qed dr-", "dr-grpo"),
        ("qed data con", "convert"),
    ):
        asked = f"source {path}; complete -C '{line}'"
        done = subprocess.run(["fish", "--no-config", "-c", asked], capture_output=True, text=True, check=True)
        assert expected in done.stdout


def test_every_command_has_options(words: Words) -> None:
    for command in words.commands:
        keys = [f"{command} {action}" for action in words.actions[command]] if command in words.actions else [command]
        for key in keys:
            assert len(words.options[key]) >= 1, key
    assert len(words.options["grpo"]) > 100
    assert "--gold-key" in words.options["grade"]


def test_a_shell_without_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--completion", "tcsh"])
    assert done.value.code == 2
    assert "Choose one of bash, zsh, fish" in capsys.readouterr().err
