"""Runs and commands of the rival, each in a separate process with a time limit, and their output and files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).parent
Figures = dict[str, Any]
# Two per step: more than a run uses, so that its end is not an epoch's, unless a case asks for fewer.
PROMPTS = {"prompt": [f"what is {number} + {number + 1}?" for number in range(16)]}
STEPS = 6
LIMIT = 150.0
WEIGHTS = "model.safetensors"
ASIDE = r"\{'|.*\d%\||subprocess.CalledProcessError: Command"


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code, negative for a signal; None if it was killed at its time limit.
        text: what it printed.
    """

    code: int | None
    seconds: float
    text: str

    @property
    def lines(self) -> list[str]:
        """Its output lines, without empty lines, frames, progress bars, the metrics of steps, and a launcher's echo of
        its command."""
        lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip() for line in self.text.splitlines()]
        return [line for line in lines if re.search(r"\w", line) and not re.match(ASIDE, line)]

    @property
    def last(self) -> str:
        """The last line that names an error, or otherwise the last line, truncated to 300 characters."""
        errors = [line for line in self.lines if re.match(r"[\w.]+(Error|Exception): ", line)]
        return [*self.lines[-1:], *errors][-1][:300] if self.lines else ""

    @property
    def traceback(self) -> bool:
        """Whether the output contains a Python traceback."""
        return "Traceback (most recent call last)" in self.text


@dataclass(frozen=True)
class Finding:
    """The outcome of a case.

    Attributes:
        outcome: a few words for the table.
        ended: how the relevant process ended.
        figures: other measurements.
    """

    group: str
    case: str
    outcome: str
    ended: Ended
    figures: Figures = field(default_factory=dict)

    def plain(self) -> Figures:
        """Return the finding for JSON."""
        told = {"group": self.group, "case": self.case, "outcome": self.outcome, "code": self.ended.code}
        said = {"traceback": self.ended.traceback, "last": self.ended.last, "seconds": round(self.ended.seconds, 1)}
        return {**told, **said, **self.figures}


class Rival:
    """TRL in a separate environment.

    Args:
        python: interpreter of that environment.
        place: folder for models, runs and logs.
    """

    def __init__(self, python: Path, place: Path) -> None:
        self.python, self.place, self.count = python, place, 0
        self.wholes: dict[str, Path] = {}
        self.usual: set[str] = set()

    @cached_property
    def model(self) -> Path:
        """The folder of the model that every case trains."""
        return self.make_model("model")

    def make_model(self, name: str, **told: Any) -> Path:
        """Make a folder with a model."""
        folder = self.place / name
        self.made(folder=str(folder), **told)
        return folder

    def made(self, **told: Any) -> None:
        """Let the rival's libraries write a file or a folder."""
        ended = self.process([str(self.python), str(HERE / "trl_model.py"), json.dumps(told)])
        if ended.code:
            raise SystemExit(ended.text)

    def fresh(self, name: str = "run") -> Path:
        """Return a path that does not exist yet."""
        self.count += 1
        return self.place / f"{name}-{self.count}"

    def run(self, out: Path, limit: float = LIMIT, environment: Figures | None = None, **told: Any) -> Ended:
        """Make a run until its end or the time limit in seconds."""
        return ended(self.start(out, environment, **told), limit)

    def start(self, out: Path, environment: Figures | None = None, **told: Any) -> Process:
        """Start a run in the background."""
        usual = {"model": str(self.model), "steps": STEPS, "data": {"columns": PROMPTS}, "config": {}, "slow": 0.0}
        more = {"fault": None, "resume": None, "ready": None, "out": str(out), "seen": f"{out}.seen"}
        file = self.fresh("told")
        file.write_text(json.dumps({**usual, **more, **told}), encoding="utf-8")
        return self.started([str(self.python), str(HERE / "trl_run.py"), str(file)], environment)

    def command(self, *arguments: str, limit: float = LIMIT, environment: Figures | None = None) -> Ended:
        """Run the command `trl`."""
        return self.process([str(self.python.parent / "trl"), *arguments], limit, environment)

    def process(self, command: Sequence[str], limit: float = LIMIT, environment: Figures | None = None) -> Ended:
        """Run any command until its end or the time limit."""
        return ended(self.started(command, environment), limit)

    def started(self, command: Sequence[str], environment: Figures | None = None) -> Process:
        """Start a command in a separate process group, with its output in a log."""
        told = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE",)}
        work, log = self.place / "work", self.fresh("log")
        work.mkdir(exist_ok=True)
        with log.open("w", encoding="utf-8") as target:
            made = subprocess.Popen(
                command,
                cwd=work,
                env={**kept, **told, "COLUMNS": "120", "HF_HOME": str(self.place / "hf"), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=attentive,
            )
        return Process(made, log, time.monotonic())

    def whole(self, **told: Any) -> Path:
        """Return the folder of an undisturbed run with a checkpoint per step, made once for each configuration."""
        name = json.dumps(told, sort_keys=True)
        if name not in self.wholes:
            out = self.fresh("whole")
            ended = self.run(out, **told)
            if ended.code:
                raise SystemExit(ended.text)
            self.wholes[name] = out
            if not told:
                self.usual = {shape(line) for line in ended.lines}
        return self.wholes[name]

    def unusual(self, ended: Ended) -> list[str]:
        """Return the output lines that an undisturbed run does not have."""
        self.whole()
        return list(dict.fromkeys(line[:300] for line in ended.lines if shape(line) not in self.usual))


@dataclass(frozen=True)
class Process:
    """A started process."""

    made: subprocess.Popen[bytes]
    log: Path
    began: float


def attentive() -> None:
    """Reset the signals that a shell's background job may ignore, so that they end the process, as at a terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ended(process: Process, limit: float) -> Ended:
    """Return how a process ends; it is killed with all of its children at the time limit."""
    code: int | None
    try:
        code = process.made.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    seconds = time.monotonic() - process.began
    stop(process)
    return Ended(code, seconds, process.log.read_text(encoding="utf-8", errors="replace"))


def stop(process: Process) -> None:
    """Kill what is left of a process and of those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.made.pid, signal.SIGKILL)
    process.made.wait()


