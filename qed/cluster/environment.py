"""The environment variables that tell a process of a run its rank: torchrun's, to which Slurm's are mapped.

RANK and WORLD_SIZE: its number among all processes, and their number. LOCAL_RANK and LOCAL_WORLD_SIZE: the same on this
machine. GROUP_RANK: the machine's number. MASTER_ADDR and MASTER_PORT: where the processes connect to each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress

from qed import host
from qed.errors import UsageError

SLURM_PORT = "29500"  # the default of torchrun


def read_world(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks; None if it was not started as a rank.

    Raises:
        UsageError: the variables contradict each other.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    texts = environment["RANK"], environment["WORLD_SIZE"]
    if not all(text.isascii() and text.isdecimal() for text in texts) or int(texts[0]) >= int(texts[1]):
        raise UsageError(
            f"The environment says RANK={texts[0]} and WORLD_SIZE={texts[1]}, which is not a valid rank and number of "
            "ranks. Unset both, or let torchrun set them."
        )
    return int(texts[0]), int(texts[1])


def is_first_rank() -> bool:
    """Return whether this process is alone or rank 0, and thus prints results."""
    world = read_world()
    return world is None or world[0] == 0


def describe_idle_rank(command: str) -> str:
    """Return what a rank other than 0 prints for a command that only rank 0 runs; empty for rank 0 or without ranks."""
    world = None
    with suppress(UsageError):  # such a command needs no ranks, whatever the variables say
        world = read_world({**os.environ, **map_slurm()})
    if world is None or world[0] == 0:
        return ""
    return (
        f"qed {command}: rank {world[0]} of {world[1]} has nothing to do, because rank 0 does the work alone. "
        "If there is no rank 0, unset RANK and WORLD_SIZE."
    )


def must_launch(ranks: int) -> bool:
    """Return whether this process has to start `ranks` processes instead of training itself.

    Raises:
        UsageError: the processes have already been started, and their number differs.
    """
    world = read_world()
    if world is None or ranks == 1:
        return ranks > 1
    if world[1] != ranks:
        raise UsageError(
            f"--ranks {ranks}, but this process is one of {world[1]} that torchrun, srun or another launcher has "
            "started (RANK and WORLD_SIZE are set). Leave --ranks out."
        )
    return False


def map_slurm(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Derive torchrun's variables from Slurm's for a task that `srun` has started; empty for any other process.

    Slurm provides no port, and no address that all machines know, so MASTER_ADDR must be set; it also marks the tasks
    as belonging to one run. A batch script is not a task: SLURM_STEP_NUM_TASKS exists only under `srun`.
    """
    tasks = _read_tasks(environment)
    if not tasks or "MASTER_ADDR" not in environment:
        return {}
    node = environment.get("SLURM_NODEID", "0")
    local = _count_local_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE", str(tasks)), int(node))
    variables = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": node,
    }
    threads = environment.get("SLURM_CPUS_PER_TASK") or str(share_cores(local))
    defaults = {"MASTER_PORT": SLURM_PORT, "OMP_NUM_THREADS": threads}
    return variables | {name: value for name, value in defaults.items() if name not in environment}


def describe_separate_tasks(environment: Mapping[str, str] = os.environ) -> str:
    """Return a warning for the first of several `srun` tasks that are not ranks of one run; else an empty string."""
    tasks = _read_tasks(environment)
    if not tasks or "MASTER_ADDR" in environment or environment.get("SLURM_PROCID", "0") != "0":
        return ""
    return (
        f"Warning: srun has started {tasks} tasks, and each trains by itself. For one run with a rank in each, set "
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) before srun.\n'
    )


def _read_tasks(environment: Mapping[str, str]) -> int:
    """Return the number of tasks that `srun` has started with this process; 0 for one task or another launcher."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    several = tasks.isdecimal() and int(tasks) > 1 and "RANK" not in environment
    return int(tasks) if several else 0


def share_cores(ranks: int) -> int:
    """Return the threads for numeric kernels of each of `ranks` processes on this machine."""
    return max(1, host.choose_threads() // ranks)


def _count_local_tasks(tasks_per_node: str, node: int) -> int:
    """Return a node's number of tasks from Slurm's list, such as `4(x2),3` for 4, 4 and 3 tasks."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node):
        counts += [int(count)] * int(times or 1)
    return counts[node] if node < len(counts) else counts[-1]
