"""Each page's commands and Python run as they are written, in a folder that holds small files of the names they use.

Training commands are cut to two steps (`shorten.py`), and `Qwen/Qwen2.5-0.5B` is a fresh small model in a folder of
that name. `uv run pytest -m docs` runs them all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import PAGES, ROOT, UNTESTED, Block, blocks

from docs import material

HERE = Path(__file__).parent
MAKE_THE_RUN = ("first-run.md",)  # pages that make `runs/quickstart` themselves
WITH_BLOCKS = [page for page in PAGES if any(not block.reason for block in blocks(page))]


@pytest.fixture(scope="session")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files, the model and the runs that the pages name."""
    folder = tmp_path_factory.mktemp("stock")
    material.write_files(folder)
    done = call(f"{sys.executable} {HERE / 'material.py'} {folder}", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def folder(stocked: Path, tmp_path: Path) -> Path:
    """A copy of that folder for one page."""
    return shutil.copytree(stocked, tmp_path / "work", symlinks=True)


def environment() -> dict[str, str]:
    """The caller's environment with the commands of `bin/` before all others, and no hub."""
    path = f"{HERE / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def call(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run lines of bash in a folder and return what came of them."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True
    )


def run_block(block: Block, folder: Path) -> None:
    """Run one block; a failure shows the block, its place and the end of what it printed."""
    command = block.code
    if block.language == "python":
        (folder / "page.py").write_text(command, encoding="utf-8")
        command = f"{sys.executable} page.py"
    done = call(command, folder)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, f"{block.page}:{block.line} ended with {done.returncode}\n{block.code}\n{said}"


@pytest.mark.docs
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path, folder: Path) -> None:
    if page.name in MAKE_THE_RUN:
        shutil.rmtree(folder / "runs")
    for block in blocks(page):
        if not block.reason:
            run_block(block, folder)


@pytest.mark.docs
@pytest.mark.parametrize("name", ["papers.md", "cs336.md"])
def test_the_commands_in_tables_mean_something(name: str, folder: Path) -> None:
    """The settings of each command in a table resolve: `qed config show` takes them."""
    for command in material.commands_in_tables(ROOT / "docs" / name):
        done = call(f"qed config show {command}", folder)
        assert done.returncode == 0, f"{name}: {command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_every_block_has_a_language_that_is_run() -> None:
    """A block of commands is either run or says why not; the fences have the one spelling that is looked for."""
    for page in PAGES:
        assert not UNTESTED.search(page.read_text(encoding="utf-8")), page.name


def test_links_lead_somewhere() -> None:
    """Each relative link of a page names a file, and its anchor a heading of that file."""
    for page in PAGES:
        for target, anchor in material.links(page):
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), f"{page.name}: {target}"
            if anchor and path.suffix == ".md":
                assert anchor in material.anchors(path), f"{page.name}: {target}#{anchor}"


def test_the_material_is_small(tmp_path: Path) -> None:
    material.write_files(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {"question", "answer"} == set(rows[0])
    assert len(rows) == 60
