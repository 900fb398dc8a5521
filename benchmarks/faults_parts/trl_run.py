"""A run of TRL's GRPOTrainer as documented, with at most one fault; run by the rival's Python.

    python trl_run.py told.json

It prints nothing itself, so that all output and the exit code come from the library.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

Told = dict[str, Any]


class Fault:
    """A fault to cause: `do` at a named point of a step, with a `value` if needed.

    Args:
        told: description with `at`, `step`, `do` and `value`; None causes no fault.
        out: folder of the run.
    """

    def __init__(self, told: Told | None, out: Path) -> None:
        self.told, self.out = told or {}, out

    def due(self, at: str, step: int) -> str:
        """Return the fault to cause here, or an empty string."""
        there = self.told.get("at") == at and self.told.get("step") in (step, "each")
        return str(self.told["do"]) if there else ""

    def strike(self, at: str, step: int) -> None:
        """Cause the fault here, if it is due."""
        do, value = self.due(at, step), self.told.get("value", 0)
        if do == "signal":
            os.kill(os.getpid(), value)
        elif do == "sleep":
            time.sleep(value)
        elif do == "full disk":  # a write beyond this size fails; Python ignores the accompanying signal
            resource.setrlimit(resource.RLIMIT_FSIZE, (value, value))
        elif do == "delete":
            shutil.rmtree(self.out)


class Rewarding:
    """A reward function for TRL: the number of distinct letters in an answer."""

    __name__ = "letters"

    def __init__(self, fault: Fault, slow: float, seen: Path) -> None:
        self.fault, self.slow, self.seen = fault, slow, seen

    def __call__(self, prompts: list[str], completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        """Return a number for each completion, and record the prompts of the step next to the run's folder."""
        step = trainer_state.global_step + 1
        with self.seen.open("a", encoding="utf-8") as target:
            target.write(json.dumps([step, sorted(set(prompts))]) + "\n")
        rewards = [len(set(text)) / 8 for text in completions]
        time.sleep(self.slow)
        self.fault.strike("reward", step)
        do = self.fault.due("reward", step)
        if do == "zero":
            return [0.0 for _ in rewards]
        if do in ("nan", "inf"):
            return [float(do), *rewards[1:]]
        if do == "all nan":
            return [float("nan") for _ in rewards]
        return rewards


class Faulty(GRPOTrainer):
    """A trainer with points for faults: the loss, and the stages of a save."""

    fault: Fault

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        """Return the loss, or NaN if that is the fault."""
        loss = super().compute_loss(*arguments, **named)
        return loss * float("nan") if self.fault.due("loss", self.state.global_step + 1) else loss

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        self.fault.strike("save", self.state.global_step)
        super()._save_checkpoint(*arguments, **named)

    def _save_optimizer_and_scheduler(self, *arguments: Any, **named: Any) -> None:
        self.fault.strike("save optimizer", self.state.global_step)
        super()._save_optimizer_and_scheduler(*arguments, **named)

    def _save_rng_state(self, *arguments: Any, **named: Any) -> None:
        self.fault.strike("save rng", self.state.global_step)
        super()._save_rng_state(*arguments, **named)
        self.fault.strike("save state", self.state.global_step)


class Points(TrainerCallback):
    """Reports when training begins, and causes a fault at the beginning of a step."""

    def __init__(self, fault: Fault, ready: str | None) -> None:
        self.fault, self.ready = fault, ready

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Report that loading is done."""
        if self.ready:
            Path(self.ready).touch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Cause a fault that is due at the beginning of a step."""
        self.fault.strike("step", state.global_step + 1)


def configuration(told: Told) -> GRPOConfig:
    """Return TRL's defaults except for sizes, learning rate, precision, logging and the settings of the case."""
    chosen = {
        "output_dir": told["out"],
        "max_steps": told["steps"],
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "save_steps": 1,
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
    }
    return GRPOConfig(**{**chosen, **told["config"]})


def dataset(told: Told) -> Dataset:
    """Return the rows of the case, or those of a file."""
    if "file" in told:
        return load_dataset("json", data_files=told["file"], split="train")
    return Dataset.from_dict(told["columns"])


def main() -> None:
    """Train, and resume if requested."""
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    out = Path(told["out"])
    fault = Fault(told["fault"], out)
    trainer = Faulty(
        model=told["model"],
        reward_funcs=Rewarding(fault, told["slow"], Path(told["seen"])),
        args=configuration(told),
        train_dataset=dataset(told["data"]),
        callbacks=[Points(fault, told["ready"])],
    )
    trainer.fault = fault
    resume = told["resume"]
    if resume == "if any":
        resume = get_last_checkpoint(out) if out.is_dir() else None
    trainer.train(resume_from_checkpoint=resume)


if __name__ == "__main__":
    main()
