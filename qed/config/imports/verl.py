"""verl: its YAML files and the Hydra overrides in its scripts; also those of LUFFY and ExGRPO, which extend it."""

from __future__ import annotations

import math

from qed.config.imports import huggingface as hf
from qed.config.imports.rules import Draft, Options
from qed.config.imports.verl_reward import set_reward
from qed.config.imports.verl_tables import (
    ACTOR,
    AVERAGES,
    DEFAULTS,
    DISCOUNTED,
    GUIDED,
    KL,
    METHODS,
    MODEL,
    OF_ROWS,
    ROLLOUT,
    RULES,
    SHAPINGS,
    SURROGATES,
)
from qed.errors import UsageError

__all__ = ["DEFAULTS", "RULES", "TITLE", "choose_method", "derive"]

TITLE = "verl"
SWITCHES = f"{ACTOR}use_kl_loss,algorithm.use_kl_in_reward"
NEWER_CLIPS = "newer versions of verl read only clip_ratio_low and clip_ratio_high, 0.2 by default"


def choose_method(options: Options) -> str:
    """Return the command for verl's advantage estimator or LUFFY's mode.

    Raises:
        UsageError: the estimator is unknown.
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
        raise UsageError(
            f"algorithm.adv_estimator is {name}, which qed does not know. Known: {', '.join(METHODS)}. To import the "
            "rest, add -- algorithm.adv_estimator=grpo."
        )
    return METHODS[name]


def derive(draft: Draft, method: str) -> None:
    """Set values that depend on several settings."""
    options = draft.options
    hf.set_adapters(
        draft, f"{MODEL}lora_rank", f"{MODEL}lora_alpha", f"{MODEL}target_modules",
        options.number(f"{MODEL}lora_rank") > 0,
    )  # fmt: skip
    for theirs, ours in (("data.train_files", "data.tasks"), ("data.val_files", "evaluation.tasks")):
        if options.has(theirs):
            hf.set_tasks(draft, theirs, options.get(theirs), ours)
    if method in GUIDED or options.has("data.reward_impl_version"):
        draft.set("data.prompt_key", "data.prompt", "luffy", "the system message of LUFFY's data files")
    else:
        hf.set_chat_prompt(draft, "data.prompt_key")
    hf.set_trackers(draft, "trainer.logger")
    if options.has("trainer.logger") and not any(row.theirs == "trainer.logger" for row in draft.rows):
        draft.skip("trainer.logger", "the console is always on")
    _set_length(draft)
    _set_evaluations(draft, method)
    _set_truncation(draft, method)
    draft.set("actor_rollout_ref.actor.fsdp_config.dtype", "model.precision", "bfloat16", "mixed precision, as in FSDP")
    if method == "sft":
        draft.set("data.train_batch_size", "learner.batch_size", int(options.number("data.train_batch_size")))
        return
    _set_batches(draft)
    _set_loss(draft, method)
    _set_critic(draft, method)
    _set_discount(draft, method)
    _set_kl(draft, method)
    _set_selection(draft)
    set_reward(draft)


def _set_length(draft: Draft) -> None:
    options = draft.options
    steps = options.number("trainer.total_training_steps", default=0)
    options.read.update(("trainer.total_epochs", "trainer.total_training_steps"))
    if steps > 0:
        draft.set("trainer.total_training_steps", "learner.steps", int(steps))
        if options.has("trainer.total_epochs"):
            draft.skip("trainer.total_epochs", "total_training_steps takes precedence")
    else:
        draft.set("trainer.total_epochs", "learner.epochs", options.number("trainer.total_epochs"))
    for section in (ACTOR, ""):
        count, share = f"{section}optim.lr_warmup_steps", f"{section}optim.lr_warmup_steps_ratio"
        if options.number(count, default=-1) > 0:
            draft.set(count, "learner.warmup_steps", int(options.number(count)))
        elif options.number(share) > 0:
            draft.set(share, "learner.warmup_ratio", options.number(share))


def _set_evaluations(draft: Draft, method: str) -> None:
    """Set when to evaluate: verl does so every N steps and after the last; without N, only after SFT's last step."""
    theirs = "trainer.test_freq"
    if draft.options.has(theirs):
        every = draft.options.get(theirs)
        if str(every) not in ("-1", "0"):
            draft.set(theirs, "evaluation.every", every)
        elif method != "sft":
            draft.set(theirs, "evaluation.at_end", False)
        else:
            draft.set(theirs, "evaluation.every", 0)


