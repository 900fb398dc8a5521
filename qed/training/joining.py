"""Lets a process that was started as a rank find the others."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from qed.config.ranks_settings import ParallelSettings
from qed.errors import RankLost, UsageError
from qed.training.parallel import ALONE, NOT_SHARDED, Parallel

LOCAL = (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))  # in torchrun's environment
FOREVER = datetime.timedelta(days=7)  # the rank monitor ends such a wait and knows which rank failed
SILENT = 30.0  # seconds between messages of a rank that waits for the others


def join_ranks(device: torch.device | str, settings: ParallelSettings = NOT_SHARDED, seconds: float = 0.0) -> Parallel:
    """Join the other ranks if this process was started as one of several; leave them at its exit.

    Args:
        device: device of the model; CUDA tensors are exchanged by NCCL, all others by gloo.
        settings: what is sharded.
        seconds: how long a rank may wait for the others to start; 0 waits forever.

    Raises:
        UsageError: torchrun's environment variables are incomplete, or the ranks cannot use this device.
        RankLost: another rank has not started.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return ALONE
    local_rank, local_world = (int(os.environ.get(name, default)) for name, default in LOCAL)
    _claim_device(torch.device(device), local_rank)
    if not dist.is_initialized():  # an earlier run in this process, or Ray, may have joined them already
        backend = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
        try:
            with _tell_of_waiting(world):
                start = datetime.timedelta(seconds=seconds) if seconds else FOREVER
                store, rank, _ = next(rendezvous("env://", timeout=start))
                dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=FOREVER)
        except (ValueError, RuntimeError) as error:  # from the environment variables, or from torch.distributed
            reason = str(error).rstrip(".")
            raise (UsageError if isinstance(error, ValueError) else RankLost)(
                f"WORLD_SIZE is {world}, so this process is one of several, but it cannot find the others: {reason}. "
                "Start all of them with torchrun, or with qed METHOD --ranks N."
            ) from error
        atexit.register(dist.destroy_process_group)
    return Parallel(dist.get_rank(), world, local_rank, local_world, settings)


def _claim_device(device: torch.device, local_rank: int) -> None:
    """Make this rank's CUDA device the current one: each rank of a machine has its own device.

    Raises:
        UsageError: there are fewer devices than ranks, or all ranks would use the same one.
    """
    if device.type == "cpu":
        return
    if device.type != "cuda" or device.index is not None:
        raise UsageError(
            f"The device {device} cannot be shared by several ranks. Use model.device cuda, which gives each rank of a "
            "machine its own device, or cpu."
        )
    if local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"Rank {local_rank} of this machine has no CUDA device: there are {torch.cuda.device_count()}. Start as "
            "many ranks as devices, or use model.device cpu."
        )
    torch.cuda.set_device(local_rank)


@contextmanager
def _tell_of_waiting(world: int) -> Iterator[None]:
    """Report on standard error what this rank waits for if that takes long; only each machine's first rank does."""
    found = threading.Event()
    rank, address, port = (os.environ.get(name, "?") for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))

    def tell() -> None:
        waited = 0.0
        while not found.wait(SILENT):
            waited += SILENT
            sys.stderr.write(
                f"Rank {rank} of {world} has waited {waited:.0f} s for the others to connect to {address}:{port} "
                "(MASTER_ADDR, MASTER_PORT). Have all been started, and can they reach that address?\n"
            )
            sys.stderr.flush()

    if os.environ.get("LOCAL_RANK", "0") == "0":
        threading.Thread(target=tell, name="waiting for ranks", daemon=True).start()
    try:
        yield
    finally:
        found.set()
