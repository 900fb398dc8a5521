"""`--cluster`: chunks as tasks of a Ray cluster of two nodes on this machine, one of which is lost in the middle."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qed.cluster import chunks, grading, ray_session
from qed.errors import DataError, QedError, UsageError
from qed.evaluation.shards import find_shard_folder, find_shards
from qed.runs.run import read_lines

Qed = Callable[..., Any]
MEMORY = 100 * 2**20  # bytes of a node's object store
TIMES = {"seconds", "cases_per_second", "slowest_seconds"}


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes with one CPU each; not yet connected."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'qed[ray]'")
    ray_session.load_ray()
    from ray.cluster_utils import Cluster  # noqa: PLC0415 -- an extra

    options = {"num_cpus": 1, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **options})
    try:
        cluster.add_node(**options)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def cluster(two_nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The cluster as the one that `auto` finds, from a folder of its own."""
    monkeypatch.setenv("RAY_ADDRESS", two_nodes.address)
    monkeypatch.chdir(tmp_path)
    return two_nodes


def write_answers(count: int) -> None:
    rows = [{"answer": str(n % 7), "response": f"\\boxed{{{n % 5}}}"} for n in range(count)]
    Path("answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def drop_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_an_evaluation_on_a_cluster_equals_one_process(qed: Qed, cluster: Any) -> None:
    problems = [{"question": f"{a} + 2?", "answer": str(a + 2)} for a in range(8)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    command = ("evaluate", "--model", "new:tiny", "--tasks", "sums.jsonl", "--max-tokens", 4, "--rows-per-batch", 1)
    assert qed(*command, "--out", "whole").code == 0
    shared = qed(*command, "--out", "shared", "--cluster", "auto")
    assert shared.code == 0, shared.err
    assert "2 nodes, 2 CPUs" in shared.out
    for name in ("sums.jsonl", "summary.json"):
        here, there = (Path(out, "eval/step_000000", name).read_bytes() for out in ("shared", "whole"))
        assert here == there
    other = qed(*command, "--out", "shared", "--cluster", "auto", "--seed", 1)
    assert (other.code, "seed 0 there and 1 here" in other.err) == (2, True)
    assert sorted(path.name for path in Path("shared").iterdir()) == ["command.txt", "env.json", "eval"]


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_an_interrupted_grading_goes_on(qed: Qed, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_answers(60)
    monkeypatch.setattr(grading, "BLOCK", 5)
    folder = find_shard_folder(Path("graded.jsonl"), is_file=True)
    real = chunks.check_signals

    def interrupt(point: str, progress: bool = True) -> None:
        real(point, progress)
        if list(folder.glob("shard-*")):
            raise KeyboardInterrupt

    command = ("grade", "answers.jsonl", "--out", "graded.jsonl", "--cluster", cluster.address, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "check_signals", interrupt)
        stopped = qed(*command)
    assert (stopped.code, "the same command continues" in stopped.err) == (130, True)
    kept = {path: path.stat().st_mtime_ns for path in find_shards([folder])}
    gone_on = qed(*command)
    assert gone_on.code == 0, gone_on.err
    assert f"{len(kept)} of 12 chunks are already finished." in gone_on.err
    whole = qed("grade", "answers.jsonl", "--out", "whole.jsonl", "--json")
    assert drop_times([gone_on.result]) == drop_times([whole.result])
    assert drop_times(read_lines(Path("graded.jsonl"))) == drop_times(read_lines(Path("whole.jsonl")))
    assert not folder.exists()


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_an_error_of_a_task_is_that_of_the_command(qed: Qed, cluster: Any) -> None:
    Path("answers.jsonl").write_text('{"answer": "1", "response": "1"}\n{"answer": "1"}\n')
    failed = qed("grade", "answers.jsonl", "--out", "graded.jsonl", "--cluster", "auto")
    assert failed.code == DataError.exit_code
    assert "answers.jsonl, row 2: there is no column" in failed.err
    assert "Traceback" not in failed.err


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_a_task_whose_worker_always_dies_ends_the_command(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRIES", 1)
    lost = pytest.raises(QedError, match=r"lost 2 times, with its worker or node: .*the same command continues")
    with ray_session.connect("auto"), lost:
        chunks.Tasks(chunks.Slot(1.0)).run(lambda: os._exit(1), ())


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_every_node_must_see_the_folder(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_session.connect("auto") as session:
        assert (session.nodes, session.cpus, session.gpus) == (2, 2, 0)
        ray_session.require_shared(tmp_path / "shared")
        assert not list((tmp_path / "shared").iterdir())
        # As on a node that does not mount it.
        monkeypatch.setattr(ray_session, "_probe_folder", lambda probe, node, seconds: "does not see it")
        with pytest.raises(UsageError, match=r"not on storage that all nodes share: .*does not see it"):
            ray_session.require_shared(tmp_path / "shared")


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_the_chunks_of_a_lost_node_are_graded_elsewhere(
    qed: Qed, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes last, because the cluster has one node less after it."""
    write_answers(400)
    monkeypatch.setattr(grading, "BLOCK", 2)
    folder = find_shard_folder(Path("graded.jsonl"), is_file=True)
    node = next(iter(cluster.worker_nodes))
    lost = threading.Event()

    def lose_node() -> None:
        while len(list(folder.glob("shard-*"))) < 10:
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)
        lost.set()

    thread = threading.Thread(target=lose_node, daemon=True)
    thread.start()
    done = qed("grade", "answers.jsonl", "--out", "graded.jsonl", "--cluster", "auto", "--json")
    assert done.code == 0, done.err
    assert lost.is_set()
    whole = qed("grade", "answers.jsonl", "--out", "whole.jsonl", "--json")
    assert drop_times([done.result]) == drop_times([whole.result])
    assert drop_times(read_lines(Path("graded.jsonl"))) == drop_times(read_lines(Path("whole.jsonl")))


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert ray_session.find_address("auto") == "auto"
    assert ray_session.find_address("head:6379") == "head:6379"
    for address in ("head", "head:", ":6379", "head:x", "head:99999"):
        with pytest.raises(UsageError, match="auto or HOST:PORT"):
            ray_session.find_address(address)
    for address in ("ray://head:10001", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
        with pytest.raises(UsageError, match="Ray Client, which supports neither"):
            ray_session.find_address(address)


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_nothing_listens() -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'qed[ray]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    refused = pytest.raises(UsageError, match=f"No Ray cluster answered at {address}")
    with refused, ray_session.connect(address, seconds=0.2):
        pass


def test_ray_is_not_installed(qed: Qed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "answers.jsonl").write_text('{"answer": "1", "response": "1"}\n')
    refused = qed("grade", tmp_path / "answers.jsonl", "--out", tmp_path / "out.jsonl", "--cluster", "auto")
    assert (refused.code, "pip install 'qed[ray]'" in refused.err) == (2, True)
