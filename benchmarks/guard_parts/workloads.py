"""Workloads of the guard: short pieces of everyday work with new:tiny, each about a second per round."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sampler import read_prompts
from sft import write_demonstrations
from speed_parts import places
from speed_parts.command import QED, Command
from speed_parts.process import Side, Worker
from speed_parts.rewards import NOISE
from speed_parts.rollouts import sample_rollouts

Settings = dict[str, Any]
SHARED = {"model": "new:tiny", "precision": "float32", "lr": 1e-6, "extra": {}}
ANSWERS = {"problems": 16, "group": 8, "tokens": 48, "lengths": places.UNEVEN}


@dataclass(frozen=True)
class Workload:
    """A piece of work.

    Args:
        what: description.
        module: module of the worker; empty for a command.
        settings: settings of the worker besides those that all share.
        command: command of qed.
        rounds: rounds per start; 0 uses the requested number.
        prepare: writes the worker's input into a folder, and returns the settings that name it.
    """

    what: str
    module: str = ""
    settings: Settings = field(default_factory=dict)
    command: tuple[str, ...] = ()
    rounds: int = 0
    prepare: Callable[[Settings, Path], Settings] | None = None

    def describe(self, place: Path, folder: Path, threads: int) -> Settings:
        """Return the settings for the worker of either commit; model folder and data are the same for both.

        Args:
            place: folder of model folders.
            folder: folder for the data.
            threads: threads of numeric kernels.
        """
        if not self.module:
            return {}
        told = {**SHARED, **self.settings, "threads": threads}
        kind = places.Kind(told["model"], told.get("lengths", places.EVEN), told.get("tokens", 48))
        told["folder"] = str(places.prepared(place, kind).resolve())
        told["out"] = str(folder / "prepared")
        return {**told, **(self.prepare(told, folder) if self.prepare else {})}

    def start(self, told: Settings, threads: int, source: Path, out: Path) -> Side:
        """Start a worker process or a command with the qed from a folder."""
        if self.module:
            return Worker(self.module, {**told, "out": str(out)}, threads, source=source)
        return Command([*QED, *self.command], threads, source)


def _write_prompts(told: Settings, folder: Path) -> Settings:
    file = folder / "prompts.json"
    file.write_text(json.dumps(read_prompts(Path(told["folder"]), told["problems"])), encoding="utf-8")
    return {"prompts": str(file)}


def _write_rollouts(told: Settings, folder: Path) -> Settings:
    file = folder / "rollouts.json"
    file.write_text(json.dumps(sample_rollouts(told), default=list), encoding="utf-8")
    return {"rollouts": str(file)}


def _write_demonstrations(told: Settings, folder: Path) -> Settings:
    file = folder / "demonstrations.jsonl"
    written = write_demonstrations(file, Path(told["folder"]), told["rows"], told["longest"])
    return {"data": str(file), **written}


WORKLOADS = {
    "sampler-uneven": Workload(
        "128 answers of uneven length",
        "sampler_ours",
        {**ANSWERS, "tokens": 96},
        prepare=_write_prompts,
    ),
    "sampler-even": Workload(
        "128 answers of 48 tokens",
        "sampler_ours",
        {**ANSWERS, "lengths": places.EVEN},
        prepare=_write_prompts,
    ),
    "update": Workload("an update on 128 answers", "learner_ours", ANSWERS, prepare=_write_rollouts),
    "sft": Workload(
        "a step of SFT on 64 demonstrations",
        "sft_ours",
        {"rows": 64, "longest": 256, "extra": {"learner.packing": "true"}},
        prepare=_write_demonstrations,
    ),
    "step": Workload("a step of GRPO", "step_ours", {**ANSWERS, "noise": NOISE}),
    "grade": Workload("verdicts on 1,000 responses", "grade_ours", {"responses": 1000}),
    "help": Workload("`qed --help`", command=("--help",)),
    "one-step": Workload(
        "`qed grpo arithmetic-rl --steps 1`",
        command=("grpo", "arithmetic-rl", "--steps", "1", "--out", "run"),
        rounds=2,
    ),
}
