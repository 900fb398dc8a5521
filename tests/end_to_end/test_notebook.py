"""qed in a notebook: the example runs as it is, shows its progress and report, and an interrupted cell goes on."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "quickstart.ipynb"
SECONDS = 240
CELL = """
import qed

async def reward(rollout):
    return len(rollout.text) / 100

def train(steps, **launch):
    small = {"sampling.max_tokens": 8, "evaluation.problems": 2, "run.preflight": False, "run.save_every": 0}
    return qed.train("grpo", tasks=[{"question": f"{n}+1?", "answer": n + 1} for n in range(40)], steps=steps,
                     reward=reward, out="run", **small, **launch)
"""


def run_notebook(folder: Path) -> Any:
    """Execute the example in a folder and return it with its outputs."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are cleared before a commit"
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


@pytest.mark.slow
def test_the_example_runs_and_shows_progress_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = run_notebook(tmp_path)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    data = [output["data"] for output in shown if "data" in output]
    lines = [each["text/plain"] for each in data if re.match(r"step \d+/\d+", each.get("text/plain", ""))]
    assert [line.split()[1] for line in lines] == ["40/40", "4/4"], (
        "each phase has one line, which ends with its last step"
    )
    assert sum("<iframe srcdoc=" in each.get("text/html", "") for each in data) == 1
    assert data[-1]["text/plain"] == "Verdict(correct=True, extracted='7 apples', reason='the same value')"


class Cells:
    """A kernel in a folder, whose cells are run one after another."""

    def __init__(self, folder: Path) -> None:
        self.manager, self.client = start_new_kernel(cwd=str(folder))

    def start(self, code: str) -> str:
        """Begin a cell."""
        return str(self.client.execute(code))

    def outputs(self, cell: str) -> Iterator[dict[str, Any]]:
        """Yield the outputs of a cell until it ends."""
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["content"].get("execution_state") == "idle":
                return
            yield message["content"]
        pytest.fail("the cell did not end")

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cells]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kernel = Cells(tmp_path)
    yield kernel
    kernel.close()


@pytest.mark.slow
def test_an_interrupted_cell_leaves_a_run_that_goes_on(cells: Cells, tmp_path: Path) -> None:
    """The kernel has an event loop in its main thread, in which a reward is a coroutine all the same."""
    assert not [output for output in cells.outputs(cells.start(CELL)) if "ename" in output]
    cell, stopped = cells.start("train(100000)"), None
    for output in cells.outputs(cell):
        if re.match(r"step \d+/100000", output.get("data", {}).get("text/plain", "")) and stopped is None:
            cells.manager.interrupt_kernel()
            stopped = output
        last = output
    assert last["ename"] == "Interrupted", last
    saved = re.search(r"Stopped after step (\d+) by SIGINT; its checkpoint is saved", last["evalue"])
    assert saved is not None
    done = int(saved[1])
    cell = cells.start(f"run = train({done + 1}, resume=True); print([row['step'] for row in run.metrics()][-1])")
    outputs = list(cells.outputs(cell))
    assert "ename" not in outputs[-1], outputs[-1]
    assert outputs[-1]["text"] == f"{done + 1}\n"
