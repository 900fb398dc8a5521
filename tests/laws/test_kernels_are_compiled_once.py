"""The functions in C++ are compiled once a machine; without a compiler, or a place for them, torch computes instead."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from making import make_model

from qed import host
from qed.kernels import build
from qed.models import threads
from qed.sampling.draw import draw_tokens
from qed.sampling.native.decoder import LlamaDecoder
from qed.sampling.native.decoders import choose_decoder

BUILT = build.load_library()
needs_compiler = pytest.mark.skipif(BUILT.library is None, reason=f"no functions in C++: {BUILT.reason}")
# Writes the library in two parts, in place of compiling, which takes three processes half a minute.
SLOW = """
for file in "$@"; do :; done
case "$file" in
*.so) head -c 1000 {0} > "$file"; sleep 0.5; tail -c +1001 {0} >> "$file" ;;
*) : > "$file" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a process that has loaded nothing."""
    monkeypatch.setenv(host.CACHE, str(tmp_path / "cache"))
    build.load_library.cache_clear()
    yield tmp_path
    build.load_library.cache_clear()


def write_compiler(folder: Path, text: str) -> str:
    file = folder / "compiler"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_a_device_compiles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a GPU neither waits for functions that it does not call, nor records whether there are any."""
    monkeypatch.setenv("CXX", write_compiler(folder, f"touch {folder / 'called'}; exit 1"))
    assert "kernels" not in threads.read_kernel_settings(torch.device("cuda"))
    assert not (folder / "called").exists()
    assert threads.read_kernel_settings(torch.device("cpu"))["kernels"] == "torch"
    assert (folder / "called").exists()


def test_a_compiler_that_is_there_compiles_them() -> None:
    """Their own tests are skipped where there are none."""
    compiler = build._find_compiler()
    if sys.platform == "linux" and compiler and shutil.which(compiler[0]):
        assert BUILT.library is not None, BUILT.reason


@needs_compiler
def test_it_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = folder / "count"
    monkeypatch.setenv("CXX", write_compiler(folder, f'echo >> {count}\nexec g++ "$@" -O0'))
    assert build.will_compile()
    assert build.load_library().library is not None
    assert not build.will_compile()
    calls = count.read_text()
    assert calls
    build.load_library.cache_clear()
    assert build.load_library().library is not None
    assert count.read_text() == calls
    assert [path.suffix for path in (folder / "cache" / "kernels").iterdir()] == [".so"]


@needs_compiler
def test_processes_that_compile_together_do_not_disturb_each_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", write_compiler(folder, SLOW.format(BUILT.library._name)))
    program = "from qed.kernels.build import load_library; assert load_library().library is not None"
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [each.wait(timeout=120) for each in started] == [0, 0, 0]
    assert len(list((folder / "cache" / "kernels").iterdir())) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no such instruction' >&2; exit 1", "no such instruction"),
        ("exit 1", "exit status 1"),
        (": wrote nothing", "No such file"),
    ],
)
def test_a_compiler_that_fails_is_told_and_torch_computes(
    script: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", write_compiler(folder, script))
    built = build.load_library()
    assert built.library is None
    assert reason in built.reason
    model = make_model(dtype=torch.float32, hidden_size=32)
    assert isinstance(choose_decoder(model, 9), LlamaDecoder)
    assert draw_tokens(torch.tensor([[0.0, 9.0]]), None)[0].tolist() == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="the functions in C++ are for Linux")
def test_no_compiler_and_no_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    assert build.load_library().reason == "there is no C++ compiler (g++)"
    build.load_library.cache_clear()
    monkeypatch.setenv("CXX", "g++")
    (folder / "cache").write_text("a file")
    assert str(folder / "cache") in build.load_library().reason


def test_other_processors_of_a_shared_home_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = build._hash_inputs(["g++"])
    assert own == build._hash_inputs(["g++"]) != build._hash_inputs(["clang++"])
    monkeypatch.setattr(host, "read_cpuinfo", lambda: [("model name", "another"), ("flags", "avx2")])
    assert own != build._hash_inputs(["g++"])
