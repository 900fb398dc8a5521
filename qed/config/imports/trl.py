"""TRL: the arguments of `trl grpo`, `trl sft`, `trl dpo` and the other trainers, and open-r1's recipes."""

from __future__ import annotations

import math
from typing import Any

from qed.config.imports import huggingface as hf
from qed.config.imports.rules import Draft, Options
from qed.config.imports.trl_tables import (
    BATCHES,
    DEFAULTS,
    LOSSES,
    METHODS,
    OF_PREFERENCES,
    OTHER_TRAINERS,
    PREFERENCES,
    REWARDS,
    RULES,
    SCALES,
    SHAPES,
)
from qed.errors import UsageError

__all__ = ["DEFAULTS", "RULES", "TITLE", "choose_method", "derive"]

TITLE = "TRL"


def choose_method(options: Options) -> str:
    """Return the command for the trainer to which the settings belong.

    Raises:
        UsageError: it is another trainer of TRL's.
    """
    chosen = str(options.get("method", default="")).lower().replace("-", "_")
    options.read.add("method")
    if chosen in OTHER_TRAINERS:
        raise UsageError(f"qed cannot import TRL's trainer {chosen}. It can import: {', '.join(METHODS)}.")
    method = METHODS.get(chosen, "")
    if not method and options.has("normalize_advantages", "reward_clip_range"):
        method = "rloo"
    elif not method and options.has("num_generations", "reward_funcs", "max_completion_length", "scale_rewards"):
        method = "grpo"
    elif not method:
        method = "dpo" if options.has(*OF_PREFERENCES) else "sft"
    return "dft" if method == "sft" and options.get("loss_type") == "dft" else method


def derive(draft: Draft, method: str) -> None:
    """Set values that depend on several settings."""
    options = draft.options
    hf.set_precision(draft)
    hf.set_betas(draft)
    hf.set_schedule(draft)
    adapters = options.is_on("use_peft", "load_in_4bit")
    hf.set_adapters(draft, "lora_r", "lora_alpha", "lora_target_modules", adapters)
    if options.is_on("load_in_4bit"):
        draft.set("load_in_4bit", "model.quantization", "nf4")
    hf.set_trackers(draft, "report_to")
    if name := next((key for key in ("dataset_name", "dataset", "datasets.0.path") if options.has(key)), ""):
        if name.startswith("datasets."):
            paths = hf.read_datasets(options, "path")
            hf.set_tasks(draft, ",".join(paths), list(paths.values()))
        else:
            hf.set_tasks(draft, name, options.get(name))
    hf.set_chat_prompt(draft, "chat_template" if options.has("chat_template") else "chat_template_path")
    updates = _set_online_batches(draft) if method in ("grpo", "rloo") else _set_batches(draft, method)
    hf.set_length(draft, updates)
    hf.set_warmup(draft, updates)
    hf.set_cadence(draft, updates)
    own = {"grpo": _set_grpo, "rloo": _set_rloo, "dpo": _set_preferences, "online_dpo": _set_preferences}
    own.get(method, _set_demonstrations)(draft, updates)


def _set_batches(draft: Draft, method: str) -> float:
    theirs, rows = "per_device_train_batch_size,gradient_accumulation_steps", hf.count_rollouts(draft.options)
    if method == "online_dpo":
        draft.set(theirs, "sampling.problems_per_step", rows, "prompts; each has two answers")
    elif method == "dpo":
        draft.set(theirs, "learner.batch_size", 2 * rows, "rows; a pair has two")
    else:
        draft.set(theirs, "learner.batch_size", rows)
    return 1


def _set_online_batches(draft: Draft) -> float:
    """Set the problems per step and the rollouts per update; return the updates per step.

    TRL generates for `steps_per_generation` batches at once, which is one step of qed. If these are fewer than the
    batches of an optimizer step, they still come from one policy.
    """
    options = draft.options
    rollouts = hf.count_rollouts(options)
    per_generation = int(
        options.number("generation_batch_size")
        or options.number("steps_per_generation", default=options.number("gradient_accumulation_steps"))
        * options.number("per_device_train_batch_size")
        * hf.count_processes(options)
    )
    answers = max(rollouts, per_generation)
    problems, note = hf.divide(answers, int(options.number("num_generations")))
    spelled = f"{answers} answers per generation / num_generations"
    if not options.has("num_processes", "nproc_per_node", "generation_batch_size"):
        spelled += "; with N processes add -- --num_processes N"
    draft.set(",".join(BATCHES), "sampling.problems_per_step", problems, ", ".join(filter(None, (spelled, note))))
    if answers > rollouts:
        draft.set("gradient_accumulation_steps", "learner.batch_size", rollouts, "answers per optimizer step")
    return math.ceil(answers / rollouts) * options.number("num_iterations", default=1)


