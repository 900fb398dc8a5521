"""TRL's SFT as a worker: SFTTrainer on the same demonstrations, padded or packed, one step a round."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from speed_parts.pace import Pace


class Counting(SFTTrainer):
    """Counts the tokens of a step, without those that pad."""

    seen: int = 0
    rows: int = 0

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        """The loss, as it is."""
        mask = inputs.get("attention_mask")
        self.seen = inputs["input_ids"].numel() if mask is None else int(mask.sum())
        # Packed rows stand in one, and each begins at position 0.
        self.rows = int((inputs["position_ids"] == 0).sum()) if "position_ids" in inputs else len(inputs["input_ids"])
        return super().compute_loss(model, inputs, *arguments, **named)


class Rounds(TrainerCallback):
    """Ends a round with what a step logs, which is the last that it does."""

    trainer: Counting | None = None

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def on_log(self, *_: Any, **__: Any) -> None:
        """End the round."""
        assert self.trainer is not None
        self.pace.done(tokens=self.trainer.seen, rows=self.trainer.rows)


def main() -> None:
    """Make a trainer and its steps when told."""
    pace = Pace()
    told = pace.settings
    rows = [json.loads(line) for line in Path(told["data"]).read_text(encoding="utf-8").splitlines()]
    asked = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
        }
        for row in rows
    ]
    folder, rounds = f"{told['folder']}/hf", Rounds(pace)
    with tempfile.TemporaryDirectory() as out:
        trainer = Counting(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            args=SFTConfig(
                output_dir=out,
                per_device_train_batch_size=told["bins"] if told["packing"] else told["rows"],
                max_length=told["longest"],
                packing=told["packing"],
                max_steps=1_000_000,
                learning_rate=told["lr"],
                lr_scheduler_type="constant",
                bf16=told["precision"] == "bfloat16",
                gradient_checkpointing=False,
                use_cpu=True,
                dataloader_pin_memory=False,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(asked),
            processing_class=AutoTokenizer.from_pretrained(folder),
            callbacks=[rounds],
        )
        trainer.remove_callback(PrinterCallback)
        rounds.trainer = trainer
        pace.ready()
        trainer.train()


if __name__ == "__main__":
    main()
