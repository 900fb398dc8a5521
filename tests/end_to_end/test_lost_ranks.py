"""Ranks with torch's own store and collectives: one that hangs or is killed is named, and all end with exit code 75.

Each test is a launcher with two small programs, of which one is stopped while the other waits for it in a collective.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BOOT = """
import sys
from qed.cluster.launch import Patience, run_ranks
sys.exit(run_ranks([sys.executable, sys.argv[1]], 2, patience=Patience(20.0, 10.0, 1.0)))
"""
PROGRAM = """
import json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from qed.guards.parents import die_with_launcher
from qed.guards.ranks import RankMonitor, watch_ranks
from qed.guards.signals import EXIT_CODES, watch_signals
from qed.guards.watchdog import HangReport, watch
die_with_launcher()
rank, fault = int(os.environ["RANK"]), os.environ["FAULT"]
dist.init_process_group("gloo", timeout=timedelta(seconds=300))
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*place, is_master=False, timeout=timedelta(seconds=2))
record = lambda event, **more: Path(f"event-{rank}.json").write_text(json.dumps({"event": event, **more}))
report = HangReport(Path(f"stacks-{rank}.txt"), "Resume with --resume --out here", "run.watchdog", record)
def join(name):
    monitor.enter(name)
    dist.all_reduce(torch.ones(1))
    monitor.leave()
with watch_signals() as stop, watch(report, 2.0 if fault.startswith("hang") else 20.0) as dog:
    with watch_ranks(RankMonitor(store, rank, 2, stop, 2.0, record, tick=0.2)) as monitor:
        dog.enter("sample", 3)
        join("begin")
        time.sleep(1)
        if fault == f"stop {rank}":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == f"kill {rank}":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == f"hang {rank}":
            time.sleep(600)
        if fault == "signal":
            if rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            while stop.received is None:
                time.sleep(0.05)
            sys.exit(EXIT_CODES[stop.received])
        try:
            join("gather rollouts")
        except RuntimeError as error:
            failed = monitor.find_lost()
            print("error:", failed, file=sys.stderr)
            sys.exit(failed.exit_code)
"""


def launch(folder: Path, fault: str) -> tuple[int, str]:
    (folder / "rank.py").write_text(PROGRAM)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", BOOT, "rank.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "FAULT": fault},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.faults
@pytest.mark.parametrize("lost", [0, 1])
def test_a_suspended_rank_is_named_and_ends_the_other(tmp_path: Path, lost: int) -> None:
    """The other one is blocked in a collective; with rank 0 the store is gone as well."""
    code, err = launch(tmp_path, f"stop {lost}")
    assert code == 75, err
    if lost == 0:
        assert "[rank 1] error: Rank 1, in 'gather rollouts', has lost another rank: rank 0 (process" in err
        assert "the store of the ranks, which it holds, has not answered for 2 s" in err
    else:
        assert "error: Rank 0, in 'gather rollouts', has lost another rank: rank 1 (process" in err
        assert "no heartbeat for 2 s" in err
    assert "last in stage 'sample' of step 3. Resume with --resume --out here." in err
    assert "most recent call first" in (tmp_path / f"stacks-{1 - lost}.txt").read_text()
    event = json.loads((tmp_path / f"event-{1 - lost}.json").read_text())
    assert (event["event"], event["lost"][0]["rank"]) == ("rank_lost", lost)


@pytest.mark.faults
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_is_named_by_the_launcher(tmp_path: Path, lost: int) -> None:
    code, err = launch(tmp_path, f"kill {lost}")
    assert code == 75, err
    assert f"error: rank {lost} (process" in err
    assert "was killed by SIGKILL" in err
    told = f"Rank {1 - lost}, in 'gather rollouts', has lost another rank: rank {lost} (process"
    assert lost == 0 or f"error: {told}" in err, "which says so on its own stderr"


@pytest.mark.faults
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_makes_no_progress_is_the_one_that_complains(tmp_path: Path, lost: int) -> None:
    """Its watchdog ends it, and the other one, which only waits, is not taken for the culprit."""
    code, err = launch(tmp_path, f"hang {lost}")
    assert code == 75, err
    complaint = "error: No progress for 2 s in stage 'sample' of step 3"
    assert (f"[rank 1] {complaint}" in err) if lost == 1 else (complaint in err and f"[rank 1] {complaint}" not in err)
    assert json.loads((tmp_path / f"event-{lost}.json").read_text())["event"] == "hung"


@pytest.mark.faults
def test_a_signal_to_one_rank_stops_all(tmp_path: Path) -> None:
    code, err = launch(tmp_path, "signal")
    assert code == 128 + signal.SIGTERM, err