def _set_truncation(draft: Draft, method: str) -> None:
    """Set where a long prompt is truncated; verl truncates demonstrations too, and filters before truncating."""
    options, theirs, length = draft.options, "data.truncation", "data.max_prompt_length"
    side = str(options.get(theirs)).lower()
    if method == "sft" and options.has(theirs):
        draft.skip(theirs, "demonstrations that do not fit are dropped, not truncated")
    elif options.is_on("data.filter_overlong_prompts") and side in ("left", "right"):
        draft.set(theirs, theirs, "drop", "filter_overlong_prompts takes precedence")
    elif side in ("left", "right"):
        draft.set(length, "data.max_prompt_tokens", int(options.number(length, default=512)))
        draft.set(theirs, theirs, side)
    options.read.discard("data.filter_overlong_prompts")


def _set_batches(draft: Draft) -> None:
    """Set the problems per step, and the rollouts per update; verl counts prompts in both."""
    options = draft.options
    problems, samples = int(options.number("data.train_batch_size")), int(options.number(f"{ROLLOUT}n"))
    if options.has("data.gen_batch_size"):
        draft.skip("data.gen_batch_size", "dynamic sampling draws as many problems as are missing")
    draft.set("data.train_batch_size", "sampling.problems_per_step", problems)
    rows, note = _count_rows(draft, f"{ACTOR}ppo_mini_batch_size")
    draft.set(f"{ACTOR}ppo_mini_batch_size", "learner.batch_size", rows, note)
    draft.set(f"{ROLLOUT}n", "sampling.group_size", samples)


def _count_rows(draft: Draft, theirs: str) -> tuple[int, str]:
    """Return the rollouts per update, and how they follow from verl's number of prompts."""
    options = draft.options
    problems, samples = options.number("data.train_batch_size"), int(options.number(f"{ROLLOUT}n"))
    mini = int(min(problems, options.number(theirs)))
    return mini * samples, f"{mini} problems x {samples} answers"


def _set_loss(draft: Draft, method: str) -> None:
    """Set the surrogate, its clips, the average and the scaling of advantages."""
    options, mode = draft.options, f"{ACTOR}policy_loss.loss_mode"
    loss = str(options.get(mode))
    if method in GUIDED:
        _set_shaping(draft)
        _set_advantages(draft)
        _set_guided_bounds(draft, method)
        loss = "vanilla"
    elif options.is_on(f"{ACTOR}loss_remove_clip"):  # LUFFY's baseline without demonstrations
        for ours, value in (("algorithm.clip_low", 1.0), ("algorithm.clip_high", math.inf)):
            draft.set(f"{ACTOR}loss_remove_clip", ours, value)
    elif loss in SURROGATES:
        draft.set(mode, "algorithm.surrogate", SURROGATES[loss])
        _set_bounds(draft, loss)
    else:
        draft.skip(mode, f"qed has {', '.join(SURROGATES)}")
        _set_bounds(draft, loss)
    _set_average(draft, method, loss)
    std = "algorithm.grpo_use_std" if options.has("algorithm.grpo_use_std") else "algorithm.norm_adv_by_std_in_grpo"
    if method in ("grpo", "grpo_passk", *GUIDED):
        draft.set(std, "algorithm.normalize_std", bool(options.get(std)))
    options.read.add(std)


def _set_average(draft: Draft, method: str, loss: str) -> None:
    """Set the average of the loss."""
    options, average, switch = draft.options, f"{ACTOR}loss_agg_mode", f"{ACTOR}loss_remove_token_mean"
    if options.is_on(switch):
        draft.set(switch, "algorithm.average", "constant", "LUFFY divides by a length")
    elif method in GUIDED:
        options.read.add(average)
        draft.set(switch, "algorithm.average", "token", "LUFFY's mean, unless the switch removes it")
    elif loss in OF_ROWS:
        draft.set(average, "algorithm.average", "sequence", f"always used by verl's {loss}; in qed also by a KL")
    elif str(options.get(average)) in AVERAGES:
        draft.set(average, "algorithm.average", AVERAGES[str(options.get(average))])
    else:
        draft.skip(average, f"qed has {', '.join(AVERAGES)}")


