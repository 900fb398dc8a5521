"""verl: its YAML files and the Hydra overrides of its scripts; also those of LUFFY and ExGRPO, which extend it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qed.config.imports import huggingface as hf
from qed.config.imports.rules import Draft, Options, absent, rename
from qed.errors import UsageError

TITLE = "verl"
ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
# verl's own values for settings that are not given.
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
        "algorithm.gamma": 1.0,
        "trainer.total_epochs": 30,
    },
}
METHODS = {
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
    "gspo": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
    "geo_mean": "gmpo",
    "gpg": "plain",
}
KL = {
    **{"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"},
    **{"kl+": "k1+", "k1+": "k1+", "abs+": "abs+", "mse+": "k2", "k2+": "k2", "low_var_kl+": "k3+", "k3+": "k3+"},
}
MEMORY = "it changes the speed and the memory, not the result"
RULES = (
    rename("model.name", f"{MODEL}path", "model.partial_pretrain", "model.path"),
    rename("model.gradient_checkpointing", f"{MODEL}enable_gradient_checkpointing", "model.enable_gradient_checkpointing"),
    rename("sampling.group_size", f"{ROLLOUT}n"),
    rename("sampling.max_tokens", "data.max_response_length"),
    rename("sampling.temperature", f"{ROLLOUT}temperature"),
    rename("sampling.top_p", f"{ROLLOUT}top_p"),
    rename("sampling.top_k", f"{ROLLOUT}top_k", values={"-1": 0, "0": 0, **{str(k): k for k in range(1, 1001)}}),
    rename("data.max_prompt_tokens", "data.max_prompt_length"),
    rename(
        "data.truncation|data.truncation_side",
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
    rename("algorithm.discount", "algorithm.gamma"),
    rename("algorithm.clip_dual", f"{ACTOR}clip_ratio_c"),
    rename("evaluation.every", "trainer.test_freq", values={"-1": 0, **{str(n): n for n in range(1, 10001)}}),
    rename("run.save_every", "trainer.save_freq", values={"-1": 0, **{str(n): n for n in range(1, 10001)}}),
    rename("run.keep_last", "trainer.max_actor_ckpt_to_keep"),
    rename("run.out", "trainer.default_local_dir"),
    rename("run.project", "trainer.project_name"),
    rename("run.group", "trainer.experiment_name"),
    rename("run.seed", "data.seed"),
    rename("evaluation.at_start", "trainer.val_before_train"),
    rename("evaluation.samples", f"{ROLLOUT}val_kwargs.n", f"{ROLLOUT}n_val"),
    rename("evaluation.temperature", f"{ROLLOUT}val_kwargs.temperature", f"{ROLLOUT}val_temperature"),
    rename("evaluation.top_p", f"{ROLLOUT}val_kwargs.top_p"),
    rename("algorithm.guidance.traces", f"{ROLLOUT}n_prefix"),
    rename("algorithm.guidance.least", f"{ROLLOUT}min_prefix_ratio"),
    rename("algorithm.guidance.most", f"{ROLLOUT}max_prefix_ratio"),
    rename("algorithm.guidance.strategy", f"{ROLLOUT}prefix_strategy"),
    rename("algorithm.guidance.strategy_steps", f"{ROLLOUT}prefix_steps"),
    rename("algorithm.guidance.same_share", f"{ROLLOUT}prefix_share_across_samples"),
    absent("every answer begins from the trace as it is", f"{ROLLOUT}max_prefix_len", f"{ROLLOUT}prefix_reward_weight_alpha"),
    absent("nothing in LUFFY reads it", *(f"{ACTOR}{name}" for name in ("use_sft_prefix_reward", "off_policy_normalize"))),
    absent("given tokens are weighted one by one", f"{ACTOR}off_policy_loss_impl"),
    absent("the reference model is loaded if algorithm.kl is not 0", "actor_rollout_ref.ref.use_ref"),
    absent("rejected answers would need a critic", "critic."),
    absent("the pool and its limits are settings of qed exgrpo", "trainer.experience.", "trainer.rollout_mode"),
    absent(hf.ONE_PROCESS, "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.ray_wait_register_center_timeout"),
    absent(hf.ONE_PROCESS, f"{ACTOR}fsdp_config.", f"{ACTOR}megatron.", f"{ACTOR}ulysses_sequence_parallel_size"),
    absent(hf.ONE_PROCESS, f"{ACTOR}strategy", f"{ACTOR}shuffle", "trainer.device", "ray_kwargs.", "ray_init.", "transfer_queue."),
    absent(hf.OWN_SAMPLER, *(f"{ROLLOUT}{name}" for name in ("name", "mode", "engine_kwargs.", "load_format", "dtype"))),
    absent(
        MEMORY,
        *(f"{ROLLOUT}{name}" for name in ("gpu_memory_utilization", "tensor_model_parallel_size", "max_num_seqs")),
        *(f"{ROLLOUT}{name}" for name in ("max_num_batched_tokens", "enforce_eager", "free_cache_engine", "micro_batch_size")),
        *(f"{ROLLOUT}{name}" for name in ("log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu", "max_model_len")),
        *(f"{ROLLOUT}{name}" for name in ("enable_chunked_prefill", "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu")),
        *(f"{ACTOR}{name}" for name in ("use_dynamic_bsz", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu")),
        *(f"{ACTOR}{name}" for name in ("use_torch_compile", "entropy_checkpointing", "entropy_from_logits_with_chunking")),
        *(f"{MODEL}use_remove_padding", f"{MODEL}use_fused_kernels", f"{MODEL}use_liger", f"{MODEL}use_shm"),
        *("actor_rollout_ref.ref.", "data.dataloader_num_workers", "data.micro_batch_size_per_gpu", "use_remove_padding"),
        *("trainer.balance_batch", "actor_rollout_ref.hybrid_engine", "data.filter_overlong_prompts_workers"),
    ),
    absent(hf.EVERY_FILE, "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.log_val_generations"),
    absent("the columns of a file are found by themselves, or named by --data.map", "data.prompt_key", "data.reward_fn_key"),
    absent("the whole held-out set is sampled in batches by itself", "data.val_batch_size"),
    absent("prompts that do not fit are left out and counted", "data.filter_overlong_prompts", "data.filter_prompts"),
    absent("prompts are rendered by --prompt", "data.return_raw_chat", "data.return_raw_input_ids", "data.chat_template"),
    absent("the demonstration of a row is found by itself", "data.add_tgt_with_acc", "data.target_key", "data.max_target_length"),
    absent("problems are drawn by the seed in each epoch", "data.shuffle", "data.sampler.", "data.drop_last"),
    absent("resume with --resume --out DIR", "trainer.resume_mode", "trainer.resume_from_path", "trainer.val_only"),
    absent("no file system but the local one", "trainer.default_hdfs_dir", "trainer.remove_previous_ckpt_in_save"),
    absent("a checkpoint holds all that a run needs", f"{ACTOR}checkpoint.", "trainer.max_critic_ckpt_to_keep"),
    absent("there is no critic", "trainer.critic_warmup", "algorithm.lam", "algorithm.use_pf_ppo", "algorithm.pf_ppo."),
    absent("LUFFY's optimizer files", "trainer.max_optim_to_keep"),
    absent("the model's code is its transformers class", f"{MODEL}trust_remote_code", "data.trust_remote_code"),
    absent("a greedy answer is always evaluated; evaluation.samples adds sampled ones", f"{ROLLOUT}val_kwargs.do_sample"),
    absent("tools and several turns are not available", f"{ROLLOUT}multi_turn.", f"{ROLLOUT}agent.", "data.tool_config_path"),
    absent("a reward is chosen by --reward", "reward_model.", "reward.", "data.val_reward_impl_version", "reward_kwargs."),
    absent(MEMORY, "global_profiler.", f"{ACTOR}profiler.", "actor_rollout_ref.nccl_timeout", "hydra."),
    absent("Hydra's own", "defaults", "config_path", "config_name", "hydra.searchpath"),
    *hf.RULES,
)  # fmt: skip


def choose_method(options: Options) -> str:
    """Return the command for verl's advantage estimator, or LUFFY's mode.

    Raises:
        UsageError: the estimator needs a critic, or is not known.
    """
    script = str(options.get("method", default=""))
    if "sft" in script or options.has("model.partial_pretrain"):
        return "sft"
    name = str(options.get("algorithm.adv_estimator", default="gae"))
    if name in ("grpo", "grpo_split") and options.is_on(f"{ACTOR}use_sft_multitask_loss"):
        return "rl_sft"
    given = (
        options.get(f"{ROLLOUT}max_prefix_ratio", default=1.0) != 0
        and options.get(f"{ROLLOUT}n_prefix", default=1) != 0
    )
    if name in ("grpo", "grpo_split") and options.is_on(f"{ACTOR}use_off_policy_loss") and given:
        return "luffy"
    if name not in METHODS:
        reason = "needs a critic, which qed does not train" if name == "gae" else "is not known to qed"
        raise UsageError(
            f"algorithm.adv_estimator is {name}, which {reason}. Known: {', '.join(METHODS)}. To import the rest: "
            "add -- algorithm.adv_estimator=grpo."
        )
    return METHODS[name]


def derive(draft: Draft, method: str) -> None:
    """Set what depends on several settings."""
    options = draft.options
    hf.set_adapters(
        draft, f"{MODEL}lora_rank", f"{MODEL}lora_alpha", f"{MODEL}target_modules",
        options.number(f"{MODEL}lora_rank") > 0,
    )  # fmt: skip
    for theirs, ours in (("data.train_files", "data.tasks"), ("data.val_files", "evaluation.tasks")):
        if options.has(theirs):
            hf.set_tasks(draft, theirs, options.get(theirs), ours)
    hf.set_trackers(draft, "trainer.logger")
    if options.has("trainer.logger") and not any(row.theirs == "trainer.logger" for row in draft.rows):
        draft.skip("trainer.logger", "the console is always on")
    _set_length(draft)
    draft.set("actor_rollout_ref.actor.fsdp_config.dtype", "model.precision", "bfloat16", "mixed precision, as FSDP's")
    if method == "sft":
        draft.set("data.train_batch_size", "learner.batch_size", int(options.number("data.train_batch_size")))
        return
    _set_batches(draft)
    _set_loss(draft, method)
    _set_kl(draft)
    _set_selection(draft)
    _set_reward(draft)


def _set_length(draft: Draft) -> None:
    options = draft.options
    steps = options.number("trainer.total_training_steps", default=0)
    options.read.update(("trainer.total_epochs", "trainer.total_training_steps"))
    if steps > 0:
        draft.set("trainer.total_training_steps", "learner.steps", int(steps))
    elif "learner.epochs" in draft.table.settings:
        draft.set("trainer.total_epochs", "learner.epochs", options.number("trainer.total_epochs"))
    else:
        draft.skip("trainer.total_epochs", "set learner.steps to epochs x problems / data.train_batch_size")
    for section in (ACTOR, ""):
        count, share = f"{section}optim.lr_warmup_steps", f"{section}optim.lr_warmup_steps_ratio"
        if options.number(count, default=-1) > 0:
            draft.set(count, "learner.warmup_steps", int(options.number(count)))
        elif options.number(share) > 0 and ("learner.warmup_ratio" in draft.table.settings or steps <= 0):
            draft.set(share, "learner.warmup_ratio", options.number(share))
        elif options.number(share) > 0:
            draft.set(share, "learner.warmup_steps", round(options.number(share) * steps))


def _set_batches(draft: Draft) -> None:
    """Set the problems of a step, and the rollouts of an update: verl counts prompts in both."""
    options = draft.options
    problems, samples = int(options.number("data.train_batch_size")), int(options.number(f"{ROLLOUT}n"))
    if options.has("data.gen_batch_size"):
        draft.skip("data.gen_batch_size", "dynamic sampling draws as many problems as are missing")
    draft.set("data.train_batch_size", "sampling.problems_per_step", problems)
    mini = min(problems, int(options.number(f"{ACTOR}ppo_mini_batch_size")))
    note = f"{mini} problems x {samples} answers"
    draft.set(f"{ACTOR}ppo_mini_batch_size,{ROLLOUT}n", "learner.batch_size", mini * samples, note)
    options.read.discard(f"{ROLLOUT}n")
    draft.set(f"{ROLLOUT}n", "sampling.group_size", samples)


def _set_loss(draft: Draft, method: str) -> None:
    options = draft.options
    clip = options.number(f"{ACTOR}clip_ratio")
    low = options.number(f"{ACTOR}clip_ratio_low", default=clip)
    high = options.number(f"{ACTOR}clip_ratio_high", default=clip)
    draft.set(f"{ACTOR}clip_ratio_low,{ACTOR}clip_ratio", "algorithm.clip_low", low)
    draft.set(f"{ACTOR}clip_ratio_high,{ACTOR}clip_ratio", "algorithm.clip_high", high)
    mode = str(options.get(f"{ACTOR}policy_loss.loss_mode"))
    if options.has(f"{ACTOR}policy_loss.loss_mode") and mode not in SURROGATES:
        draft.skip(f"{ACTOR}policy_loss.loss_mode", f"qed has {', '.join(SURROGATES)}")
    elif options.has(f"{ACTOR}policy_loss.loss_mode"):
        draft.set(f"{ACTOR}policy_loss.loss_mode", "algorithm.surrogate", SURROGATES[mode])
    name = "algorithm.norm_adv_by_std_in_grpo"
    name = "algorithm.grpo_use_std" if options.has("algorithm.grpo_use_std") else name
    if method in ("grpo", "grpo_passk", "luffy", "rl_sft"):
        draft.set(name, "algorithm.normalize_std", bool(options.get(name)))
    if options.is_on(f"{ACTOR}loss_remove_token_mean"):
        draft.set(
            f"{ACTOR}loss_remove_token_mean", "algorithm.average", "constant", "LUFFY divides by the longest answer"
        )
    elif str(options.get(f"{ACTOR}loss_agg_mode")) in AVERAGES and method not in ("luffy", "rl_sft"):
        draft.set(f"{ACTOR}loss_agg_mode", "algorithm.average", AVERAGES[str(options.get(f"{ACTOR}loss_agg_mode"))])
    elif options.has(f"{ACTOR}loss_agg_mode"):
        draft.skip(f"{ACTOR}loss_agg_mode", f"qed has {', '.join(AVERAGES)}")
    for switch in ("loss_remove_clip", "on_loss_remove_clip", "use_off_policy_loss", "use_sft_multitask_loss"):
        if options.has(f"{ACTOR}{switch}"):
            draft.skip(f"{ACTOR}{switch}", f"part of qed {method.replace('_', '-')}")
    if options.has(f"{ACTOR}off_policy_reshape"):
        draft.skip(f"{ACTOR}off_policy_reshape", "qed luffy weights given tokens by p / (p + 0.1); see its settings")


def _set_kl(draft: Draft) -> None:
    options = draft.options
    in_loss, in_reward = options.is_on(f"{ACTOR}use_kl_loss"), options.is_on("algorithm.use_kl_in_reward")
    loss, reward = (
        (f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type"),
        ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"),
    )
    for switch, (weight, kind), place in ((in_loss, loss, "loss"), (in_reward and not in_loss, reward, "reward")):
        if not switch:
            for name in (weight, kind):
                if options.has(name):
                    draft.skip(name, "this KL is switched off")
            continue
        draft.set(weight, "algorithm.kl", options.number(weight))
        if str(options.get(kind)) in KL:
            draft.set(kind, "algorithm.kl_estimator", KL[str(options.get(kind))])
        else:
            draft.skip(kind, f"qed has {', '.join(KL)}")
        draft.set(weight, "algorithm.kl_place", place)
    if not (in_loss or in_reward):
        draft.set(f"{ACTOR}use_kl_loss", "algorithm.kl", 0.0)
    if options.get("algorithm.kl_ctrl.type") == "adaptive" and in_reward:
        draft.set(
            "algorithm.kl_ctrl.target_kl",
            "algorithm.kl_target",
            options.number("algorithm.kl_ctrl.target_kl", default=0.1),
        )
        draft.set(
            "algorithm.kl_ctrl.horizon",
            "algorithm.kl_horizon",
            int(options.number("algorithm.kl_ctrl.horizon", default=10000)),
        )
    elif options.has("algorithm.kl_ctrl.type"):
        draft.skip("algorithm.kl_ctrl.type", "a fixed weight is the default")


def _set_selection(draft: Draft) -> None:
    """Set DAPO's dynamic sampling."""
    options = draft.options
    if options.has("algorithm.filter_groups.enable"):
        on = options.is_on("algorithm.filter_groups.enable")
        draft.set("algorithm.filter_groups.enable", "algorithm.dynamic_sampling", on)
        rounds = options.number("algorithm.filter_groups.max_num_gen_batches", default=10)
        if on and rounds > 0:
            draft.set("algorithm.filter_groups.max_num_gen_batches", "algorithm.max_rounds", int(rounds))
    for name in ("metric", "max_num_gen_batches"):
        if options.has(f"algorithm.filter_groups.{name}"):
            options.read.add(f"algorithm.filter_groups.{name}")


