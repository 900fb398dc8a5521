"""Show a run in a tracker: follow its folder until the run ends. Training starts this as a separate process."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.errors import UsageError
from qed.guards.redaction import redact
from qed.runs.run import read_json, write_whole
from qed.trackers.base import TrackedRun, Tracker
from qed.trackers.follow import RunFollower, read_config

POLL_SECONDS = 1.0
LAST_SECONDS = 30.0  # for a tracker to send the rest once the run is over
MAX_REASON = 500  # characters of an error to keep in the state
NICENESS = 3  # training has priority; next to one other process, this one still gets a third of a core
STATE, LOCK = "state.json", ".lock"
KEPT = (STATE, LOCK)  # files of an earlier attempt to keep


@dataclass(frozen=True)
class TrackerState:
    """The state in a tracker's folder: its identity, its progress, and whether it completed.

    `id` and `name` are kept across attempts. `step` is the last step passed to the tracker.
    """

    id: str = ""
    name: str = ""
    where: str = ""
    step: int = -1
    complete: bool = False
    error: str = ""


def find_home(folder: Path, tracker: str) -> Path:
    """Return the folder of a tracker, given by name or as a custom file, within the run's folder."""
    return folder / "trackers" / Path(tracker).stem


def read_state(home: Path) -> TrackerState:
    """Read the state in a tracker's folder; defaults if there is none."""
    known = TrackerState.__dataclass_fields__
    return TrackerState(**{name: value for name, value in read_json(home / STATE, {}).items() if name in known})


def track_run(
    folder: Path, tracker: str, given: Mapping[str, Any], wait: Callable[[float], bool], process: int = 0
) -> TrackerState:
    """Show a run in a tracker from its first step on, and follow it until it ends.

    Args:
        folder: the folder of the run.
        tracker: the name of a built-in tracker, or a custom file.
        given: `name`, `project`, `entity`, `group` and `tags`; missing ones come from the run's settings.
        wait: waits for a number of seconds or until the run is over; returns whether it is over.
        process: the id of the training process, or 0 if the run is over.

    Returns:
        The state in which the tracker ended.

    Raises:
        UsageError: another process is already showing the run in this tracker.
        DataError: a file of the run is damaged.
    """
    home = find_home(folder, tracker)
    config = read_config(folder)
    home.mkdir(parents=True, exist_ok=True)
    # The tracker of an attempt that was killed may still be sending the rest.
    with _lock_home(home, patience=LAST_SECONDS + 5 if process else 0.0):
        RunFollower(folder).check()  # before the output of an earlier attempt is deleted
        run = _describe_run(home, config, given, process)
        _write_state(home, TrackerState(id=run.id, name=run.name))
        try:
            module = plugins.load_leaf("trackers", tracker)
            getattr(module, "clear", _clear_home)(home)
            _show(run, folder, module.make, wait)
        except BaseException as error:
            reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:MAX_REASON]
            _write_state(home, replace(read_state(home), error=reason))
            (home / "error.txt").write_text(redact("".join(traceback.format_exception(error))), encoding="utf-8")
            raise
        return read_state(home)


def _show(run: TrackedRun, folder: Path, make: Callable[[TrackedRun], Tracker], wait: Callable[[float], bool]) -> None:
    """Pass the run to a new tracker, step by step, until it is over."""
    follower, leaf, state = RunFollower(folder), make(run), read_state(run.home)
    over = is_new = False
    while not over:
        # Checked before reading, so that nothing written before the end is missed.
        over = wait(POLL_SECONDS if is_new else 0.0)
        _pass_on(follower, leaf, is_new)
        _write_state(run.home, state := replace(state, step=follower.step, where=leaf.where))
        is_new = True
    report = folder / "report.html"
    leaf.close(follower.ending, report if report.is_file() else None)
    _write_state(run.home, replace(state, where=leaf.where, complete=True))


def _pass_on(follower: RunFollower, leaf: Tracker, is_new: bool) -> None:
    """Pass everything that the run has recorded since the last call to the tracker."""
    for item in follower.read():
        match item.kind:
            case "metrics":
                leaf.log_metrics(item.step, item.content)
            case "evaluation":
                leaf.log_evaluation(item.step, item.content)
            case "rollouts":
                leaf.log_rollouts(item.step, item.content)
            case "alarm":
                leaf.log_alarm(item.step, item.content["name"], item.content["told"], is_new)
    leaf.flush()


def _describe_run(home: Path, config: Mapping[str, Any], given: Mapping[str, Any], process: int) -> TrackedRun:
    """Describe the run for its tracker, from the given options, the run's settings, or an earlier attempt."""
    settings, state = config.get("run", {}), read_state(home)

    def choose(name: str, default: Any) -> Any:
        return given.get(name) or settings.get(name) or default

    return TrackedRun(
        home=home.resolve(),
        id=state.id or secrets.token_hex(4),
        name=given.get("name") or state.name or home.parents[1].resolve().name,
        project=choose("project", ""),
        entity=choose("entity", ""),
        group=choose("group", ""),
        tags=tuple(choose("tags", ())),
        config=config,
        process=process,
    )


def _clear_home(home: Path) -> None:
    """Delete the files of an earlier attempt, because this one starts with the first step again."""
    for path in home.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _write_state(home: Path, state: TrackerState) -> None:
    write_whole(home / STATE, json.dumps(asdict(state)).encode())


@contextmanager
def _lock_home(home: Path, patience: float) -> Iterator[None]:
    """Lock a tracker's folder until the block ends; does nothing on a file system without locks.

    Raises:
        UsageError: another process has held the lock for `patience` seconds.
    """
    deadline = time.monotonic() + patience
    with (home / LOCK).open("a+", encoding="utf-8") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise UsageError(
                        f"Another process is showing this run in {home.name}: {home} is locked. Wait until it ends."
                    ) from error
                time.sleep(0.2)
            except OSError:
                break
        yield


def main(request: str) -> None:
    """Follow a run until stdin ends, which the parent holds open while it trains, and exit.

    However the parent ends, the kernel closes stdin; the tracker then has LAST_SECONDS for the rest. Library output is
    discarded, since it might contain a key.
    """
    asked = json.loads(request)
    folder, tracker = Path(asked["folder"]), asked["tracker"]
    os.nice(NICENESS)
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    try:
        track_run(folder, tracker, asked["given"], over.wait, os.getppid())
    except BaseException:  # noqa: BLE001 -- whatever a tracker's library raises, its state tells training
        os._exit(1)
    # Library threads that wait for the network must not keep the process alive.
    os._exit(0)


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()
    time.sleep(LAST_SECONDS)
    os._exit(1)
