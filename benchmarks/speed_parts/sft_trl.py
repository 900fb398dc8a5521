"""TRL's SFT as a worker: SFTTrainer on the same demonstrations, padded or packed, one step per round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trl import SFTConfig, SFTTrainer

from speed_parts.pace import Pace
from speed_parts.trl_trainer import train


class Counting(SFTTrainer):
    """Counts the tokens of a step without padding."""

    seen: int = 0
    rows: int = 0

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        """Return the loss unchanged."""
        mask = inputs.get("attention_mask")
        self.seen = inputs["input_ids"].numel() if mask is None else int(mask.sum())
        # Packed demonstrations share a row, and each begins at position 0.
        self.rows = int((inputs["position_ids"] == 0).sum()) if "position_ids" in inputs else len(inputs["input_ids"])
        return super().compute_loss(model, inputs, *arguments, **named)


def main() -> None:
    """Make a trainer, and a step in each round."""
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
    options = {
        "per_device_train_batch_size": told["bins"] if told["packing"] else told["rows"],
        "max_length": told["longest"],
        "packing": told["packing"],
    }

    def figures(trainer: Counting, _: Any) -> dict[str, Any]:
        return {"tokens": trainer.seen, "rows": trainer.rows}

    train(pace, Counting, SFTConfig, options, asked, figures)


if __name__ == "__main__":
    main()
