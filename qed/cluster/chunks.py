"""Do work in chunks on a Ray cluster: every chunk is a shard, and every shard is a task.

A task writes its shard to the folder that all nodes share, and Ray restarts it if its worker or node is lost. The
driver joins the shards as `qed merge` does. Finished shards are kept after an interruption, and the same command
resumes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.cluster.ray_session import Session, load_ray, read_worker_environment, require_shared
from qed.console.live import Console
from qed.errors import Interrupted, QedError, UsageError, find_exit_code
from qed.evaluation.shards import Shard, is_made
from qed.guards.signals import check_signals, watch_signals
from qed.runs.run import Row

RETRIES = 3  # of a task whose worker or node is lost
POLL_SECONDS = 1.0
LOADS_PER_GPU = 4  # approximate number of tasks per GPU, each of which loads the model
TASKS_PER_SLOT = 2  # tasks to submit at the same time, so that no worker waits for the driver


@dataclass(frozen=True)
class Slot:
    """The resources of a node that one task uses."""

    cpus: float
    gpus: float = 0.0


@contextmanager
def explain_stops(folder: Path, console: Console) -> Iterator[None]:
    """Handle signals while the block runs, and after an interruption print how to continue."""
    try:
        with watch_signals():
            yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        message = f"Interrupted. Finished chunks are in {folder}; the same command continues."
        raise Interrupted(message, find_exit_code(stopped)) from stopped
    finally:
        console.end_phase()
        with suppress(OSError):  # it is empty if the command has written no shard
            folder.rmdir()
            if folder.parent.name == "shards":
                folder.parent.rmdir()


def prepare(folder: Path, session: Session, overwrite: bool, console: Console) -> None:
    """Check that all nodes share the folder of the shards; with `overwrite`, empty it first."""
    console.say(f"Ray cluster {session.address}: {session}.")
    if overwrite:
        shutil.rmtree(folder, ignore_errors=True)
    require_shared(folder)


class Tasks:
    """Starts functions as tasks that each take a slot, and counts the slots of the cluster."""

    def __init__(self, slot: Slot) -> None:
        self.ray = load_ray()
        self.remote: dict[Callable[..., Row], Any] = {}
        self.options = {
            "num_cpus": slot.cpus,
            "num_gpus": slot.gpus,
            "max_retries": RETRIES,
            "runtime_env": {"env_vars": read_worker_environment()},
        }
        self.slot = slot

    def count_slots(self) -> int:
        """Count the slots that the cluster currently has."""
        resources = self.ray.cluster_resources()
        return max(1, int(resources.get("GPU", 0) if self.slot.gpus else resources.get("CPU", 0) / self.slot.cpus))

    def start(self, function: Callable[..., Row], arguments: Sequence[Any]) -> Any:
        """Start a task."""
        if function not in self.remote:  # created once, because Ray sends each remote function to all workers
            self.remote[function] = self.ray.remote(**self.options)(function)
        return self.remote[function].remote(*arguments)

    def collect(self, task: Any, name: str) -> Row:
        """Return the result of a task that has ended.

        Raises:
            QedError: the task failed with this error, or its worker was lost too often.
        """
        try:
            result: Row = self.ray.get(task)
            return result
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self.ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            raise QedError(
                f"{name} was lost {RETRIES + 1} times, with its worker or node: {reason}. Finished chunks are kept; "
                "the same command continues. A worker that always dies there may need more memory."
            ) from error

    def run(self, function: Callable[..., Row], arguments: Sequence[Any]) -> Row:
        """Run one task, and wait for it."""
        task = self.start(function, arguments)
        try:
            while not self.ray.wait([task], timeout=POLL_SECONDS)[0]:
                check_signals("cluster", progress=False)
        except BaseException:
            self.ray.cancel(task)
            raise
        return self.collect(task, "The first task")


def make_shards(
    tasks: Tasks,
    function: Callable[..., Row],
    count: int,
    arguments: Callable[[Sequence[Shard]], Sequence[Any]],
    whole: Row,
    folder: Path,
    console: Console,
) -> list[Path]:
    """Run the tasks of all missing shards, and return the files of all shards.

    Args:
        tasks: starts the tasks.
        function: makes shards: takes a list of shards and its arguments, writes their files and returns counts.
        count: the number of shards.
        arguments: returns the arguments of the task for some shards.
        whole: describes the complete work of which they are shards.
        folder: the folder of the files.
        console: shows the progress.

    Raises:
        UsageError: the folder has shards of other work.
    """
    shards = [Shard(number, count) for number in range(1, count + 1)]
    missing = [shard for shard in shards if not is_made(folder / shard.file, shard, whole)]
    # Ray ends the worker after every GPU task, to free its memory. So a GPU task makes several shards, and each GPU
    # loads the model only a few times. A restarted task makes only the shards that are still missing.
    size = max(1, len(missing) // (LOADS_PER_GPU * tasks.count_slots())) if tasks.slot.gpus else 1
    waiting = deque(missing[start : start + size] for start in range(0, len(missing), size))
    finished, counts, began = count - len(missing), Counter[str](), time.perf_counter()
    running: dict[Any, list[Shard]] = {}
    if finished:
        console.say(f"{finished} of {count} chunks are already finished.")
    console.phase("", finished, "chunk")
    try:
        while waiting or running:
            while waiting and len(running) < TASKS_PER_SLOT * tasks.count_slots():
                group = waiting.popleft()
                running[tasks.start(function, (group, *arguments(group)))] = group
            done, _ = tasks.ray.wait(list(running), timeout=POLL_SECONDS)
            check_signals("cluster", progress=bool(done))
            for task in done:
                group = running.pop(task)
                counts.update(tasks.collect(task, f"Chunk {group[0]}"))
                finished += len(group)
                console.step(finished, count, _format_progress(counts, time.perf_counter() - began))
    finally:
        for task in running:
            tasks.ray.cancel(task)
    console.end_phase()
    return [folder / shard.file for shard in shards]


def _format_progress(counts: Counter[str], seconds: float) -> dict[str, float]:
    accuracy = {"accuracy": counts["correct"] / counts["answers"]} if counts["answers"] else {}
    speed = {"perf/tokens_per_s": counts["tokens"] / seconds} if counts["tokens"] else {}
    return {**accuracy, **speed}


def enter_folder(cwd: str) -> None:
    """Change to the driver's folder, so that relative paths mean the same.

    Raises:
        UsageError: this node does not have the folder.
    """
    try:
        os.chdir(cwd)
    except OSError as error:
        raise UsageError(
            f"The node {os.uname().nodename} has no folder {cwd} ({error.strerror}). Start qed in a folder that all "
            "nodes have, such as a shared home directory."
        ) from error
