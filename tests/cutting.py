"""Runs that are cut, killed or stopped and go on: small ones, in processes of their own, and how to compare them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qed.cli.main import main
from qed.data.tasks import arithmetic
from qed.guards import faults
from qed.randomness import derive_seed
from qed.runs import manifest
from qed.runs.run import read_lines
from qed.types import Grade, Groups

PROBLEMS, STEPS = 12, 4
# Five problems of twelve a step: an epoch ends within the third step.
SHARED = ["--model", "new:tiny", "--seed", 3, "--run.save_every", 1, "--run.threads", 1]
SHARED += ["--evaluation.problems", 2, "--sampling.max_tokens", 6, "--run.on_no_signal", "warn"]
SHARED += ["--run.preflight", "false"]  # its answers would pass the points of a rollout too
SMALL = [*SHARED, "--steps", STEPS, "--lr", 1e-3]
ONLINE = ["--sampling.problems_per_step", 5, "--sampling.group_size", 4]
OFFLINE = ["--learner.batch_size", 10]
# The least that a run of SFT takes.
TINY = ["--sampling.max_tokens", 8, "--evaluation.problems", 2, "--learner.batch_size", 4, "--learner.lr", 0.01]
TINY += ["--run.threads", 1, "--run.preflight", "false"]
# What only a log says of a run: when and where, how fast, and that it was cut at all.
ABOUT_ATTEMPTS = {"resumed", "interrupted", "failed", "checkpoint_rejected", "threads_changed", "preflight"}
ABOUT_ATTEMPTS |= {"mkl_cbwr_changed", "alignment_matters", "sampler_check", "rank_lost", "hung", "servers"}
TIMES = ("time/", "perf/", "mem/", "sampler/write_seconds", "sampler/update_seconds")


def by_chance(groups: Groups, _: Any) -> None:
    """Stands in for grading: a fresh model is never right, so chance decides, by what an answer says."""
    for rollout in (rollout for some in groups for rollout in some):
        right = derive_seed(*rollout.output) % 2 == 0
        rollout.grade = Grade(float(right), right, True, None)


def write_data(folder: Path) -> tuple[Path, Path]:
    """Problems with a worked solution, and preference pairs."""
    problems, pairs = folder / "problems.jsonl", folder / "pairs.jsonl"
    rows = [
        {"question": f"What is {n} + 7?", "answer": str(n + 7), "solution": f"{n} and 7 make {n + 7}.", "level": n % 3}
        for n in range(PROBLEMS + 2)
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    both = [
        {"prompt": row["question"], "chosen": row["solution"], "rejected": f"I do not know about {row['answer']}."}
        for row in rows
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in both), encoding="utf-8")
    return problems, pairs


def run_small(arguments: Sequence[object]) -> None:
    """Call `qed` on little training data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(arithmetic.COUNT, "train", 40)
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
    assert not left.value.code


def cut(run: Path, at: int, to: Path) -> Path:
    """A copy of a run as if it had been killed right before the checkpoint behind step `at`."""
    shutil.copytree(run, to, symlinks=True)
    for step, folder in manifest.list_checkpoints(to).items():
        if step > at:
            shutil.rmtree(folder)
    for pointer in ("final", "best", "report.html"):
        (to / pointer).unlink(missing_ok=True)
    return to


def assert_same(one: Path, other: Path) -> None:
    """Everything that a run leaves behind is the same, but for times and what tells of its interruptions."""
    assert _metrics(one) == _metrics(other)
    assert _events(one) == _events(other)
    for pattern in ("rollouts/*.zst", "eval/*/*.jsonl"):
        found = [sorted(path.relative_to(run) for path in run.glob(pattern)) for run in (one, other)]
        assert found[0] == found[1]
        for path in found[0]:
            assert read_lines(one / path) == read_lines(other / path), path
    ends = [max(manifest.list_checkpoints(run)) for run in (one, other)]
    assert ends[0] == ends[1]
    # Of every file, its checksum: the weights, the optimizer, the answers that are held, the tokenizer and the counts.
    assert _files(one, ends[0]) == _files(other, ends[0])


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in read_lines(run / "metrics.jsonl")]


def _events(run: Path) -> list[str]:
    """The kinds and contents of the events, each once, in the order in which they were first told."""
    rows = [row for row in read_lines(run / "events.jsonl") if row["event"] not in ABOUT_ATTEMPTS]
    return list(dict.fromkeys(json.dumps({k: v for k, v in row.items() if k != "time"}) for row in rows))


def _files(run: Path, step: int) -> dict[str, Any]:
    folder = manifest.list_checkpoints(run)[step]
    assert manifest.list_damage(folder) == []
    found: dict[str, Any] = json.loads((folder / manifest.NAME).read_text())["files"]
    return found


def forked(arguments: Sequence[object], log: Path, fault: str = "") -> tuple[int, str]:
    """A command in a process of its own, which begins as a copy of this one: its exit code, below 0 where a signal
    killed it, and what it said."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), log.read_text(encoding="utf-8")
    code = 99
    try:
        sys.stdout = sys.stderr = log.open("w", encoding="utf-8", buffering=1)
        faults.ARMED = fault
        main([str(argument) for argument in arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:  # noqa: BLE001 -- whatever it is, the copy of the test must not go on
        traceback.print_exc()
    finally:
        os._exit(code)
