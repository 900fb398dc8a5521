"""axolotl: its YAML files, for SFT, DPO and GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qed.config.imports import huggingface as hf
from qed.config.imports import trl
from qed.config.imports.rules import Draft, Options, absent, rename
from qed.errors import UsageError

TITLE = "axolotl"
SHARED = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 1,
    "lr_scheduler_type": "cosine",
    "max_grad_norm": 1.0,
    "seed": 42,
    "lora_target_modules": None,
    "warmup_ratio": 0.03,  # of at most 100 steps
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "sft": SHARED,
    "dpo": {**SHARED, "beta": 0.1},
    "grpo": {
        **trl.DEFAULTS["grpo"],
        **SHARED,
        "ref_model_sync_steps": 64,
        "ref_model_mixup_alpha": 0.9,
    },
}
METHODS = {"grpo": "grpo", "gdpo": "grpo", "dpo": "dpo", "ipo": "dpo", "none": "sft"}
# Settings under axolotl's `trl:` are TRL's, and so are these, under other names.
NESTED = "trl."
RENAMED = {
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "lr_scheduler": "lr_scheduler_type",
    "rl_beta": "beta",
    "dpo_use_weighting": "use_weighting",
    "peft_use_rslora": "use_rslora",
    "dpo_label_smoothing": "label_smoothing",
}
RULES = (
    rename("model.name", "base_model"),
    rename("data.validation_split", "val_set_size"),
    rename("learner.packing", "sample_packing"),
    rename("learner.betas", "adam_betas"),
    rename("model.attention", "flash_attention", values={"true": "flash_attention_2"}),
    rename("model.attention", "sdp_attention", values={"true": "sdpa"}),
    absent("demonstrations that do not fit are dropped, not truncated", "sequence_len", "pad_to_sequence_len"),
    absent("only the answer is trained", "train_on_inputs"),
    absent("the columns of a file are detected, or named by --data.map", "datasets.", "test_datasets."),
    absent("the prompt is --prompt, or the model's chat template", "chat_template", "chat_template_jinja"),
    absent("the model's class is read from its files", "model_type", "tokenizer_type", "is_llama_derived_model"),
    absent("use qed evaluate", "eval_table_size", "eval_max_new_tokens", "do_bench_eval"),
    absent("all layers are trained, or their adapters", "unfrozen_parameters", "lora_fan_in_fan_out"),
    absent(hf.ONE_PROCESS, "fsdp_version", "sequence_parallel_degree"),
    absent(hf.OWN_SAMPLER, "vllm."),
    absent(hf.OF_NO_EFFECT, "plugins", "dataset_processes"),
    absent("an adapter folder is a model: --model FOLDER", "lora_model_dir"),
    absent("qed resumes with --resume --out RUN", "resume_from_checkpoint", "auto_resume_from_checkpoints"),
    absent("run.save_every counts steps", "saves_per_epoch"),
    absent("evaluation.every counts steps", "evals_per_epoch"),
    absent("the quantization is nf4", "load_in_8bit", "gptq"),
    absent("tokens are the model's own", "tokens", "eot_tokens"),
    *trl.RULES,
)


def choose_method(options: Options) -> str:
    """Return the command for `rl:`; SFT if it is not set.

    Raises:
        UsageError: it cannot be imported.
    """
    name = str(options.get("rl", default="none")).lower()
    options.read.update(("rl", "method"))
    if name not in METHODS:
        raise UsageError(f"rl is {name}, which cannot be imported. {', '.join(METHODS)} can.")
    for key in [key for key in options.given if key.startswith(NESTED)]:
        options.given[key.removeprefix(NESTED)] = options.given.pop(key)
    if name == "gdpo":
        options.given.setdefault("multi_objective_aggregation", "normalize_then_sum")
    for own, theirs in RENAMED.items():
        if own in options.given:
            options.given[theirs] = options.given.pop(own)
    return METHODS[name]


def derive(draft: Draft, method: str) -> None:
    """Set values that depend on several settings."""
    options = draft.options
    adapter = options.get("adapter")
    options.read.add("adapter")
    if adapter == "qlora" or options.is_on("load_in_4bit"):
        options.given.setdefault("load_in_4bit", True)
    if adapter in ("lora", "qlora"):
        options.given["use_peft"] = True
    if options.is_on("lora_target_linear"):
        options.read.add("lora_target_modules")
    options.read.add("lora_target_linear")
    if str(options.get("bf16")) == "auto":
        options.given["bf16"] = True
    hf.set_validation(draft, "val_set_size")
    types = hf.read_datasets(options, "type")
    kind = str(next(iter(types.values()), ""))
    for key in [key for key, other in types.items() if other != kind]:
        draft.skip(key, f"a run has one prompt: that of {kind} for all data")
    if kind.startswith(("alpaca", "completion")):
        same = ",".join(key for key, other in types.items() if other == kind)
        draft.set(same, "data.prompt", "alpaca" if kind.startswith("alpaca") else "question_only")
    trl.derive(draft, method)
    options.read.update(("use_peft", "rl"))
    if options.get("rl") == "ipo":
        draft.set("rl", "algorithm.losses", ["ipo"])
