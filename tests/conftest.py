"""What every test relies on: one thread, products that do not depend on memory alignment, and the real data beside the
checkout where it is there."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import wait_for_other_threads
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling, Scheduling

from qed import host

# The command line says it before torch is loaded; tests call what is below it, and start processes of their own.
host.make_products_reproducible()
host.set_passive_waiting()
# Tests start hundreds of commands. Where no bytecode is written, each of them compiles torch and transformers anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Under nohup, and behind a shell's &, signals are ignored, and what tests start would inherit that.
for _number, _default in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)

import torch  # noqa: E402 -- see above

from qed.data.tasks import arithmetic  # noqa: E402 -- see above

# Where CI is set transformers logs through the root logger, which without a handler writes to the command's stderr.
logging.getLogger().addHandler(logging.NullHandler())
# Machines are noisy: how long an example takes says nothing about the code.
settings.register_profile("qed", deadline=None)
settings.load_profile("qed")
os.register_at_fork(before=wait_for_other_threads)
ON_DEMAND = ("faults", "docs", "vllm", "browser")
CHUNK = 16  # tests
SELDOM = 10_000, 10, 50  # of `gc.set_threshold`
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
    """What has been imported and collected stays to the end: no search for garbage looks at it again. Later searches
    are seldom, because each looks at all that tests have imported since."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
    gc.callbacks.append(_keep_what_is_left)
    atexit.register(_let_go)


def _keep_what_is_left(phase: str, found: dict[str, int]) -> None:
    """What a whole search has left is not looked at again. Code under test asks for whole searches, and each takes a
    second in a process that has imported everything and holds all tests."""
    if phase == "stop" and found["generation"] == 2:
        gc.freeze()


def _let_go() -> None:
    """Let the end of the process free everything: libraries complain of what it leaves."""
    gc.callbacks.remove(_keep_what_is_left)
    gc.unfreeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Hand out some tests of a file at once: its fixtures are made less often, and xdist, which looks through all that
    it has handed out after each test, has less to look through."""
    return _InChunks(config, log)


class _InChunks(LoadScopeScheduling):
    """Chunks of a file's tests, and whole groups, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # by the number of tests, which says little about how long they take
        super().__init__(config, log)
        self._scopes: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def _split_scope(self, nodeid: str) -> str:
        if nodeid not in self._scopes:
            file = nodeid.partition("::")[0]
            grouped = nodeid.rfind("@") > nodeid.rfind("]")
            self._scopes[nodeid] = nodeid.rpartition("@")[2] if grouped else f"{file} {self._counts[file] // CHUNK}"
            self._counts[file] += 1
        return self._scopes[nodeid]


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
    """The built-in task has 8,000 problems to train on, of which a run of a few steps takes a handful; `slow` tests,
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
