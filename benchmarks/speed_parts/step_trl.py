"""TRL's GRPO step as a worker: GRPOTrainer over the same folder, one step a round."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from qed.data.prompts import think_answer
from qed.rewards import grader
from qed.types import Problem, Rollout
from speed_parts.pace import Pace
from speed_parts.rewards import NoisyGrader, digest


class Rewarding:
    """qed's reward as a function of TRL's kind."""

    __name__ = "reward"

    def __init__(self, pace: Pace) -> None:
        self.pace, self.group = pace, pace.settings["group"]
        self.grader = NoisyGrader(grader.make_grader([think_answer.REWARD]), pace.settings["noise"])
        self.tokens = 0

    def __call__(self, completions: Any, answer: Any, completion_ids: Any, **_: Any) -> list[float]:
        """The rewards of all completions, those of a problem one after the other."""
        rows = [
            Rollout(Problem("", "", gold), (), tuple(ids), (), completion[0]["content"], "stop")
            for completion, gold, ids in zip(completions, answer, completion_ids, strict=True)
        ]
        self.tokens = sum(len(row.output) for row in rows)
        grades = self.grader([rows[start : start + self.group] for start in range(0, len(rows), self.group)])
        self.pace.lap("sample")
        return [grade.reward for group in grades for grade in group]


class Watched(GRPOTrainer):
    """Sees the prompts and the rows that a step trains."""

    seen: int = 0
    rows: int = 0

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        """The loss, as it is."""
        there = inputs["prompt_mask"].bool()
        self.seen = digest([ids[mask].tolist() for ids, mask in zip(inputs["prompt_ids"], there, strict=True)])
        self.rows = len(there)
        return super().compute_loss(model, inputs, *arguments, **named)


class Rounds(TrainerCallback):
    """Makes every step a round."""

    def __init__(self, pace: Pace, rewarding: Rewarding) -> None:
        self.pace, self.rewarding = pace, rewarding
        self.trainer: Watched | None = None

    def on_log(self, *_: Any, **__: Any) -> None:
        """What a step logs is the last that it does."""
        assert self.trainer is not None
        self.pace.done(
            tokens=self.rewarding.tokens,
            rows=self.trainer.rows,
            live_rows=self.trainer.rows,
            signal_share=self.rewarding.grader.signal_share,
            prompts=self.trainer.seen,
        )


def configuration(told: dict[str, Any], out: str, scale_rewards: str = "group") -> GRPOConfig:
    """One update for each batch of answers, no KL, no recomputation of activations, the log written after every
    step."""
    return GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=told["problems"] * told["group"],
        gradient_accumulation_steps=1,
        num_generations=told["group"],
        max_completion_length=told["tokens"],
        max_steps=1_000_000,
        learning_rate=told["lr"],
        lr_scheduler_type="constant",
        beta=0.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type="grpo",
        scale_rewards=scale_rewards,
        bf16=told["precision"] == "bfloat16",
        gradient_checkpointing=False,
        shuffle_dataset=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        log_completions=False,
    )


def main() -> None:
    """Make a trainer and its steps when told."""
    pace = Pace()
    told = pace.settings
    rows = [json.loads(line) for line in Path(told["order"]).read_text(encoding="utf-8").splitlines()]
    asked = [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in rows]
    folder = f"{told['folder']}/hf"
    rewarding = Rewarding(pace)
    rounds = Rounds(pace, rewarding)
    with tempfile.TemporaryDirectory() as out:
        trainer = Watched(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            args=configuration(told, out),
            train_dataset=Dataset.from_list(asked),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=[rewarding],
            callbacks=[rounds],
        )
        trainer.remove_callback(PrinterCallback)
        rounds.trainer = trainer
        pace.ready()
        trainer.train()


if __name__ == "__main__":
    main()
