"""LLaMA-Factory: the YAML files of `llamafactory-cli train`, for SFT and DPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qed.config.imports import huggingface as hf
from qed.config.imports.rules import Draft, Options, absent, rename
from qed.errors import UsageError

TITLE = "LLaMA-Factory"
SHARED = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "lora_rank": 8,
    "seed": 42,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"sft": SHARED, "dpo": {**SHARED, "pref_beta": 0.1, "pref_loss": "sigmoid"}}
STAGES = {"sft": "sft", "dpo": "dpo"}
OWN = {"rm": "; train a reward model with qed reward-model", "ppo": "; for PPO see qed ppo"}
LOSSES = {"sigmoid": "sigmoid", "hinge": "hinge", "ipo": "ipo", "orpo": None, "simpo": None, "kto_pair": None}
RULES = (
    rename("model.name", "model_name_or_path"),
    rename("model.quantization", "quantization_bit", values={"4": "nf4"}),
    rename("data.unique_examples", "max_samples", why="over all data sets together"),
    rename("data.validation_split", "val_size"),
    rename("learner.packing", "packing"),
    rename("learner.packing", "neat_packing"),
    rename("model.attention", "flash_attn", values={"auto": "auto", "fa2": "flash_attention_2", "sdpa": "sdpa"}),
    rename("algorithm.beta", "pref_beta"),
    rename("algorithm.losses", "pref_loss", values={key: value and [value] for key, value in LOSSES.items()}),
    absent("its format is the model's chat template, or --prompt", "template", "enable_thinking"),
    rename("data.system_prompt", "default_system"),
    absent("demonstrations that do not fit are dropped, not truncated", "cutoff_len"),
    absent("data files are read where they are", "dataset_dir", "media_dir", "tokenized_path", "cache_dir"),
    absent("images are not supported", "image_max_pixels", "video_max_pixels", "freeze_vision_tower"),
    absent("evaluation needs problems with an answer", "predict_with_generate", "compute_accuracy"),
    absent("an adapter folder is a model: --model FOLDER", "adapter_name_or_path", "create_new_adapter"),
    *hf.RULES,
)


def choose_method(options: Options) -> str:
    """Return the command for the stage.

    Raises:
        UsageError: it cannot be imported.
    """
    stage = str(options.get("stage", "method", default="sft"))
    options.read.update(("stage", "method"))
    if stage not in STAGES:
        raise UsageError(f"stage is {stage}, which cannot be imported. {', '.join(STAGES)} can{OWN.get(stage, '')}.")
    return STAGES[stage]


def derive(draft: Draft, method: str) -> None:
    """Set values that depend on several settings."""
    options = draft.options
    hf.set_precision(draft)
    hf.set_betas(draft)
    hf.set_schedule(draft)
    kind = options.get("finetuning_type", default="lora")
    options.read.add("finetuning_type")
    if kind not in ("lora", "full"):
        draft.skip("finetuning_type", "qed trains all weights, or LoRA adapters")
    hf.set_adapters(draft, "lora_rank", "lora_alpha", "lora_target", kind == "lora")
    for theirs, ours in (("dataset", "data.tasks"), ("eval_dataset", "evaluation.tasks")):
        names = options.get(theirs)
        if names is not None:
            hf.set_tasks(draft, theirs, names.split(",") if isinstance(names, str) else names, ours)
    if options.get("template") == "alpaca":
        draft.set("template", "data.prompt", "alpaca")
    hf.set_chat_prompt(draft, "template")
    hf.set_trackers(draft, "report_to")
    hf.set_validation(draft, "val_size")
    rows = hf.count_rollouts(options) * (2 if method == "dpo" else 1)
    note = "rows; a pair has two" if method == "dpo" else ""
    draft.set("per_device_train_batch_size,gradient_accumulation_steps", "learner.batch_size", rows, note)
    hf.set_length(draft, 1)
    hf.set_warmup(draft, 1)
    hf.set_cadence(draft, 1)
