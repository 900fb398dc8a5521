"""A learner of a run on a Ray cluster: a worker of Ray Train that starts one rank, and forwards its output.

The rank is a separate process, started as `qed METHOD --ranks N` starts one. So signals, exit codes, threads and the
watchdog work as in every other run, and the worker itself holds neither torch nor GPU memory.

This module requires ray.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig

from qed.cluster.environment import share_cores
from qed.cluster.launch import Rank, kill_ranks
from qed.cluster.ray_control import DONE, Orders, RankState, Start, choose_arguments, read_inode
from qed.cluster.ray_engines import Relay
from qed.cluster.watch import TAIL
from qed.errors import RankLost, UsageError
from qed.guards.parents import LAUNCHER, build_child_command
from qed.guards.redaction import redact
from qed.net.ports import reserve_port
from qed.runs.folder import lock_folder
from qed.runs.run import write_bytes
from qed.runs.step_file import encode_line
from qed.serving.placed import FOLDER

TICK = 0.2  # seconds
LOCK_SECONDS = 120  # for the folder of a restarting run to become free; NFS gives up a client after 90 s
ATTEMPT = "QED_ATTEMPT"  # environment variable of a worker
READ_ADDRESS = 0x8915  # SIOCGIFADDR of Linux: read the IPv4 address of a network interface
_held = ExitStack()  # the port of the ranks' store, which rank 0's worker reserves


@dataclass
class MeetingConfig(BackendConfig):  # type: ignore[misc]
    """Tells the ranks of each group of workers how to connect to each other, in place of Ray Train's torch group.

    Args:
        control: the handle of the run's `Control`.
        backend: a field that TorchTrainer requires; the ranks choose their backend themselves.
    """

    control: Any = None
    backend: str = "gloo"

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that Ray Train instantiates for each group."""
        return MeetingBackend