def shape(line: str) -> str:
    """A line without its numbers and paths, by which two of them are compared."""
    return re.sub(r"[\d.]+|/\S+", "0", line)


def checkpoints(out: Path) -> list[int]:
    """Return the numbers of a run's checkpoint folders."""
    found = [re.fullmatch(r"checkpoint-(\d+)", path.name) for path in (out.iterdir() if out.is_dir() else ())]
    return sorted(int(match[1]) for match in found if match)


def cut(whole: Path, out: Path, step: int) -> Path:
    """Return a copy of a run as it was after a step."""
    for number in checkpoints(whole):
        if number <= step:
            shutil.copytree(whole / f"checkpoint-{number}", out / f"checkpoint-{number}")
    return out


def weights(out: Path, step: int = STEPS) -> dict[str, Any]:
    """Return the weights of a checkpoint."""
    return load_file(out / f"checkpoint-{step}" / WEIGHTS)


def difference(one: Path, other: Path, step: int = STEPS) -> float:
    """Return the largest difference between the weights of two runs; 0 if they are bitwise equal."""
    ours, theirs = weights(one, step), weights(other, step)
    if all(np.array_equal(ours[name], theirs[name]) for name in ours):
        return 0.0
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def finite(out: Path, step: int) -> bool:
    """Return whether all weights of a checkpoint are finite."""
    return all(bool(np.isfinite(table).all()) for table in weights(out, step).values())


def resumed(rival: Rival, out: Path, whole: Path, steps: int = STEPS, **told: Any) -> tuple[str, Ended, Figures]:
    """Resume a run; return an outcome in words, compared with the uninterrupted run, how it ended, and figures."""
    ended = rival.run(out, **{"resume": True, "steps": steps, **told})
    rates = re.findall(r"'learning_rate': '?([\d.e-]+)", ended.text)
    figures: Figures = {"said": rival.unusual(ended)[:6], "learning_rates": rates}
    if ended.code != 0 or checkpoints(out)[-1:] != [steps]:
        return ending(ended), ended, figures
    figures["difference"] = difference(out, whole, steps)
    same = "same weights" if figures["difference"] == 0 else f"weights differ by {figures['difference']:.2g}"
    before, after = prompts(whole), prompts(out)
    figures["sampled_anew"] = [step for step in after if step not in before]
    figures["other_prompts"] = [step for step in after if after[step] != before.get(step, after[step])]
    notes = [name.replace("_", " ") for name in ("sampled_anew", "other_prompts") if figures[name]]
    return ", ".join(["resumed", same, *notes]), ended, figures


def prompts(out: Path) -> dict[int, list[str]]:
    """Return the prompts for which answers were sampled, by step of a run."""
    lines = Path(f"{out}.seen").read_text(encoding="utf-8").splitlines()
    return dict(json.loads(line) for line in lines)


def ending(ended: Ended) -> str:
    """Describe in words how a process ended."""
    if ended.code is None:
        return f"still there after {ended.seconds:.0f} s"
    if ended.code == 0:
        return "exit code 0"
    how = "a traceback" if ended.traceback else "no traceback"
    last = re.sub(r"(/[^\s/']+)+/", ".../", ended.last)[:120]
    return f"ends with {how}: {last}" if ended.code > 0 else f"killed by signal {-ended.code}"