def _set_demonstrations(draft: Draft, updates: float) -> None:
    """Record which command has the SFT loss."""
    loss = draft.options.get("loss_type")
    if loss is not None:
        known = loss in ("nll", "chunked_nll", "dft")
        draft.skip("loss_type", f"set by the command: qed {draft.table.command}" if known else "qed has nll and dft")


def _set_grpo(draft: Draft, updates: float) -> None:
    """Set the loss, the scaling of advantages, the KL and the rewards."""
    options = draft.options
    surrogate, average = _set_loss(draft)
    _set_bounds(draft, surrogate)
    _set_scale(draft)
    if options.number("beta") > 0:
        on = options.is_on("use_bias_correction_kl")
        draft.set("use_bias_correction_kl", "algorithm.kl_importance", on)
    elif options.has("use_bias_correction_kl"):
        draft.skip("use_bias_correction_kl", "there is no KL")
    if options.has("entropy_coef") and average != "token":
        note = "averaged like the loss; TRL: a mean over tokens"
        draft.set("entropy_coef", "algorithm.entropy", options.number("entropy_coef"), note)
    if options.is_on("use_adaptive_entropy"):
        target = options.number("entropy_target", default=0.2)
        draft.set("entropy_target,use_adaptive_entropy", "algorithm.entropy_target", target)
    _set_reference(draft, updates)
    _set_rewards(draft)


def _set_loss(draft: Draft) -> tuple[str, str]:
    """Set the surrogate and the average, and return both."""
    options, level = draft.options, "importance_sampling_level"
    loss = str(options.get("loss_type")).lower()
    if loss not in LOSSES:
        draft.skip("loss_type", f"qed has {', '.join(LOSSES)}")
        return "clip", ""
    surrogate, average = LOSSES[loss]
    note = "over the step; TRL: over the tokens of a device's batch" if loss == "bnpo" else ""
    draft.set("loss_type", "algorithm.average", average, note)
    if surrogate == "clip":
        surrogate = "gspo" if options.get(level) == "sequence" else "clip"
        draft.set(level, "algorithm.surrogate", surrogate)
    else:
        draft.set("loss_type", "algorithm.surrogate", surrogate)
        if options.has(level):
            draft.skip(level, "qed's cispo and sapo use the ratio of a token, vespo that of the answer")
    return surrogate, average


def _set_bounds(draft: Draft, surrogate: str) -> None:
    """Set the settings of a surrogate."""
    options = draft.options
    low, delta = options.number("epsilon"), options.number("delta")
    high = options.number("epsilon_high", default=low)
    if surrogate in ("clip", "gspo"):
        draft.set("epsilon", "algorithm.clip_low", low)
    if surrogate in ("clip", "gspo", "cispo"):
        draft.set("epsilon,epsilon_high", "algorithm.clip_high", high)
    if surrogate == "cispo":
        draft.set("loss_type", "algorithm.cispo_clip", "trl", "clips at epsilon_high itself")
    elif surrogate in ("clip", "gspo") and options.has("delta"):
        # TRL clamps the ratio at delta first. Above 1 + epsilon_high this affects only negative advantages.
        if delta > 1 + high:
            draft.set("delta", "algorithm.clip_dual", delta)
        else:
            draft.skip("delta", "not above 1 + epsilon_high: algorithm.clip_dual bounds negative advantages only")
    for kind, key, names in SHAPES:
        if kind == surrogate:
            values = [options.number(name, default=default) for name, default in names.items()]
            draft.set(",".join(names), key, values)


def _set_scale(draft: Draft) -> None:
    """Set how advantages are divided by a standard deviation."""
    options, theirs = draft.options, "scale_rewards"
    scale = str(options.get(theirs)).lower()
    if options.get("multi_objective_aggregation") == "normalize_then_sum":
        if options.has(theirs):
            draft.skip(theirs, "each reward is divided by its own deviation, and their sum by the step's")
    elif scale in SCALES:
        for key, value in SCALES[scale].items():
            draft.set(theirs, key, value)
    else:
        draft.skip(theirs, f"qed has {', '.join(SCALES)}")
    if draft.values.get("algorithm.normalize_std") is not False:
        draft.set(theirs, "algorithm.std_epsilon", 1e-4, "TRL adds 1e-4 to the deviation")


