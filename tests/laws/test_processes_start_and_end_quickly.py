"""A process of the command line imports without looking for garbage, and ends without freeing what it has imported;
all that a user can see of its end is that of any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What Python frees only when it tears its modules down.
KEPT = "class Freed:\n    def __del__(self): print('freed')\nkept = Freed()\n"
# The command line, in which something registers a function and starts a thread that takes longer than it.
BUSY = (
    "import atexit, threading, time\nfrom qed.__main__ import run\n{before}import qed.cli.main\n"
    "main = qed.cli.main.main\n"
    "def wait():\n    time.sleep(0.2)\n    print('thread')\n"
    "def begin():\n"
    "    atexit.register(print, 'registered')\n    threading.Thread(target=wait).start()\n    main()\n"
    "qed.cli.main.main = begin\nrun()\n"
)


def run(code: str, *arguments: str) -> tuple[int, list[str]]:
    environment = {**os.environ, "COVERAGE_PROCESS_START": ""}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["no-such-command"], 2)])
def test_a_process_ends_with_its_code_after_what_was_registered(arguments: list[str], code: int) -> None:
    ended, lines = run(KEPT + BUSY.format(before=""), *arguments)
    assert (ended, lines[-2:]) == (code, ["thread", "registered"])


def test_what_was_registered_before_the_command_line_is_not_lost() -> None:
    ended, lines = run(KEPT + BUSY.format(before="atexit.register(print, 'before')\n"), "--version")
    assert (ended, lines[1:]) == (0, ["thread", "registered", "before", "freed"])


def test_an_interrupt_outside_of_a_command_is_the_systems_affair() -> None:
    boot = (
        "from qed.__main__ import run\nimport qed.cli.main\n"
        "def end(): raise KeyboardInterrupt\n"
        "qed.cli.main.main = end\nrun()\n"
    )
    assert run(boot)[0] in (130, -2)


def test_garbage_is_collected_as_usual_once_a_model_is_there() -> None:
    code = (
        "import gc\nfrom torch import nn, device\nfrom qed import host\n"
        "from qed.config.settings import ModelSettings\nfrom qed.models.load import prepare_model\n"
        "usual = gc.get_threshold()\n"
        "host.collect_garbage_rarely()\nhost.collect_garbage_rarely()\nrare = gc.get_threshold()\n"
        "prepare_model(nn.Linear(1, 1), ModelSettings(), device('cpu'))\n"
        "print(rare == host.START_THRESHOLDS, gc.get_threshold() == usual, gc.get_freeze_count() > 0)"
    )
    assert run(code) == (0, ["True True True"])


def test_garbage_is_collected_as_usual_in_a_program_that_imports_qed() -> None:
    code = (
        "import gc\nfrom qed import host\nbefore = gc.get_threshold(), gc.get_freeze_count()\n"
        "host.collect_garbage_as_usual()\nprint((gc.get_threshold(), gc.get_freeze_count()) == before)"
    )
    assert run(code) == (0, ["True"])


def test_grading_a_file_loads_no_numpy(tmp_path: Path) -> None:
    """It would take as long as 3,000 answers."""
    file = tmp_path / "answers.jsonl"
    file.write_text('{"gold": "7", "response": "It is 7."}\n' * 3, encoding="utf-8")
    code = (
        "import atexit, sys\nfrom qed.cli.main import main\n"
        "atexit.register(lambda: print('numpy' in sys.modules))\nmain()\n"
    )
    ended, lines = run(code, "grade", str(file), "--json")
    assert (ended, lines[-1]) == (0, "False")


def test_comparing_evaluations_loads_no_torch(tmp_path: Path) -> None:
    """It would take longer than comparing two evaluations of 20,000 answers, and three times the memory."""
    rows = [{"id": str(number), "gold": "7", "response": f"It is {number}."} for number in range(9)]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code = (
        "import atexit, sys\nfrom qed.cli.main import main\n"
        "atexit.register(lambda: print('torch' in sys.modules))\nmain()\n"
    )
    ended, lines = run(code, "compare", str(file), str(file), "--id-key", "id")
    assert (ended, lines[-1]) == (0, "False")
