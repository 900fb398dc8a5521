"""The two commits, each in a working tree of its own that is removed in the end."""

from __future__ import annotations

import compileall
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
HERE = "."  # in place of a commit: the files as they are


@contextmanager
def check_out(commit: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Give a commit's number, and a folder with its files.

    Both commits have bytecode: where none is written, as in many containers, only the files as they are would have it.

    Args:
        commit: anything that git knows, or a dot for the files as they are.
        folder: where its working tree is made; it must not be there.
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