def _set_reward(draft: Draft) -> None:
    """Set the reward: a user's own on the command line, LUFFY's by its number, and DAPO's overlong punishment."""
    options = draft.options
    prefixes = ("custom_reward_function.", "reward.custom_reward_function.")
    prefix = next((one for one in prefixes if options.has(f"{one}path")), prefixes[0])
    own = options.get(f"{prefix}path")
    buffers = ("reward_model.overlong_buffer.", "reward_model.reward_kwargs.overlong_buffer_cfg.",
               "reward.reward_kwargs.overlong_buffer_cfg.", "custom_reward_function.overlong_buffer.")  # fmt: skip
    buffer = next((one for one in buffers if options.is_on(f"{one}enable")), "")
    overlong = ""
    if buffer:
        factor = options.number(f"{buffer}penalty_factor", default=1.0)
        overlong = "overlong" if factor == 1 else f"{factor:g}*overlong"
        draft.set(f"{buffer}len", "data.reward_options", [f"overlong.cache={int(options.number(f'{buffer}len'))}"])
    if own:
        name = options.get(f"{prefix}name", default="compute_score")
        draft.skip(f"{prefix}path", "on the command line, because it is code")
        draft.arguments += ["--reward", ",".join(filter(None, (f"{own}:{name}", overlong)))]
    elif options.has("data.reward_impl_version"):
        version = int(options.number("data.reward_impl_version"))
        draft.set("data.reward_impl_version", "data.reward", ["luffy_think"])
        if version in (1, 3):
            draft.set("data.reward_impl_version", "data.reward_options", [f"luffy_think.version={version}"])
    elif overlong:
        draft.set(f"{buffer}enable,{buffer}penalty_factor", "data.reward", ["auto", overlong])
