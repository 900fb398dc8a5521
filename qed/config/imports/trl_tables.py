"""Tables of TRL's settings: its defaults, and what its trainers, losses and rewards are called in qed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qed.config.imports import huggingface as hf
from qed.config.imports.rules import absent, rename

# TRL's defaults where they differ from qed's, for settings that are not set.
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
    "lora_target_modules": ["q_proj", "v_proj"],  # PEFT's default for most models
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {
        **SHARED,
        "learning_rate": 1e-6,
        "num_generations": 8,
        "max_completion_length": 512,
        "temperature": 1.0,
        "beta": 0.0,
        "epsilon": 0.2,
        "num_iterations": 1,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "importance_sampling_level": "token",
        "use_bias_correction_kl": True,
    },
    "rloo": {
        **SHARED,
        "learning_rate": 1e-6,
        "num_generations": 2,
        "max_completion_length": 512,
        "temperature": 1.0,
        "beta": 0.05,
        "epsilon": 0.2,
        "num_iterations": 1,
    },
    **{name: {**SHARED, "learning_rate": 2e-5} for name in ("sft", "dft")},
    "dpo": {**SHARED, "learning_rate": 1e-6, "beta": 0.1},
    "online_dpo": {
        **SHARED,
        "learning_rate": 5e-7,
        "num_generations": 2,
        "max_new_tokens": 64,
        "temperature": 0.9,
        "beta": 0.1,
    },
}
METHODS = {name: name for name in ("grpo", "rloo", "sft", "dft", "dpo", "online_dpo")} | {"dpo_online": "online_dpo"}
# TRL's trainers without a table here.
OTHER_TRAINERS = (
    *("bco", "cpo", "distillation", "gkd", "gold", "kto", "minillm", "nash_md", "orpo", "ppo", "ppo_tldr", "prm"),
    *("reward", "reward_modeling", "xpo"),
)
# Settings that identify a file without a trainer name as one for preferences.
OF_PREFERENCES = (
    *("beta", "precompute_ref_log_probs", "ref_model_init_kwargs", "loss_weights", "f_divergence_type"),
    *("ld_alpha", "use_weighting", "sync_ref_model"),
)
# The settings that determine the answers per generation.
BATCHES = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_processes", "nproc_per_node"),
    *("generation_batch_size", "steps_per_generation"),
)
# The surrogate and the average of each loss.
LOSSES = {
    "grpo": ("clip", "sequence"),
    "bnpo": ("clip", "token"),
    "dapo": ("clip", "token"),
    "dr_grpo": ("clip", "constant"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "sequence"),
    "luspo": ("clip", "sequence_sum"),
    "vespo": ("vespo", "token"),
}
SCALES: Mapping[str, Mapping[str, Any]] = {
    "group": {"algorithm.normalize_std": True},
    "true": {"algorithm.normalize_std": True},
    "batch": {"algorithm.normalize_std": True, "algorithm.std_over": "batch"},
    "none": {"algorithm.normalize_std": False},
    "false": {"algorithm.normalize_std": False},
}
AGGREGATIONS = {"sum_then_normalize": "group", "normalize_then_sum": "gdpo"}
DIVERGENCES = {
    **{"reverse_kl": "reverse_kl", "forward_kl": "forward_kl"},
    **{"js_divergence": "js", "alpha_divergence": "alpha"},
}
# Settings of single surrogates, with TRL's defaults.
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
    rename("sampling.max_tokens", "max_completion_length", "max_new_tokens"),
    rename("data.max_prompt_tokens", "max_prompt_length", why="longer prompts are dropped, not truncated"),
    rename("data.system_prompt", "system_prompt"),
    rename("algorithm.kl", "beta"),
    rename("algorithm.mask_truncated", "mask_truncated_completions", why="excluded from the average too"),
    rename("algorithm.top_entropy", "top_entropy_quantile"),
    rename("algorithm.entropy", "entropy_coef"),
    rename("algorithm.offpolicy_limit", "off_policy_mask_threshold"),
    rename("algorithm.estimator", "multi_objective_aggregation", values=AGGREGATIONS),
    rename("algorithm.label_smoothing", "label_smoothing"),
    rename("algorithm.divergence", "f_divergence_type", values=DIVERGENCES),
    rename("algorithm.divergence_alpha", "f_alpha_divergence_coef"),
    rename("algorithm.length_alpha", "ld_alpha"),
    rename("algorithm.weighted", "use_weighting"),
    rename("algorithm.precompute_reference", "precompute_ref_log_probs"),
    rename("learner.passes", "num_iterations"),
    rename(
        "data.window",
        "max_length max_seq_length",
        values={},
        why="demonstrations that do not fit are dropped, not truncated",
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
        "qed's sampler has the learner's probabilities; algorithm.correction is for samplers without them",
        *(f"vllm_importance_sampling_{name}" for name in ("correction", "mode", "cap", "clip_max", "clip_min")),
    ),
    absent("it would sample from another distribution than the learner's", "repetition_penalty"),
    absent("this loss has no clip", "epsilon", "epsilon_high", "delta"),
    absent("another loss reads it", *(name for _, _, names in SHAPES for name in names)),
    absent("sync_ref_model is off", "ref_model_sync_steps", "ref_model_mixup_alpha"),
    absent("the weight changes by 0.005 per step and is at least 0", "entropy_coef_min entropy_coef_max"),
    absent("the weight changes by 0.005 per step and is at least 0", "entropy_coef_delta"),
    absent("use_adaptive_entropy is off", "entropy_target"),
    absent("algorithm.whiten normalises over tokens, not over answers", "normalize_advantages"),
    absent("rewards are not clipped; your own reward can clip its values", "reward_clip_range"),
    absent("a penalty is a reward, such as overlong", "missing_eos_penalty"),
    absent("its temperature is 0.05", "discopop_tau"),
    absent("only the answer is trained", "completion_only_loss", "assistant_only_loss"),
    absent("whole rows are packed, and no gradient changes", "packing_strategy", "eval_packing", "padding_free"),
    absent("every prompt is rendered by --prompt", "dataset_prompt_column", "prompt_column"),
    absent("name the split with the task, as NAME:SPLIT", "dataset_train_split", "dataset_test_split"),
    absent("name a subset with the task", "dataset_config", "dataset_configs", "dataset_mixture."),
    absent("the seed determines the order in each epoch", "shuffle_dataset"),
    absent("the model is loaded by its name", "model_init_kwargs.", "ref_model_init_kwargs."),
    absent("qed shows them in the report", "log_multimodal", "wandb_log_unique_prompts", "log_completions_hub_repo"),
    absent("open-r1's callbacks and benchmarks: see qed evaluate", "callbacks", "benchmarks"),
    absent(hf.ONE_PROCESS, "ds3_gather_for_generation"),
    absent(hf.OF_NO_EFFECT, "use_liger_loss"),
    absent("pairs need correct and wrong answers, which a reward model does not judge", "reward_model_path"),
    *hf.RULES,
)
