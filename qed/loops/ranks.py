"""Opens a run's folder on every rank, and watches the other ranks while the run lasts."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from qed.errors import UsageError
from qed.guards.ranks import RankMonitor, build_early_loss, watch_ranks
from qed.guards.signals import Stop
from qed.loops.material import hash_problems
from qed.runs.follower import FollowerRun
from qed.runs.run import Launch, Run
from qed.training.parallel import Parallel
from qed.types import Problem


def open_records(folder: Path, launch: Launch, parallel: Parallel) -> Run:
    """Open a run's folder for writing; ranks other than the first write only their own logs.

    Raises:
        UsageError: another rank does not see the folder.
    """
    run = Run(folder, launch.home) if parallel.is_first else None
    attempt = parallel.run_on_first(lambda: run.attempt if run is not None else 0)
    follower = FollowerRun(folder, launch.home, attempt, parallel.rank)
    parallel.exchange(lambda: follower.require_shared(socket.gethostname()))
    return run or follower


def require_same_data(training: str, held_out: Sequence[Problem], parallel: Parallel) -> None:
    """Require the same problems on every rank; otherwise the ranks would train on parts of different steps.

    Args:
        training: hash of this rank's training problems.
        held_out: problems that this rank evaluates.
        parallel: the ranks.

    Raises:
        UsageError: a rank has different problems.
    """
    if parallel.world == 1:
        return
    found = parallel.exchange(lambda: ((training, hash_problems(held_out)), socket.gethostname()))
    (first, host), *_ = found
    for rank, (hashes, machine) in enumerate(found):
        if hashes != first:
            raise UsageError(
                f"Rank {rank} on {machine} reads other problems than rank 0 on {host}. Put the same data files on each "
                "machine, or on shared storage, under the same path."
            )


@contextmanager
def watch_other_ranks(parallel: Parallel, stop: Stop, seconds: float, run: Run) -> Iterator[None]:
    """Exchange heartbeats with the other ranks; if one is lost, report which.

    Raises:
        RankLost: a collective operation failed because a rank has ended.
    """
    if parallel.world == 1:
        yield
        return
    try:
        store = parallel.open_store()
    except RuntimeError as error:
        raise build_early_loss(error) from error
    # The lowest remaining rank writes the event, even if it is not rank 0.
    monitor = RankMonitor(store, parallel.rank, parallel.world, stop, seconds, partial(Run.event, run))
    with watch_ranks(monitor):
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises
            lost = monitor.find_lost()
            if lost is None:
                raise
            raise lost from error