def _set_critic(draft: Draft, method: str) -> None:
    """Set the critic's settings; verl has one lambda for advantages and returns."""
    options, names = draft.options, ("algorithm.lam", "critic.optim.lr", "critic.cliprange_value")
    passes, batch = "critic.ppo_epochs", "critic.ppo_mini_batch_size"
    if method != "ppo":
        for name in (*names, passes, batch, "trainer.critic_warmup"):
            if options.has(name):
                draft.skip(name, "this estimator has no critic")
        options.read.update(names)
        return
    for part in ("policy", "value"):
        draft.set("algorithm.lam", f"algorithm.gae.{part}_lambda", options.number("algorithm.lam"))
    draft.set("critic.optim.lr", "algorithm.critic.lr", options.number("critic.optim.lr"))
    draft.set("critic.cliprange_value", "algorithm.critic.clip", options.number("critic.cliprange_value"))
    if options.has(passes):
        draft.set(passes, "algorithm.critic.passes", options.get(passes))
    if options.has(batch):
        rows, note = _count_rows(draft, batch)
        draft.set(batch, "algorithm.critic.batch_size", rows, note)
    # The step with this number, counted from 1, is the first that trains the policy.
    warmup = max(0, int(options.number("trainer.critic_warmup", default=0)) - 1)
    draft.set("trainer.critic_warmup", "algorithm.critic.warmup_steps", warmup)


def _set_discount(draft: Draft, method: str) -> None:
    """Set the discount if the estimator uses it; otherwise qed would reject it."""
    if draft.options.has("algorithm.gamma"):
        if method in DISCOUNTED:
            draft.set("algorithm.gamma", "algorithm.discount", draft.options.get("algorithm.gamma"))
        else:
            draft.skip("algorithm.gamma", "this estimator uses no discount")


def _set_shaping(draft: Draft) -> None:
    """Set LUFFY's weights of given and sampled tokens; p_div_p_G is p / (p + G)."""
    for side, ours in (("off", "kind"), ("on", "own_kind")):
        theirs = f"{ACTOR}{side}_policy_reshape"
        kind, _, gamma = str(draft.options.get(theirs, default="")).partition("p_div_p_")
        if gamma:
            draft.set(theirs, f"algorithm.shaping.{ours}", "regularized")
            draft.set(theirs, "algorithm.shaping.gamma", gamma)
        elif kind in SHAPINGS:
            draft.set(theirs, f"algorithm.shaping.{ours}", SHAPINGS[kind])
        elif kind:
            draft.skip(theirs, f"qed has {', '.join(SHAPINGS)} and p_div_p_0.1, with any number")


def _set_advantages(draft: Draft) -> None:
    """Set LUFFY's fixed advantage of given tokens, and the answers used for its statistics."""
    switch, weight = f"{ACTOR}use_sft_prefix_reward", f"{ACTOR}sft_prefix_reward_weight"
    if draft.options.is_on(switch):
        value = draft.options.number(weight, default=1.0)
        draft.set(f"{switch},{weight}", "algorithm.mixture.given_advantage", value, "divided by the number of answers")
    if draft.options.get("algorithm.adv_estimator") == "grpo_split":
        draft.set("algorithm.adv_estimator", "algorithm.mixture.statistics", "split")


def _set_guided_bounds(draft: Draft, method: str) -> None:
    """Set LUFFY's clips of sampled tokens, which one switch removes; only the off-policy loss has an upper bound."""
    options, switch = draft.options, f"{ACTOR}loss_remove_clip"
    clip, most = f"{ACTOR}clip_ratio", f"{ACTOR}clip_upper_bound"
    if not options.is_on(switch):
        width = options.number(clip)
        bound = max(width, options.number(most, default=1.0) - 1) if method == "luffy" else width
        draft.set(f"{switch},{clip}", "algorithm.clip_low", width, "LUFFY clips, unless the switch removes it")
        draft.set(f"{clip},{most}" if method == "luffy" else clip, "algorithm.clip_high", bound)


