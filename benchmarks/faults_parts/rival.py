"""The rival's runs and commands, each in a process of its own with a time limit, and what was said and left behind."""

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
# Two of them a step: longer than a run, so that its end is no epoch's, unless a case asks for fewer.
PROMPTS = {"prompt": [f"what is {number} + {number + 1}?" for number in range(16)]}
STEPS = 6
LIMIT = 150.0
WEIGHTS = "model.safetensors"
ASIDE = r"\{'|.*\d%\||subprocess.CalledProcessError: Command"


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code, negative for a signal; None where it was killed at its time limit.
        text: what it printed.
    """

    code: int | None
    seconds: float
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines, without empty ones, frames, progress bars, the figures of steps, and a launcher's echo of its own
        command."""
        lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip() for line in self.text.splitlines()]
        return [line for line in lines if re.search(r"\w", line) and not re.match(ASIDE, line)]

    @property
    def last(self) -> str:
        """The last line that names an error, or the last of all, cut after 300 letters."""
        errors = [line for line in self.lines if re.match(r"[\w.]+(Error|Exception): ", line)]
        return [*self.lines[-1:], *errors][-1][:300] if self.lines else ""

    @property
    def traceback(self) -> bool:
        """Whether a traceback of Python stands in what was said."""
        return "Traceback (most recent call last)" in self.text


@dataclass(frozen=True)
class Finding:
    """What came of a case.

    Attributes:
        outcome: a few words for the card.
        ended: how the process that counts ended.
        figures: whatever else was measured.
    """

    group: str
    case: str
    outcome: str
    ended: Ended
    figures: Figures = field(default_factory=dict)

    def plain(self) -> Figures:
        """For JSON."""
        told = {"group": self.group, "case": self.case, "outcome": self.outcome, "code": self.ended.code}
        said = {"traceback": self.ended.traceback, "last": self.ended.last, "seconds": round(self.ended.seconds, 1)}
        return {**told, **said, **self.figures}


class Rival:
    """TRL in an environment of its own.

    Args:
        python: that environment's interpreter.
        place: a folder for models, runs and logs.
    """

    def __init__(self, python: Path, place: Path) -> None:
        self.python, self.place, self.count = python, place, 0
        self.wholes: dict[str, Path] = {}
        self.usual: set[str] = set()

    @cached_property
    def model(self) -> Path:
        """The folder with the model that every case trains."""
        return self.make_model("model")

    def make_model(self, name: str, **told: Any) -> Path:
        """A folder with a model."""
        folder = self.place / name
        self.made(folder=str(folder), **told)
        return folder

    def made(self, **told: Any) -> None:
        """Have a file or a folder written by the rival's libraries."""
        ended = self.process([str(self.python), str(HERE / "trl_model.py"), json.dumps(told)])
        if ended.code:
            raise SystemExit(ended.text)

    def fresh(self, name: str = "run") -> Path:
        """A path where nothing is yet."""
        self.count += 1
        return self.place / f"{name}-{self.count}"

    def run(self, out: Path, limit: float = LIMIT, environment: Figures | None = None, **told: Any) -> Ended:
        """A run to its end, or to the limit in seconds."""
        return ended(self.start(out, environment, **told), limit)

    def start(self, out: Path, environment: Figures | None = None, **told: Any) -> Process:
        """A run that goes on by itself."""
        usual = {"model": str(self.model), "steps": STEPS, "data": {"columns": PROMPTS}, "config": {}, "slow": 0.0}
        more = {"fault": None, "resume": None, "ready": None, "out": str(out), "seen": f"{out}.seen"}
        file = self.fresh("told")
        file.write_text(json.dumps({**usual, **more, **told}), encoding="utf-8")
        return self.started([str(self.python), str(HERE / "trl_run.py"), str(file)], environment)

    def command(self, *arguments: str, limit: float = LIMIT, environment: Figures | None = None) -> Ended:
        """The command `trl`."""
        return self.process([str(self.python.parent / "trl"), *arguments], limit, environment)

    def process(self, command: Sequence[str], limit: float = LIMIT, environment: Figures | None = None) -> Ended:
        """Any command to its end."""
        return ended(self.started(command, environment), limit)

    def started(self, command: Sequence[str], environment: Figures | None = None) -> Process:
        """A command in a process group of its own, which writes into a log."""
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
        """The folder of a run that nothing went wrong in, made once for what it is told, a checkpoint a step."""
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
        """What was said that a run without a fault does not say."""
        self.whole()
        return list(dict.fromkeys(line[:300] for line in ended.lines if shape(line) not in self.usual))


@dataclass(frozen=True)
class Process:
    """A process that was started."""

    made: subprocess.Popen[bytes]
    log: Path
    began: float


def attentive() -> None:
    """Have the signals that a shell's background job may ignore end a process, as at a terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ended(process: Process, limit: float) -> Ended:
    """How a process ends, which is killed with all that it started when the limit is over."""
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
    """The numbers of the checkpoint folders of a run."""
    found = [re.fullmatch(r"checkpoint-(\d+)", path.name) for path in (out.iterdir() if out.is_dir() else ())]
    return sorted(int(match[1]) for match in found if match)


def cut(whole: Path, out: Path, step: int) -> Path:
    """A copy of a run as it was after a step."""
    for number in checkpoints(whole):
        if number <= step:
            shutil.copytree(whole / f"checkpoint-{number}", out / f"checkpoint-{number}")
    return out


def weights(out: Path, step: int = STEPS) -> dict[str, Any]:
    """The weights of a checkpoint."""
    return load_file(out / f"checkpoint-{step}" / WEIGHTS)


def difference(one: Path, other: Path, step: int = STEPS) -> float:
    """The largest difference between the weights of two runs; 0 where they are the same bit by bit."""
    ours, theirs = weights(one, step), weights(other, step)
    if all(np.array_equal(ours[name], theirs[name]) for name in ours):
        return 0.0
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def finite(out: Path, step: int) -> bool:
    """Whether all weights of a checkpoint are finite numbers."""
    return all(bool(np.isfinite(table).all()) for table in weights(out, step).values())


def resumed(rival: Rival, out: Path, whole: Path, steps: int = STEPS, **told: Any) -> tuple[str, Ended, Figures]:
    """What comes of going on with a run: an outcome in words beside the run that was never cut."""
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
    """The prompts of the steps of a run for which answers were sampled."""
    lines = Path(f"{out}.seen").read_text(encoding="utf-8").splitlines()
    return dict(json.loads(line) for line in lines)


def ending(ended: Ended) -> str:
    """How a process ended, in words."""
    if ended.code is None:
        return f"still there after {ended.seconds:.0f} s"
    if ended.code == 0:
        return "exit code 0"
    how = "a traceback" if ended.traceback else "no traceback"
    last = re.sub(r"(/[^\s/']+)+/", ".../", ended.last)[:120]
    return f"ends with {how}: {last}" if ended.code > 0 else f"killed by signal {-ended.code}"
