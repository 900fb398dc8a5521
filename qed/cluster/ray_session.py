"""Connect this process to a Ray cluster, and check what its nodes share.

Ray is imported by the first function that needs it, because `qed[ray]` is optional.
"""
# ruff: noqa: PLC0415 -- ray is an extra, and is imported when it is used

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed import host
from qed.errors import UsageError

AUTO, LOCAL, CLIENT = "auto", "local", "ray://"
CONNECT_SECONDS = 30.0  # for the head node to accept connections
SHARED_SECONDS = 60.0  # for all nodes to see a new file, because NFS caches the content of folders
INSTALL = "pip install 'qed[ray]'"
# Variables of this process that the processes of tasks need, because results or downloads depend on them.
PASSED = (*host.WAITING, host.MKL_MODE, "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN")


@dataclass(frozen=True)
class Session:
    """A connection to a cluster: its address, and the total resources of its live nodes."""

    address: str
    nodes: int
    cpus: float
    gpus: float

    def __str__(self) -> str:
        gpus = f", {self.gpus:g} GPUs" if self.gpus else ""
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {self.cpus:g} CPUs{gpus}"


def load_ray() -> Any:
    """Import ray.

    Raises:
        UsageError: it is not installed.
    """
    # Under `uv run`, Ray would otherwise start every worker by `uv run`, which resolves the environment again.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--cluster needs ray, which cannot be imported ({error}). Install it: {INSTALL}.") from error
    return ray


@contextmanager
def connect(address: str, seconds: float = CONNECT_SECONDS) -> Iterator[Session]:
    """Connect to a cluster while the block runs; an existing connection of this process is used and kept.

    Ray replaces the SIGTERM handler when it connects: install signal handlers inside the block. The earlier handler is
    restored after it.

    Args:
        address: `auto` for the cluster of this machine (or of RAY_ADDRESS), HOST:PORT of its head node, or `local` to
            start a cluster of this machine alone, which ends with the block.
        seconds: the deadline for the head node to accept connections.

    Raises:
        UsageError: ray is not installed, the address is none of these, or no cluster answers.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield _describe(ray)
        return
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address == LOCAL:
            ray.init(address=LOCAL, include_dashboard=False, **options)
        else:
            target = find_address(address)
            if target != AUTO:
                _wait_for_listener(target, seconds)
            _join(ray, target, options)
        yield _describe(ray)
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def find_address(address: str) -> str:
    """Return the HOST:PORT of an address; `auto` only if Ray must search for a cluster itself.

    Raises:
        UsageError: it is not an address, or the address of a Ray Client.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    if named.startswith(CLIENT):
        raise UsageError(
            f"{named} is the address of a Ray Client, which supports neither Ray Train nor the folders that qed's "
            "tasks share. Run qed on the cluster, with --cluster auto: log in to a node, or use `ray job submit`."
        )
    if named in ("", AUTO):
        return _read_current_cluster() or AUTO
    machine, _, port = named.rpartition(":")
    if not (machine and port.isdecimal() and port.isascii() and 0 < int(port) < 65_536):
        raise UsageError(f"--cluster takes auto or HOST:PORT, such as 10.0.0.1:6379, not '{named}'.")
    return named


def _read_current_cluster() -> str:
    """Return the address of the cluster that `ray start` has started on this machine; empty without one."""
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray"
    try:
        return (folder / "ray_current_cluster").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _wait_for_listener(target: str, seconds: float) -> None:
    """Wait until something listens, because Ray itself would wait for two minutes and then end the process."""
    machine, _, port = target.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((machine.strip("[]"), int(port)), timeout=max(0.1, end - time.monotonic())):
                return
        except OSError as error:
            if time.monotonic() >= end:
                raise UsageError(
                    f"No Ray cluster answered at {target} within {seconds:g} s ({error.strerror or error}). Start one "
                    "with `ray start --head`, or give the address that it prints: --cluster HOST:PORT."
                ) from error
        time.sleep(min(0.2, seconds))


def _join(ray: Any, target: str, options: dict[str, Any]) -> None:
    """Connect to a cluster that listens.

    Raises:
        UsageError: this is not a node of a cluster of this version of Ray and Python.
    """
    try:
        ray.init(address=target, **options)
    # Ray raises SystemExit if something other than Ray listens there.
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        raise UsageError(
            f"This process cannot join the Ray cluster at {target}: {_shorten(error)}. Run qed on a node of the "
            "cluster, with the same Ray and Python (`ray start --address HOST:PORT` adds this machine), or start a "
            "cluster with `ray start --head`."
        ) from error


def _shorten(error: BaseException) -> str:
    """Return the first sentence of a Ray error, whose texts are long."""
    if isinstance(error, SystemExit):
        return "what listens there is not Ray, or does not answer"
    return " ".join(str(error).split()).split(". ")[0].rstrip(".")[:200]


def _describe(ray: Any) -> Session:
    resources = ray.cluster_resources()
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    address = ray.get_runtime_context().gcs_address
    return Session(address, nodes, resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def read_worker_environment() -> dict[str, str]:
    """Return the variables of this process that tasks need, for `runtime_env={"env_vars": …}`."""
    return {name: os.environ[name] for name in PASSED if name in os.environ}


def require_shared(folder: Path) -> None:
    """Check that every node of the cluster sees this folder and can write to it; requires a connection.

    Raises:
        UsageError: some nodes cannot; the message names them.
    """
    ray = load_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = folder.absolute() / f".shared-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text(probe.name, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made or written: {error.strerror}.") from error
    try:
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        task = ray.remote(num_cpus=0, max_retries=0)(_probe_folder)
        asked = {
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                str(probe), node, SHARED_SECONDS
            ): name
            for node, name in nodes.items()
        }
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=2 * SHARED_SECONDS)
        problems = {asked[each]: _read_probe(ray, each) for each in done} | {asked[each]: "no answer" for each in late}
    finally:
        for file in probe.parent.glob(f"{probe.name}*"):
            file.unlink(missing_ok=True)
    if bad := [f"{name} ({problem})" for name, problem in sorted(problems.items()) if problem]:
        raise UsageError(
            f"{folder} is not on storage that all nodes share: {', '.join(bad)}. Give --out on a shared file system "
            "(NFS, Lustre, …) that is mounted under the same path on every node."
        )


def _read_probe(ray: Any, answer: Any) -> str:
    """Return what is wrong on a node, or an empty text; a node that was lost in the meantime is ignored."""
    try:
        return str(ray.get(answer))
    except ray.exceptions.NodeDiedError:
        return ""
    except ray.exceptions.RayError as error:
        return _shorten(error)


def _probe_folder(probe: str, node: str, seconds: float) -> str:
    """Read and write the probe's folder on another node; return what is wrong, or an empty text."""
    file, end = Path(probe), time.monotonic() + seconds
    while not file.is_file():
        if time.monotonic() >= end:
            return "does not see it"
        time.sleep(0.1)
        with suppress(OSError):
            os.listdir(file.parent)  # makes NFS query the server again
    try:
        file.with_name(f"{file.name}-{node}").write_text("", encoding="utf-8")
    except OSError as error:
        return f"cannot write it: {error.strerror}"
    return ""