def _set_rloo(draft: Draft, updates: float) -> None:
    """Set the KL, which TRL's RLOO subtracts from the reward of an answer, and record what becomes of the clip."""
    options = draft.options
    weight = options.number("beta")
    draft.set("beta", "algorithm.kl", weight)
    if weight > 0:
        draft.set("beta", "algorithm.kl_place", "reward", "RLOO subtracts the KL from the reward")
        draft.set("beta", "algorithm.kl_estimator", "k1", "the sum of log-ratios over the answer")
    if updates > 1:
        why = "TRL clips the ratio of a whole answer; qed rloo has no clip: later updates per round are off-policy"
        draft.skip("epsilon,epsilon_high", why)
    elif options.has("epsilon", "epsilon_high"):
        draft.skip("epsilon,epsilon_high", "with one update per round the ratio is 1")
    _set_reference(draft, updates)
    _set_rewards(draft)


def _set_reference(draft: Draft, updates: float) -> None:
    """Set how the reference model moves; TRL counts optimizer steps, `updates` of which are one step of qed."""
    options, switch = draft.options, "sync_ref_model"
    if not options.is_on(switch):
        return
    every, share = "ref_model_sync_steps", "ref_model_mixup_alpha"
    if options.get("beta") == 0:
        draft.skip(",".join((switch, every, share)), "without a KL there is no reference model")
        return
    steps = max(1, round(options.number(every, default=512) / updates))
    draft.set(f"{every},{switch}", "algorithm.reference_every", steps, hf.explain_updates(updates))
    draft.set(share, "algorithm.reference_mix", options.number(share, default=0.6))


def _set_preferences(draft: Draft, updates: float) -> None:
    """Set the losses of DPO, and how its reference model moves."""
    options, online = draft.options, draft.table.command == "online_dpo"
    betas = _as_list(options.get("beta", default=0.1))
    draft.set("beta", "algorithm.beta", betas[0], "the first epoch's, for all epochs" if len(betas) > 1 else "")
    losses = _as_list(options.get("loss_type", default="sigmoid"))
    known = PREFERENCES | ({"ipo": "ipo_sum"} if online else {})  # TRL's online IPO sums log-probs over the answer
    if unknown := [name for name in losses if name not in known]:
        draft.skip("loss_type,loss_weights", f"qed has no loss {', '.join(map(str, unknown))}")
    else:
        draft.set("loss_type", "algorithm.losses", [known[name] for name in losses])
        if options.has("loss_weights"):
            draft.set("loss_weights", "algorithm.loss_weights", options.get("loss_weights"))
    _set_reference(draft, updates)
    if online:
        _set_rewards(draft)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _set_rewards(draft: Draft) -> None:
    """Set the rewards with their weights; user-defined ones go on the command line, because YAML may not name code."""
    options = draft.options
    parts, lost = _list_rewards(draft)
    theirs = ",".join(filter(options.has, ("reward_funcs", "reward_model_name_or_path", "reward_weights")))
    note = f"without {', '.join(lost)}: qed has no such reward; name its file, as in FILE.py:FUNCTION" if lost else ""
    if any(":" in part for part in parts):
        draft.skip(theirs, ", ".join(filter(None, ("on the command line, because it is code or a model", note))))
        draft.arguments += ["--reward", ",".join(parts)]
    elif parts:
        draft.set(theirs, "data.reward", parts, note)
    elif lost:
        draft.skip(theirs, note)
    given = {"cache": options.get("soft_punish_cache"), "max_tokens": options.get("max_completion_len")}
    written = [f"overlong.{key}={value}" for key, value in given.items() if value is not None]
    written = written if any("overlong" in part for part in parts) else []
    if "think_format_reward" in _as_list(options.get("reward_funcs", default=[])):
        written.append("format_only.format=think")
    if written:
        sources = ("soft_punish_cache", "max_completion_len", "reward_funcs")
        draft.set(",".join(filter(options.has, sources)), "data.reward_options", written)


def _list_rewards(draft: Draft) -> tuple[list[str], list[str]]:
    """Return the rewards in qed's notation, and the names of those that it does not have."""
    options = draft.options
    model = options.get("reward_model_name_or_path")
    names = [*([f"model:{model}"] if model else []), *map(str, _as_list(options.get("reward_funcs", default=[])))]
    weights = _as_list(options.get("reward_weights", default=[1.0] * len(names)))
    if len(weights) != len(names) or not all(isinstance(weight, int | float) for weight in weights):
        draft.skip("reward_weights", f"{len(weights)} for {len(names)} rewards: set one number for each")
        weights = [1.0] * len(names)
    parts: list[str] = []
    lost: list[str] = []
    for name, weight in zip(names, weights, strict=True):
        module, _, function = name.rpartition(".")
        file = module if "." in module else f"{module}.py"
        ours = name if name.startswith("model:") else REWARDS.get(name) or (f"{file}:{function}" if module else "")
        (parts if ours else lost).append(f"{'' if weight == 1 else f'{weight:g}*'}{ours or name}")
    return parts, lost
