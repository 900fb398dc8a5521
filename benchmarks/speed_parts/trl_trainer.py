"""Shared by TRL's workers: common options, and a trainer in which every step is a round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

from speed_parts.pace import Pace


class Rounds(TrainerCallback):
    """Ends a round with the metrics that a step logs, which is the last thing that it does."""

    def __init__(self, pace: Pace, figures: Callable[[Any, dict[str, float]], dict[str, Any]]) -> None:
        self.pace, self.figures = pace, figures
        self.trainer: Any = None

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        """End the round."""
        self.pace.done(**self.figures(self.trainer, logs))


def train(
    pace: Pace,
    kind: type,
    config: type,
    options: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    figures: Callable[[Any, dict[str, float]], dict[str, Any]],
    **more: Any,
) -> None:
    """Make a trainer, and a step in each round.

    Args:
        pace: pace of the worker.
        kind: class of the trainer.
        config: class of its configuration.
        options: options of the configuration besides the common ones.
        rows: rows of the data set.
        figures: returns the figures of a step, from the trainer and its logs.
        more: further arguments of the trainer.
    """
    told, rounds = pace.settings, Rounds(pace, figures)
    folder = f"{told['folder']}/hf"
    with tempfile.TemporaryDirectory() as out:
        shared = {
            "output_dir": out,
            "max_steps": 1_000_000,
            "learning_rate": told["lr"],
            "lr_scheduler_type": "constant",
            "bf16": told["precision"] == "bfloat16",
            "gradient_checkpointing": False,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        trainer = kind(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            args=config(**shared, **options),
            train_dataset=Dataset.from_list(list(rows)),
            processing_class=AutoTokenizer.from_pretrained(folder),
            callbacks=[rounds],
            **more,
        )
        trainer.remove_callback(PrinterCallback)
        rounds.trainer = trainer
        pace.ready()
        trainer.train()
