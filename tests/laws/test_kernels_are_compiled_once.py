"""The functions in C++ are compiled once a machine; without a compiler, or a place for them, torch computes instead."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
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
# Writes something in place of the library that it would have compiled, which takes half a minute.
PRETEND = """
for file in "$@"; do :; done
case "$file" in
*.so) {0} ;;
*) : > "$file" ;;
esac
"""
COPY = PRETEND.format('cat {0} > "$file"')
SLOW = PRETEND.format('head -c 1000 {0} > "$file"; sleep 0.5; tail -c +1001 {0} >> "$file"')


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
@pytest.mark.parametrize("damage", ["cut", "empty", "other", "unsealed"])
def test_a_damaged_file_is_compiled_again(damage: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's loader would kill the process where it reads what is cut off."""
    monkeypatch.setenv("CXX", write_compiler(folder, COPY.format(BUILT.library._name)))
    assert build.load_library().library is not None
    (file,) = (folder / "cache" / "kernels").iterdir()
    whole = file.read_bytes()
    left = {"cut": whole[:100_000], "empty": b"", "other": b"no library" * 100, "unsealed": whole[:-64]}[damage]
    file.unlink()  # else what this process has loaded is changed
    file.write_bytes(left)
    build.load_library.cache_clear()
    assert build.will_compile()
    assert build.load_library().library is not None
    assert file.read_bytes() == whole
    assert not build.will_compile()


@needs_compiler
def test_others_can_read_what_is_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing secret in it, and a cache may be shared."""
    monkeypatch.setenv("CXX", write_compiler(folder, COPY.format(BUILT.library._name)))
    before = os.umask(0o077)
    try:
        assert build.load_library().library is not None
    finally:
        os.umask(before)
    kernels = folder / "cache" / "kernels"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (kernels, *kernels.iterdir())] == [0o755, 0o755]


@needs_compiler
def test_what_killed_processes_left_is_removed_after_a_day(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", write_compiler(folder, COPY.format(BUILT.library._name)))
    kernels = folder / "cache" / "kernels"
    for name in ("tmpold", "tmpnew"):
        (kernels / name).mkdir(parents=True)
        (kernels / name / "rows.o").write_text("")
    os.utime(kernels / "tmpold", (time.time() - 2 * build.DAY,) * 2)
    assert build.load_library().library is not None
    assert sorted(path.name for path in kernels.iterdir() if path.is_dir()) == ["tmpnew"]


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
        (r"printf 'x.cpp: error: \377\n1 | a\n' >&2; exit 1", "failed: x.cpp: error: \ufffd"),
        (PRETEND.format('echo text > "$file"'), "cannot be loaded"),
    ],
)
def test_a_compiler_that_fails_is_told_and_torch_computes(
    script: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", write_compiler(folder, script))
    built = build.load_library()
    assert built.library is None
    assert reason in built.reason
    assert "CXX" in built.advice
    left = {path.suffix for path in (folder / "cache" / "kernels").iterdir()}
    assert left <= {build.LOCK, build.GAVE_UP}
    assert (build.GAVE_UP in left) is ("cannot be loaded" in built.reason)
    model = make_model(dtype=torch.float32, hidden_size=32)
    assert isinstance(choose_decoder(model, 9), LlamaDecoder)
    assert draw_tokens(torch.tensor([[0.0, 9.0]]), None)[0].tolist() == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="the functions in C++ are for Linux")
def test_no_compiler_and_no_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    assert not build.will_compile()
    assert build.load_library() == (None, "there is no C++ compiler (g++)", "")
    build.load_library.cache_clear()
    monkeypatch.setenv("CXX", write_compiler(folder, "exit 1"))
    (folder / "cache").write_text("a file")
    assert not build.will_compile()
    built = build.load_library()
    assert str(folder / "cache") in built.reason
    assert "QED_CACHE" in built.advice


@pytest.mark.skipif(sys.platform != "linux", reason="the functions in C++ are for Linux")
def test_a_cache_that_cannot_be_written_or_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", write_compiler(folder, "exit 1"))

    def refuse(*_: object) -> Path:
        raise PermissionError(13, "Permission denied", "/elsewhere")

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0)
        assert not build.will_compile()
        assert build.load_library().reason == f"{folder / 'cache' / 'kernels'} cannot be used: you cannot write there"
    build.load_library.cache_clear()
    monkeypatch.setattr(host, "find_cache", refuse)
    assert not build.will_compile()
    assert build.load_library().reason == "/elsewhere cannot be used: Permission denied"


@pytest.mark.skipif(sys.platform != "linux", reason="the functions in C++ are for Linux")
@pytest.mark.parametrize(
    ("command", "reason"), [("/nonexistent -O1", "'/nonexistent', which is no"), ("g++ 'x", "No closing quotation")]
)
def test_a_variable_that_names_no_compiler_is_told(
    command: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", command)
    assert not build.will_compile()
    built = build.load_library()
    assert built.library is None
    assert built.reason.startswith("CXX ")
    assert reason in built.reason
    assert "CXX" in built.advice


@pytest.mark.skipif(sys.platform != "linux", reason="the functions in C++ are for Linux")
def test_a_compiler_that_does_not_end_is_left_alone_for_a_day(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, ticks = folder / "calls", folder / "ticks"
    compiler = Path(write_compiler(folder, f"echo >> {calls}\nwhile sleep 0.1; do echo >> {ticks}; done & wait"))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build, "PATIENCE", 1)

    def load() -> int:
        """The number of times that the compiler is called."""
        build.load_library.cache_clear()
        calls.write_text("")
        asked = build.will_compile()
        began = time.monotonic()
        built = build.load_library()
        assert time.monotonic() - began < 30  # one deadline for all files
        assert "did not finish within 1 seconds" in built.reason
        assert str(marker) in built.advice
        called = len(calls.read_text())
        assert asked is bool(called)
        if called:
            ended = ticks.read_text()
            time.sleep(0.5)
            assert ticks.read_text() == ended  # what it has started has ended with it
        return called

    marker = Path(build._make_plan().target).with_suffix(build.GAVE_UP)
    assert load() > 0
    assert load() == 0
    os.utime(marker, (time.time() - build.DAY,) * 2)
    assert load() > 0
    time.sleep(0.05)
    compiler.chmod(0o700)  # as if another version of it were installed
    assert load() > 0
    marker.unlink()
    assert load() > 0


def test_without_a_home_the_cache_is_a_folder_of_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "expanduser", refuse)
    folder = host.find_cache()
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert host.find_cache() == folder
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match="QED_CACHE"):
        host.find_cache()
    folder.rename(tmp_path / "other")
    folder.symlink_to(tmp_path / "other")
    with pytest.raises(PermissionError, match="QED_CACHE"):
        host.find_cache()


def test_other_processors_of_a_shared_home_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = build._hash_inputs(["g++"])
    assert own == build._hash_inputs(["g++"]) != build._hash_inputs(["clang++"])
    monkeypatch.setattr(host, "read_cpuinfo", lambda: [("model name", "another"), ("flags", "avx2")])
    assert own != build._hash_inputs(["g++"])
