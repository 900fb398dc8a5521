"""What every test relies on: one thread, products that do not depend on memory alignment, and the real data beside the
checkout where it is there."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from qed import host

# The command line says it before torch is loaded; tests call what is below it, and start processes of their own.
host.make_products_reproducible()
# Tests start hundreds of commands. Where no bytecode is written, each of them compiles torch and transformers anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import torch  # noqa: E402 -- see above

from qed.data.tasks import arithmetic  # noqa: E402 -- see above

# Machines are noisy: how long an example takes says nothing about the code.
settings.register_profile("qed", deadline=None)
settings.load_profile("qed")
ON_DEMAND = ("faults", "docs", "vllm", "browser")
SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests that take minutes only if their marker is asked: faults, pages, a real vLLM and a browser."""
    _name_groups(config, items)
    asked = config.getoption("markexpr")
    marks = [mark for mark in ON_DEMAND if mark not in asked]
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in marks)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """What has been imported and collected stays to the end: no search for garbage looks at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries complain at the end of a process of what is never freed."""
    gc.unfreeze()


def _name_groups(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a group belong to one worker, so that what they share is made once. pytest-xdist 3.8 appends the group's
    name to an attribute that pytest 9.2 does not read."""
    for item in items if getattr(config.option, "loadgroup", False) else ():
        group = item.get_closest_marker("xdist_group")
        identifier: Any = getattr(item, "_id", None)
        if group is not None and identifier is not None and "@" not in item.name:
            item._id = type(identifier).parse(f"{identifier}@{group.args[0]}")  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small models are fastest on one thread, and two tests side by side do not fight for cores."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@pytest.fixture
def few_problems(request: pytest.FixtureRequest) -> Iterator[None]:
    """The embedded task has 8,000 problems to train on, of which a run of a few steps takes a handful; `slow` tests,
    in which something is learned, take them all."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("slow") is None:
            patch.setitem(arithmetic.COUNT, "train", 400)
        yield


@pytest.fixture
def shared() -> Path:
    """The folder of real data and reference vectors."""
    if not SHARED.is_dir():
        pytest.skip(f"the real data is not here: {SHARED}")
    return SHARED
