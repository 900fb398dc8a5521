"""The two commits, each in a separate working tree that is removed at the end."""

from __future__ import annotations

import compileall
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
HERE = "."  # instead of a commit: the current working tree


@contextmanager
def check_out(commit: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield a commit's hash, and a folder with its files.

    Compile bytecode for both commits: if Python does not write it, as in many containers, only the current files have
    it.

    Args:
        commit: anything that git understands, or a dot for the current working tree.
        folder: folder of its working tree, which must not exist.
    """
    if commit == HERE:
        _compile(HOME)
        yield "the files as they are", HOME
        return
    number = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    _git("worktree", "add", "--quiet", "--detach", str(folder), number)
    try:
        _compile(folder)
        yield number, folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _compile(folder: Path) -> None:
    compileall.compile_dir(folder / "qed", quiet=2)


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(HOME), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()
