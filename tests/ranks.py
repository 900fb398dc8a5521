"""Several ranks: copies of a process that has imported torch, so that none has to import it again."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from cutting import TIMES
from safetensors.torch import load_file

from qed.cli.main import main
from qed.guards import faults
from qed.runs.run import read_lines
from qed.training.checkpoints import EXACT
from qed.training.slices import has_slices, read_slices

# How much is computed depends on how rows share micro-batches, and how fast on the machine.
OF_COMPUTATION = (*TIMES, "train/computed_tokens")
# What the process imports of which copies are made that call a function.
PRELOADED = ["qed.cli.main", "qed.training.learner", "qed.models.load", "transformers.models.llama.modeling_llama"]
PATIENCE = 120.0  # seconds until ranks that do not end fail a test,
LONG = 600.0  # and until those that train many cases do


@dataclass(frozen=True)
class Ended:
    """How the ranks of a run have ended: their exit codes, below 0 for a signal, and what each has said."""

    codes: list[int]
    said: list[str]

    def __str__(self) -> str:
        return "\n".join(f"rank {rank}: {code}\n{self.said[rank]}" for rank, code in enumerate(self.codes))


class Ranks:
    """A command that runs as several processes.

    Args:
        arguments: of the command line.
        world: the number of ranks; 1 makes a process like any other.
        folder: for what they say.
        faults_of: by rank, a fault as in `qed.guards.faults`.
    """

    def __init__(
        self, arguments: Sequence[object], world: int, folder: Path, faults_of: Mapping[int, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.logs = [folder / f"said_{rank}.txt" for rank in range(world)]
        port = find_port()
        self.processes = []
        for rank, log in enumerate(self.logs):
            log.write_text("", encoding="utf-8")
            child = os.fork()
            if not child:
                _become(arguments, rank, world, port, log, (faults_of or {}).get(rank, ""))
            self.processes.append(child)
        self.codes: dict[int, int] = {}

    def send(self, rank: int, number: int) -> None:
        """Send a signal to a rank that has not ended."""
        if rank not in self.codes:
            os.kill(self.processes[rank], number)

    def poll(self) -> bool:
        """Whether all have ended."""
        for rank, process in enumerate(self.processes):
            if rank not in self.codes:
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)
        return len(self.codes) == len(self.processes)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Wait until all have ended; what does not end in time is killed, and the test fails."""
        end = time.monotonic() + seconds
        while not self.poll():
            if time.monotonic() > end:
                left = [rank for rank in range(len(self.processes)) if rank not in self.codes]
                self.kill()
                raise AssertionError(f"ranks {left} have not ended in {seconds:.0f} s:\n{self._end()}")
            time.sleep(0.01)
        return self._end()

    def kill(self) -> None:
        """Kill those that have not ended."""
        for rank, process in enumerate(self.processes):
            if rank not in self.codes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                self.codes[rank] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def _end(self) -> Ended:
        said = [log.read_text(encoding="utf-8", errors="replace") for log in self.logs]
        return Ended([self.codes[rank] for rank in range(len(self.processes))], said)


def find_port() -> int:
    """A port that is free."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


def gather_from_ranks(find: Callable[[], Any], world: int, folder: Path) -> Any:
    """Call a function of a module as several ranks; what it returns to the first one.

    They are no copies of the test's process, which has run threads of all kinds: such copies have waited for ever for
    the lock of a thread that they do not have, and have found memory in disorder.
    """
    file = folder / "found.pt"
    multiprocessing.set_forkserver_preload(PRELOADED)
    running: Any = torch.multiprocessing.start_processes(
        _find, (find, world, find_port(), file), world, join=False, start_method="forkserver"
    )
    end = time.monotonic() + LONG
    while not running.join(timeout=1.0):
        if time.monotonic() > end:
            for process in running.processes:
                process.kill()
            raise AssertionError(f"the ranks have not ended in {LONG:.0f} s")
    return torch.load(file)


def _find(rank: int, find: Callable[[], Any], world: int, port: int, file: Path) -> None:
    os.environ.update(_name_place(rank, world, port))
    torch.set_num_threads(1)
    found = find()
    if rank == 0:
        torch.save(found, file)
    dist.barrier()


def _name_place(rank: int, world: int, port: int) -> dict[str, str]:
    """The environment variables of a rank on this machine."""
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return {name: str(value) for name, value in {**place, **meeting}.items()}


def run_ranks(arguments: Sequence[object], world: int, out: Path, **options: Any) -> Path:
    """Run a command to its end as several processes; its folder."""
    ended = Ranks([*arguments, "--out", out], world, out.with_name(f"{out.name}-said"), **options).wait()
    assert set(ended.codes) == {0}, ended
    return out


def wait_for_step(out: Path, step: int) -> None:
    """Wait until a run has recorded a step."""
    end = time.monotonic() + PATIENCE
    while not (out / "metrics.jsonl").exists() or f'"step": {step},' not in (out / "metrics.jsonl").read_text():
        assert time.monotonic() < end, f"{out} has not come to step {step}"
        time.sleep(0.01)


def _become(arguments: Sequence[object], rank: int, world: int, port: int, log: Path, fault: str) -> None:
    """Be a rank, and nothing else."""
    code = 99
    try:
        sys.stdout = sys.stderr = said = log.open("a", encoding="utf-8", buffering=1)
        for stream in (1, 2):  # a watchdog writes to these
            os.dup2(said.fileno(), stream)
        os.environ.update(_name_place(rank, world, port))
        faults.ARMED = fault
        main([str(argument) for argument in arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:  # noqa: BLE001 -- whatever it is, the copy of the test must not go on
        traceback.print_exc()
    finally:
        os._exit(code)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, without what depends on the machine and on how the work is cut."""
    rows = read_lines(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith(OF_COMPUTATION)} for row in rows]


def read_weights(run: Path) -> dict[str, torch.Tensor]:
    """The exact weights of a run's last checkpoint, which hf/ rounds if they are float64."""
    folder = (run / "final").resolve()
    if has_slices(folder, EXACT):
        return read_slices(folder, EXACT)
    (file,) = folder.glob("hf/*.safetensors")
    return load_file(file)


def measure_difference(one: Path, other: Path) -> float:
    """The greatest difference of two runs' metrics, relative above 1, and of their weights."""
    found = []
    rows = read_metrics(one), read_metrics(other)
    assert len(rows[0]) == len(rows[1])
    for before, after in zip(*rows, strict=True):
        assert set(before) == set(after)
        for name, value in before.items():
            if isinstance(value, float) and isinstance(after[name], int | float):
                found.append(abs(value - after[name]) / max(1.0, abs(value)))
            else:
                assert value == after[name], (name, value, after[name])
    weights = read_weights(one), read_weights(other)
    assert set(weights[0]) == set(weights[1])
    found += [float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]]
    return float(torch.tensor(found, dtype=torch.float64).max())  # Python's max passes over NaN


def read_rollouts(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every file of rollouts; the advantages of tokens follow a critic's values, whose last bits differ."""
    found = {path.name: read_lines(path) for path in sorted(run.glob("rollouts/*.jsonl.zst"))}
    for row in (row for rows in found.values() for row in rows):
        if isinstance(row.get("advantage"), list):
            row["advantage"] = [round(value, 9) for value in row["advantage"]]
    return found


def read_events(run: Path) -> list[dict[str, Any]]:
    """The rows of events.jsonl."""
    return [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
