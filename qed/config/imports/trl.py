"""TRL: the arguments of `trl grpo`, `trl sft`, `trl dpo` and the other trainers, and open-r1's recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qed.config.imports import huggingface as hf
from qed.config.imports.rules import Draft, Options, absent, rename

TITLE = "TRL"
# TRL's own values where they differ from qed's, for settings that are not given.
SHARED = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "bf16": True,
    "seed": 42,
    "lora_r": 16,
    "lora_alpha": 32,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {
        **SHARED,
        "learning_rate": 1e-6,
        "num_generations": 8,
        "max_completion_length": 256,
        "temperature": 1.0,
        "beta": 0.0,
        "epsilon": 0.2,
        "num_iterations": 1,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "importance_sampling_level": "token",
        "use_bias_correction_kl": True,
    },
    "sft": {**SHARED, "learning_rate": 2e-5},
    "dpo": {**SHARED, "learning_rate": 1e-6, "beta": 0.1},
}
METHODS = {"grpo": "grpo", "rloo": "rloo", "sft": "sft", "dpo": "dpo", "online_dpo": "online_dpo"}
# The surrogate and the average of each loss.
LOSSES = {
    "grpo": ("clip", "sequence"),
    "bnpo": ("clip", "token"),
    "dapo": ("clip", "token"),
    "dr_grpo": ("clip", "constant"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "sequence"),
    "luspo": ("gspo", "sequence_sum"),
    "vespo": ("vespo", "token"),
}
SCALES: Mapping[str, Mapping[str, Any]] = {
    "group": {"algorithm.normalize_std": True},
    "true": {"algorithm.normalize_std": True},
    "batch": {"algorithm.normalize_std": True, "algorithm.std_over": "batch"},
    "none": {"algorithm.normalize_std": False},
    "false": {"algorithm.normalize_std": False},
}
# Settings of single surrogates, with TRL's values.
SHAPES: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    ("sapo", "algorithm.sapo_temperatures", {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}),
    (
        "vespo",
        "algorithm.vespo_shape",
        {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0},
    ),
)
PREFERENCES = {
    **{name: name for name in ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard")},
    **{name: name for name in ("aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm")},
    "aot_pair": "aot",
}
# Rewards of TRL and open-r1 by the names that their configurations give them.
REWARDS = {
    **dict.fromkeys(("accuracy_reward", "reasoning_accuracy_reward", "accuracy"), "accuracy"),
    **dict.fromkeys(("think_format_reward", "format"), "format_only"),
    **dict.fromkeys(("get_soft_overlong_punishment", "soft_overlong_punishment"), "overlong"),
    "cosine": "cosine",
    "repetition_penalty": "repetition",
}

RULES = (
    rename("model.name", "model_name_or_path"),
    rename("sampling.temperature", "temperature"),
    rename("sampling.top_p", "top_p"),
    rename("sampling.top_k", "top_k", values={"-1": 0}, only=False),
    rename("sampling.min_p", "min_p"),
    rename("sampling.group_size", "num_generations"),
    rename("sampling.max_tokens", "max_completion_length"),
    rename("data.max_prompt_tokens", "max_prompt_length"),
    rename("data.system_prompt", "system_prompt"),
    rename("algorithm.kl", "beta"),
    rename("algorithm.mask_truncated", "mask_truncated_completions"),
    rename("algorithm.top_entropy", "top_entropy_quantile"),
    rename("algorithm.entropy", "entropy_coef"),
    rename("algorithm.offpolicy_limit", "off_policy_mask_threshold"),
    rename("algorithm.label_smoothing", "label_smoothing"),
    rename("algorithm.precompute_reference", "precompute_ref_log_probs"),
    rename("learner.passes", "num_iterations"),
    rename(
        "data.window",
        "max_length max_seq_length",
        values={},
        why="demonstrations that do not fit the model are left out, not cut",
    ),
    rename("learner.packing", "packing"),
    absent(hf.OWN_SAMPLER, "use_vllm", "use_transformers_paged", "cache_implementation", "generation_kwargs."),
    absent(hf.OWN_SAMPLER, *(f"vllm_{name}" for name in ("mode", "device", "dtype", "gpu_memory_utilization"))),
    absent(
        hf.OWN_SAMPLER,
        *(f"vllm_{name}" for name in ("server_host", "server_port", "max_model_len", "max_model_length")),
    ),
    absent(
        hf.OWN_SAMPLER, *(f"vllm_{name}" for name in ("tensor_parallel_size", "enable_sleep_mode", "server_timeout"))
    ),
    absent(
        "qed's sampler has the learner's probabilities; algorithm.correction is for one that does not",
        *(f"vllm_importance_sampling_{name}" for name in ("correction", "mode", "cap", "clip_max", "clip_min")),
    ),
    absent("it would sample from another distribution than the learner's", "repetition_penalty"),
    absent("algorithm.clip_dual bounds negative advantages only", "delta"),
    absent("every prompt is rendered by --prompt", "dataset_prompt_column", "prompt_column"),
    absent("name the split with the task, as NAME:SPLIT", "dataset_train_split", "dataset_test_split"),
    absent("name a subset with the task", "dataset_config", "dataset_configs", "dataset_mixture."),
    absent("problems are drawn by the seed in each epoch", "shuffle_dataset"),
    absent("the model is loaded by its name", "model_init_kwargs.", "ref_model_init_kwargs."),
    absent("qed shows them in the report", "log_multimodal", "wandb_log_unique_prompts", "log_completions_hub_repo"),
    absent("open-r1's callbacks and benchmarks: see qed evaluate", "callbacks", "benchmarks"),
    absent(hf.ONE_PROCESS, "ds3_gather_for_generation", "use_liger_loss"),
    absent("a reward model is not trained or loaded", "reward_model_name_or_path", "reward_processing_class"),
    absent("all answers of a problem are compared in one loss", "multi_objective_aggregation"),
    *hf.RULES,
)


def choose_method(options: Options) -> str:
    """Return the command for the trainer that the settings are for."""
    chosen = str(options.get("method", default="")).lower().replace("-", "_")
    options.read.add("method")
    if chosen in METHODS:
        return METHODS[chosen]
    if options.has("num_generations", "reward_funcs", "max_completion_length", "scale_rewards"):
        return "grpo"
    return "dpo" if options.has("beta", "precompute_ref_log_probs", "ref_model_init_kwargs") else "sft"


def derive(draft: Draft, method: str) -> None:
    """Set what depends on several settings."""
    options = draft.options
    hf.set_precision(draft)
    hf.set_betas(draft)
    adapters = options.is_on("use_peft", "load_in_4bit") or options.has("lora_r")
    hf.set_adapters(draft, "lora_r", "lora_alpha", "lora_target_modules", adapters)
    if options.is_on("load_in_4bit"):
        draft.set("load_in_4bit", "model.quantization", "nf4")
    hf.set_trackers(draft, "report_to")
    if name := next((key for key in ("dataset_name", "dataset", "datasets.0.path") if options.has(key)), ""):
        hf.set_tasks(draft, name, options.get(name))
    updates = _set_online_batches(draft) if method in ("grpo", "rloo") else _set_batches(draft, method)
    hf.set_length(draft, updates)
    hf.set_warmup(draft, updates)
    hf.set_cadence(draft, updates)
    if method == "grpo":
        _set_loss(draft)
    if method in ("dpo", "online_dpo"):
        _set_preferences(draft)
    if method in ("grpo", "rloo"):
        _set_rewards(draft)


def _set_batches(draft: Draft, method: str) -> float:
    rows = hf.count_rollouts(draft.options) * (2 if method == "dpo" else 1)
    note = "rows; a pair has two" if method == "dpo" else ""
    draft.set("per_device_train_batch_size,gradient_accumulation_steps", "learner.batch_size", rows, note)
    return 1


def _set_online_batches(draft: Draft) -> float:
    """Set the problems of a step and the rollouts of an update; return the updates of a step.

    TRL generates for `steps_per_generation` batches at once, which is one step of qed.
    """
    options = draft.options
    rollouts = hf.count_rollouts(options)
    per_generation = int(
        options.number("generation_batch_size")
        or options.number("steps_per_generation", default=options.number("gradient_accumulation_steps"))
        * options.number("per_device_train_batch_size")
        * hf.count_processes(options)
    )
    problems, note = hf.divide(per_generation, int(options.number("num_generations")))
    batch = "per_device_train_batch_size,gradient_accumulation_steps,num_processes,generation_batch_size"
    spelled = f"{per_generation} answers of a generation / num_generations"
    if not options.has("num_processes", "nproc_per_node", "generation_batch_size"):
        spelled += "; with N processes add -- --num_processes N"
    draft.set(batch, "sampling.problems_per_step", problems, ", ".join(filter(None, (spelled, note))))
    if per_generation > rollouts:
        draft.set("gradient_accumulation_steps", "learner.batch_size", rollouts, "answers of an optimizer step")
    return math.ceil(per_generation / rollouts) * options.number("num_iterations", default=1)


def _set_loss(draft: Draft) -> None:
    """Set the surrogate, its bounds, the average, and how advantages are scaled."""
    options = draft.options
    loss = str(options.get("loss_type")).lower()
    if loss not in LOSSES:
        draft.skip("loss_type", f"qed has {', '.join(LOSSES)}")
        return
    surrogate, average = LOSSES[loss]
    if options.get("importance_sampling_level") == "sequence" and surrogate == "clip":
        surrogate = "gspo"
        draft.set("importance_sampling_level", "algorithm.surrogate", "gspo")
    note = "over the step; TRL: over the tokens of a device's batch" if loss == "bnpo" else ""
    draft.set("loss_type", "algorithm.average", average, note)
    if surrogate != "clip":
        draft.set("loss_type", "algorithm.surrogate", surrogate)
    _set_bounds(draft, surrogate)
    for key, value in SCALES.get(str(options.get("scale_rewards")).lower(), {}).items():
        draft.set("scale_rewards", key, value)
    draft.set("scale_rewards", "algorithm.std_epsilon", 1e-4, "TRL adds 1e-4 to the deviation")
    _set_reference(draft)
    if options.is_on("use_adaptive_entropy"):
        draft.set("entropy_target", "algorithm.entropy_target", options.number("entropy_target", default=0.2))


def _set_bounds(draft: Draft, surrogate: str) -> None:
    """Set the settings of a surrogate."""
    options = draft.options
    if surrogate in ("clip", "gspo", "cispo"):
        low, high = options.number("epsilon"), options.get("epsilon_high")
        draft.set("epsilon", "algorithm.clip_low", low)
        draft.set("epsilon,epsilon_high", "algorithm.clip_high", low if high is None else high)
    if surrogate == "cispo":
        draft.set("loss_type", "algorithm.cispo_clip", "trl", "clips at epsilon_high itself")
    for kind, key, names in SHAPES:
        if kind == surrogate:
            values = [options.number(name, default=default) for name, default in names.items()]
            draft.set(",".join(names), key, values)


def _set_reference(draft: Draft) -> None:
    """Set how the KL is weighted, and whether its reference moves."""
    options = draft.options
    if options.number("beta") > 0:
        on = options.is_on("use_bias_correction_kl")
        draft.set("use_bias_correction_kl", "algorithm.kl_importance", on)
    elif options.has("use_bias_correction_kl"):
        draft.skip("use_bias_correction_kl", "there is no KL")
    if options.is_on("sync_ref_model"):
        every, share = "ref_model_sync_steps", "ref_model_mixup_alpha"
        draft.set(every, "algorithm.reference_every", int(options.number(every, default=512)))
        draft.set(share, "algorithm.reference_mix", options.number(share, default=0.6))


def _set_preferences(draft: Draft) -> None:
    options = draft.options
    draft.set("beta", "algorithm.beta", options.number("beta", default=0.1))
    losses = options.get("loss_type", default=["sigmoid"])
    losses = losses if isinstance(losses, list) else [losses]
    if unknown := [name for name in losses if name not in PREFERENCES]:
        draft.skip("loss_type", f"qed has no loss {', '.join(map(str, unknown))}")
    else:
        draft.set("loss_type", "algorithm.losses", [PREFERENCES[name] for name in losses])
    if options.has("loss_weights"):
        draft.set("loss_weights", "algorithm.loss_weights", options.get("loss_weights"))


def _set_rewards(draft: Draft) -> None:
    """Set the rewards with their weights; a user's own go on the command line, because YAML may not name code."""
    options = draft.options
    names = options.get("reward_funcs", default=[])
    names = names if isinstance(names, list) else [names]
    weights = options.get("reward_weights", default=[1.0] * len(names))
    weights = weights if isinstance(weights, list) else [weights]
    parts: list[str] = []
    lost: list[str] = []
    for name, weight in zip(map(str, names), weights, strict=False):
        module, _, function = name.rpartition(".")
        file = module if "." in module else f"{module}.py"
        ours = REWARDS.get(name) or (f"{file}:{function}" if module else "")
        (parts if ours else lost).append(f"{'' if weight == 1 else f'{weight:g}*'}{ours or name}")
    note = f"without {', '.join(lost)}: qed has no such reward; name its file, as FILE.py:FUNCTION" if lost else ""
    if any(":" in part for part in parts):
        draft.skip("reward_funcs", ", ".join(filter(None, ("on the command line, because it is code", note))))
        draft.arguments += ["--reward", ",".join(parts)]
    elif parts:
        draft.set("reward_funcs,reward_weights", "data.reward", parts, note)
    elif names:
        draft.skip("reward_funcs", note)
    given = {"cache": options.get("soft_punish_cache"), "max_tokens": options.get("max_completion_len")}
    written = [f"overlong.{key}={value}" for key, value in given.items() if value is not None]
    if written and any("overlong" in part for part in parts):
        draft.set("soft_punish_cache,max_completion_len", "data.reward_options", written)
