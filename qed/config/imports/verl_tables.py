"""Tables of verl's settings, including those added by LUFFY and ExGRPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qed.config.imports import huggingface as hf
from qed.config.imports.rules import absent, rename

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
# verl's defaults for settings that are not set.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "sft": {"data.train_batch_size": 256, "optim.lr": 1e-3, "trainer.total_epochs": 1},
    "": {
        "data.train_batch_size": 1024,
        "data.max_response_length": 512,
        f"{ROLLOUT}n": 1,
        f"{ROLLOUT}temperature": 1.0,
        f"{ACTOR}ppo_mini_batch_size": 256,
        f"{ACTOR}ppo_epochs": 1,
        f"{ACTOR}optim.lr": 1e-6,
        f"{ACTOR}optim.weight_decay": 0.01,
        f"{ACTOR}grad_clip": 1.0,
        f"{ACTOR}clip_ratio": 0.2,
        f"{ACTOR}clip_ratio_c": 3.0,
        f"{ACTOR}loss_agg_mode": "token-mean",
        f"{ACTOR}policy_loss.loss_mode": "vanilla",
        f"{ACTOR}entropy_coeff": 0.0,
        f"{ACTOR}kl_loss_coef": 0.001,
        f"{ACTOR}kl_loss_type": "low_var_kl",
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "algorithm.kl_penalty": "kl",
        "algorithm.norm_adv_by_std_in_grpo": True,
        "algorithm.lam": 1.0,
        "critic.optim.lr": 1e-5,
        "critic.cliprange_value": 0.5,
        "trainer.total_epochs": 30,
    },
}
METHODS = {
    "gae": "ppo",
    "grpo": "grpo",
    "grpo_passk": "grpo_passk",
    "gdpo": "gdpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
    "gpg": "gpg",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}
AVERAGES = {
    "token-mean": "token",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}
SURROGATES = {
    "vanilla": "clip",
    "gspo": "gspo_token",
    "cispo": "cispo",
    "sapo": "sapo",
    "geo_mean": "gmpo",
    "gpg": "plain",
}
# verl's losses that average over rows regardless of loss_agg_mode.
OF_ROWS = ("gspo", "sapo", "geo_mean")
DISCOUNTED = ("ppo", "reinforce_plus_plus")  # commands that use a discount
KL = {
    **{"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"},
    **{"kl+": "k1+", "k1+": "k1+", "abs+": "abs+", "mse+": "k2", "k2+": "k2", "low_var_kl+": "k3+", "k3+": "k3+"},
}
SHAPINGS = {"no_reshape": "none", "logp": "logp", "p_logp": "p_logp", "square_root": "square_root", "pow": "power"}
GUIDED = ("luffy", "rl_sft")  # qed's commands for LUFFY's modes, which fix the loss of given tokens
MEMORY = "it affects speed and memory, not the result"


def _under(section: str, names: str) -> list[str]:
    return [section + name for name in names.split()]


RULES = (
    rename("model.name", f"{MODEL}path", "model.partial_pretrain", "model.path"),
    rename("model.gradient_checkpointing", *_under(MODEL, "enable_gradient_checkpointing")),
    rename("model.gradient_checkpointing", "model.enable_gradient_checkpointing"),
    rename("sampling.group_size", f"{ROLLOUT}n"),
    rename("sampling.max_tokens", "data.max_response_length"),
    rename("sampling.temperature", f"{ROLLOUT}temperature"),
    rename("sampling.top_p", f"{ROLLOUT}top_p"),
    rename("sampling.top_k", f"{ROLLOUT}top_k", values={"-1": 0}, only=False),
    rename("data.max_prompt_tokens", "data.max_prompt_length"),
    rename(
        "data.truncation",
        "data.truncation",
        values={"left": "left", "right": "right", "error": "drop", "middle": None},
    ),
    rename("learner.lr", f"{ACTOR}optim.lr", "optim.lr"),
    rename("learner.weight_decay", f"{ACTOR}optim.weight_decay", "optim.weight_decay"),
    rename("learner.betas", f"{ACTOR}optim.betas", "optim.betas"),
    rename("learner.clip_norm", f"{ACTOR}grad_clip", "optim.clip_grad"),
    rename("learner.passes", f"{ACTOR}ppo_epochs"),
    rename("learner.tokens_per_microbatch", f"{ACTOR}ppo_max_token_len_per_gpu"),
    rename(
        "learner.schedule",
        *(f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.warmup_style", "optim.lr_scheduler"),
        values={"constant": "constant", "cosine": "cosine", "linear": "linear"},
    ),
    rename("algorithm.entropy", f"{ACTOR}entropy_coeff"),
    rename("algorithm.average_length", f"{ACTOR}loss_scale_factor"),
    rename("algorithm.discount", "algorithm.gamma"),
    rename("run.save_every", "trainer.save_freq", values={"-1": 0}, only=False),
    rename("run.keep_last", "trainer.max_actor_ckpt_to_keep"),
    rename("run.out", "trainer.default_local_dir"),
    rename("run.project", "trainer.project_name"),
    absent("a run is named by its folder, run.out", "trainer.experiment_name"),
    rename("run.seed", "data.seed"),
    rename("evaluation.at_start", "trainer.val_before_train"),
    rename("evaluation.samples", f"{ROLLOUT}val_kwargs.n", f"{ROLLOUT}n_val"),
    rename(
        "evaluation.temperature",
        *(f"{ROLLOUT}val_kwargs.temperature", f"{ROLLOUT}val_temperature"),
        values=dict.fromkeys(("0", "0.0")),
        only=False,
        why="number of sampled answers; there is always a greedy one",
    ),
    rename("evaluation.top_p", f"{ROLLOUT}val_kwargs.top_p"),
    rename("algorithm.guidance.traces", f"{ROLLOUT}n_prefix"),
    rename("algorithm.guidance.least", f"{ROLLOUT}min_prefix_ratio"),
    rename("algorithm.guidance.most", f"{ROLLOUT}max_prefix_ratio"),
    rename("algorithm.guidance.strategy", f"{ROLLOUT}prefix_strategy"),
    rename("algorithm.guidance.strategy_steps", f"{ROLLOUT}prefix_steps"),
    rename("algorithm.guidance.same_share", f"{ROLLOUT}prefix_share_across_samples"),
    absent("a prefix is at most sampling.max_tokens long", *_under(ROLLOUT, "max_prefix_len")),
    rename("algorithm.guidance.trace_share", "data.sample_target_ratio"),
    rename("algorithm.mixture.given_weight", *_under(ROLLOUT, "prefix_reward_weight_alpha")),
    rename("algorithm.mixture.own_weight", *_under(ROLLOUT, "prefix_reward_weight_beta")),
    rename("algorithm.mixture.zero_truncated", "data.disable_truncation_advantage"),
    absent("given tokens keep their advantage", *_under(ACTOR, "use_sft_prefix_reward sft_prefix_reward_weight")),
    absent("LUFFY's loss does not use it", *_under(ACTOR, "off_policy_normalize off_policy_cliprange")),
    absent("LUFFY's loss does not use it", *_under(ACTOR, "use_off_policy_clip off_abs_cliprange")),
    absent("LUFFY's code does not use it", f"{ROLLOUT}prefix_reward_strategy", "trainer.add_full_target_when_none"),
    absent("given tokens are weighted individually", *_under(ACTOR, "off_policy_loss_impl")),
    rename("algorithm.shaping.weight", *_under(ACTOR, "off_policy_reshape_weight")),
    rename("algorithm.shaping.exponent", *_under(ACTOR, "off_policy_reshape_pow_exp")),
    rename("algorithm.shaping.most", *_under(ACTOR, "off_policy_max_clip"), values={"-1": 0}, only=False),
    rename("algorithm.shaping.least", *_under(ACTOR, "off_policy_min_clip"), values={"-1": 0}, only=False),
    rename("algorithm.shaping.behaviour", *_under(ACTOR, "use_off_policy_probs")),
    absent(
        "set by the command: qed luffy, or qed rl-sft with both losses",
        *_under(ACTOR, "use_off_policy_loss use_sft_multitask_loss"),
    ),
    absent(
        "LUFFY's clips are clip_ratio and clip_upper_bound, and loss_remove_clip removes them",
        *_under(ACTOR, "loss_remove_clip on_loss_remove_clip clip_ratio clip_upper_bound"),
        *_under(ACTOR, "clip_ratio_low clip_ratio_high clip_ratio_c"),
    ),
    absent("the reference model is loaded if algorithm.kl is not 0", "actor_rollout_ref.ref.use_ref"),
    absent("demonstrations that do not fit are dropped, not truncated", "data.max_length"),
    absent("the parts are those of --reward", "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"),
    absent("a critic is a copy of the policy, with its settings", "critic. algorithm.use_pf_ppo algorithm.pf_ppo."),
    absent("the pool and its limits are settings of qed exgrpo", "trainer.experience. trainer.rollout_mode"),
    absent(hf.ONE_PROCESS, "trainer.nnodes trainer.n_gpus_per_node trainer.device ray_kwargs. ray_init."),
    absent(hf.ONE_PROCESS, "transfer_queue. trainer.ray_wait_register_center_timeout"),
    absent(hf.ONE_PROCESS, *_under(ACTOR, "fsdp_config. megatron. ulysses_sequence_parallel_size strategy shuffle")),
    absent(hf.OWN_SAMPLER, *_under(ROLLOUT, "name mode engine_kwargs. load_format dtype")),
    absent(
        MEMORY,
        *_under(ROLLOUT, "gpu_memory_utilization tensor_model_parallel_size max_num_seqs max_num_batched_tokens"),
        *_under(ROLLOUT, "enforce_eager free_cache_engine micro_batch_size max_model_len enable_chunked_prefill"),
        *_under(ROLLOUT, "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz"),
        *_under(ROLLOUT, "log_prob_max_token_len_per_gpu"),
        *_under(ACTOR, "use_dynamic_bsz ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_torch_compile"),
        *_under(ACTOR, "entropy_checkpointing entropy_from_logits_with_chunking profiler."),
        *_under(MODEL, "use_remove_padding use_fused_kernels use_liger use_shm"),
        "actor_rollout_ref.ref. data.dataloader_num_workers data.micro_batch_size_per_gpu use_remove_padding",
        "trainer.balance_batch actor_rollout_ref.hybrid_engine data.filter_overlong_prompts_workers",
        "global_profiler. actor_rollout_ref.nccl_timeout hydra.",
    ),
    absent(hf.EVERY_FILE, "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.log_val_generations"),
    absent("columns are detected, or named by --data.map", "data.prompt_key data.reward_fn_key"),
    absent("the whole held-out set is sampled, batched automatically", "data.val_batch_size"),
    absent("prompts that do not fit are dropped and counted", "data.filter_overlong_prompts", "data.filter_prompts"),
    absent("prompts are rendered by --prompt", "data.return_raw_chat data.return_raw_input_ids data.chat_template"),
    absent("the demonstration is detected", "data.add_tgt_with_acc data.target_key data.max_target_length"),
    absent("the seed determines the order in each epoch", "data.shuffle", "data.sampler.", "data.drop_last"),
    absent("resume with --resume --out DIR", "trainer.resume_mode", "trainer.resume_from_path", "trainer.val_only"),
    absent("only local files are supported", "trainer.default_hdfs_dir", "trainer.remove_previous_ckpt_in_save"),
    absent("a checkpoint holds everything that a run needs", f"{ACTOR}checkpoint.", "trainer.max_critic_ckpt_to_keep"),
    absent("LUFFY's optimizer files", "trainer.max_optim_to_keep"),
    absent("the model's code is its transformers class", f"{MODEL}trust_remote_code", "data.trust_remote_code"),
    absent("evaluation.samples adds sampled answers to the greedy one", *_under(ROLLOUT, "val_kwargs.do_sample")),
    absent("turns and tools are an environment: --data.environment", *_under(ROLLOUT, "multi_turn. agent.")),
    absent("tools are an environment: --data.environment", "data.tool_config_path"),
    absent("a reward is chosen by --reward", "reward_model. reward. reward_kwargs. data.val_reward_impl_version"),
    absent("qed opd and opsd learn from a teacher", "distillation."),
    absent(hf.ONE_PROCESS, "trainer.v1. trainer.use_v1 trainer.esi_redundant_time skip."),
    absent(MEMORY, *_under(MODEL, "tiled_mlp."), *_under(ROLLOUT, "profiler. prometheus. trace."), f"{ACTOR}qat."),
    absent(hf.OWN_SAMPLER, *_under(ROLLOUT, "checkpoint_engine. disaggregation. calculate_log_probs")),
    absent("the model is loaded unchanged", *_under(MODEL, "mtp. override_config. external_lib custom_chat_template")),
    absent("Hydra's own", "defaults", "config_path", "config_name", "hydra.searchpath"),
    *hf.RULES,
)  # fmt: skip