def _set_bounds(draft: Draft, loss: str) -> None:
    """Set the clips of a surrogate, and sapo's temperatures."""
    options, clip, dual = draft.options, f"{ACTOR}clip_ratio", f"{ACTOR}clip_ratio_c"
    if loss == "sapo":
        names = (f"{ACTOR}tau_pos", f"{ACTOR}tau_neg")
        values = [options.number(name, default=default) for name, default in zip(names, (1.0, 1.05), strict=True)]
        draft.set(",".join(names), "algorithm.sapo_temperatures", values)
    sides = {f"{clip}_{side}": f"algorithm.clip_{side}" for side in ("low", "high")}
    if loss not in ("sapo", "gpg"):
        for name, ours in sides.items():
            note = NEWER_CLIPS if options.has(clip) and not options.has(name) else ""
            draft.set(f"{name},{clip}", ours, options.number(name, default=options.number(clip)), note)
    elif given := ",".join(filter(options.has, (clip, *sides))):
        draft.skip(given, f"verl's {loss} has no clip")
    if loss == "vanilla":
        draft.set(dual, "algorithm.clip_dual", options.number(dual))
    elif options.has(dual):
        draft.skip(dual, f"verl's {loss} has no dual clip")


def _set_kl(draft: Draft, method: str) -> None:
    """Set the KL in the loss or in the reward; verl has settings and a switch for each."""
    options, switch = draft.options, "algorithm.use_kl_in_reward"
    in_loss, in_reward = options.is_on(f"{ACTOR}use_kl_loss"), options.is_on(switch)
    off = "this KL is switched off"
    _set_one_kl(draft, in_loss, (f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type"), "loss", off)
    if in_reward and (in_loss or method == "gdpo"):
        off = "gdpo adds up the parts of the reward, and a KL is not one"
        off = "qed has one KL at a time, here the one in the loss" if in_loss else off
        draft.skip(switch, off)
        in_reward = False
    both = ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty")
    _set_one_kl(draft, in_reward, both, "reward", off)
    if not (in_loss or in_reward):
        draft.set(SWITCHES, "algorithm.kl", 0.0)
    if options.get("algorithm.kl_ctrl.type") == "adaptive" and in_reward:
        target, horizon = "algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"
        draft.set(target, "algorithm.kl_target", options.number(target, default=0.1))
        draft.set(horizon, "algorithm.kl_horizon", int(options.number(horizon, default=10000)))
    elif options.has("algorithm.kl_ctrl.type"):
        draft.skip("algorithm.kl_ctrl.type", "a fixed weight is the default" if in_reward else off)


def _set_one_kl(draft: Draft, on: bool, names: tuple[str, str], place: str, why: str) -> None:
    options, (weight, kind) = draft.options, names
    if not on:
        for name in (weight, kind):
            if options.has(name):
                draft.skip(name, why)
        return
    draft.set(weight, "algorithm.kl", options.number(weight))
    draft.set(SWITCHES, "algorithm.kl_place", place)
    if str(options.get(kind)) in KL:
        draft.set(kind, "algorithm.kl_estimator", KL[str(options.get(kind))])
    else:
        draft.skip(kind, f"qed has {', '.join(KL)}")


def _set_selection(draft: Draft) -> None:
    """Set DAPO's dynamic sampling."""
    options = draft.options
    switch, metric, limit = (f"algorithm.filter_groups.{name}" for name in ("enable", "metric", "max_num_gen_batches"))
    on = options.is_on(switch)
    if options.has(switch):
        draft.set(f"{switch},{metric}" if options.get(metric) == "acc" else switch, "algorithm.dynamic_sampling", on)
    if options.has(metric) and options.get(metric) != "acc":
        draft.skip(metric, "groups with right and wrong answers are kept, as with acc, whatever their rewards")
    rounds = options.number(limit, default=10)
    if on and rounds > 0:
        draft.set(limit, "algorithm.max_rounds", int(rounds))
    elif options.has(limit):
        draft.skip(limit, "0 sets no limit; algorithm.max_rounds sets one" if on else "filter_groups is off")