class MeetingBackend(Backend):  # type: ignore[misc]
    """Starts an attempt when Ray Train has created a group of workers. The ranks of a node see all of its GPUs."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: MeetingConfig) -> None:
        """Choose the address of rank 0, and send it to all workers."""
        attempt = ray.get(backend_config.control.begin.remote())
        address, port = worker_group.execute_single(0, choose_address)
        variables = {"MASTER_ADDR": address, "MASTER_PORT": str(port), ATTEMPT: str(attempt)}
        worker_group.execute(set_variables, variables)


def set_variables(variables: Mapping[str, str]) -> None:
    """Set environment variables of a worker."""
    os.environ.update(variables)


def choose_address() -> tuple[str, int]:
    """Return the address of this node and a port, which is reserved while this process lives."""
    return ray.util.get_node_ip_address(), _held.enter_context(reserve_port())


def run_rank(config: Mapping[str, Any]) -> None:
    """Run one rank to its end; Ray Train calls this in every worker.

    Args:
        config: its entry `control` is the handle of the run's `Control`.

    Raises:
        RankLost: the rank was lost with others, or killed; Ray Train then restarts all of them.
    """
    context = ray.train.get_context()
    number, attempt, host = context.get_world_rank(), int(os.environ[ATTEMPT]), socket.gethostname()
    control = config["control"]
    with tempfile.TemporaryDirectory(prefix="qed-rank-") as folder, ExitStack() as stack:
        place = f"a process on {host}"
        try:
            start = ray.get(control.join.remote(number, place))
            if number == 0:
                ray.get(control.remember_folder.remote(read_inode(start.job)))
                _prepare_folder(start, lambda: ray.get(control.join.remote(number, place)))
            relay = None
            if hosts := config.get("hosts"):
                relay = Relay(hosts, Path(folder) / "servers", config["shared"], start.job.failures)
            rank = _start(context, start, Path(folder), {FOLDER: str(relay.folder)} if relay else {})
            place = f"process {rank.process.pid} on {host}"
        except (UsageError, OSError) as error:
            state = RankState(place, getattr(error, "exit_code", 1), (f"error: {error}",))
            orders = _wait_for_verdict(control, attempt, number, state)
        else:
            stack.callback(kill_ranks, [rank])
            orders = _relay(control, attempt, rank, place, Path(folder), relay.tick if relay else lambda: None)
    if orders.verdict != DONE:
        raise RankLost(f"Rank {number} ({place}) has ended, and all ranks restart.")


def _start(context: Any, start: Start, folder: Path, more: Mapping[str, str]) -> Rank:
    """Start the process of a rank with additional environment variables; its output goes to files.

    Raises:
        UsageError: this node does not have the folder in which the command was started.
    """
    job = start.job
    if not Path(job.cwd).is_dir():
        raise UsageError(
            f"{socket.gethostname()} has no folder {job.cwd}, in which the command was started. Start it in a folder "
            "that all nodes share, under the same path."
        )
    number, local = context.get_world_rank(), context.get_local_world_size()
    variables = {
        "RANK": str(number),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(context.get_node_rank()),
        LAUNCHER: str(os.getpid()),
        **more,
    }
    # Ray gives each worker as many threads as it reserves CPUs for it.
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    defaults = {"OMP_NUM_THREADS": str(share_cores(local)), **_choose_interface(ray.util.get_node_ip_address())}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            build_child_command(choose_arguments(start)),
            cwd=job.cwd,
            env={**defaults, **inherited, **job.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    # The output of rank 0 is shown as it arrives, so its last error need not be shown again.
    return Rank(number, process, folder / "err" if number else None)


def _prepare_folder(start: Start, beat: Callable[[], object]) -> None:
    """Wait until no process writes to the restarting run, and append the event `restarted` if the run exists.

    A file server keeps the lock of a lost node for a while. `beat` is called once per second.
    """
    folder = Path(start.job.cwd, start.job.folder)
    for _ in range(LOCK_SECONDS if start.attempt > 1 else 0):
        with suppress(UsageError), lock_folder(folder):
            break
        beat()
        time.sleep(1.0)
    if start.attempt > 1 and (folder / "settings.yaml").is_file():
        what = {"restart": start.attempt - 1, "of": start.job.failures, "reason": redact(start.reason)}
        line = encode_line({"event": "restarted", "time": round(time.time(), 3), **what})
        with suppress(OSError):
            write_bytes(folder / "events.jsonl", line.encode(), append=True)


def _choose_interface(address: str) -> dict[str, str]:
    """Make gloo use the network interface of this node's address in Ray, instead of that of the host name."""
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            wanted = socket.inet_aton(address)
            for _, name in socket.if_nameindex():
                with suppress(OSError):
                    answer = fcntl.ioctl(asking, READ_ADDRESS, struct.pack("256s", name.encode()[:15]))
                    if answer[20:24] == wanted:
                        return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _relay(control: Any, attempt: int, rank: Rank, place: str, folder: Path, tick: Callable[[], None]) -> Orders:
    """Forward a rank's output and the signals for it, until it has ended and the command has judged the attempt.

    `tick` is called a few times per second.
    """
    with (folder / "out").open("rb") as out, (folder / "err").open("rb") as err:
        while True:
            state = RankState(place, rank.code)
            said = (out.read(), err.read()) if rank.number == 0 else (b"", b"")
            if state.code is not None:
                state = RankState(place, state.code, tuple(rank.read_errors()), tuple(rank.read_errors(TAIL)))
                ray.get(control.exchange.remote(attempt, rank.number, state, *said))
                return _wait_for_verdict(control, attempt, rank.number, state)
            orders = ray.get(control.exchange.remote(attempt, rank.number, state, *said))
            for number, group in orders.signals:
                rank.send(number, group)
            tick()
            time.sleep(TICK)


def _wait_for_verdict(control: Any, attempt: int, number: int, state: RankState) -> Orders:
    """Report the end of a rank until the command has judged the attempt."""
    while True:
        orders: Orders = ray.get(control.exchange.remote(attempt, number, state))
        if orders.verdict:
            return orders
        time.sleep(TICK)
