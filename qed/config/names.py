"""Suggest settings for an unknown name: it may be a typo, lack its section, or be another library's name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from qed.config.fields import Table

# Names of other libraries by their last part, in snake case. They are suggested, but not accepted as aliases: aliases
# for only some settings would be confusing.
FOREIGN = {
    "attn_implementation": "model.attention",
    "beta": "algorithm.kl",
    "bf16": "model.precision",
    "clip_ratio_high": "algorithm.clip_high",
    "clip_ratio_low": "algorithm.clip_low",
    "dataset": "data.tasks",
    "dataset_name": "data.tasks",
    "default_system": "data.system_prompt",
    "dtype": "model.precision",
    "entropy_coeff": "algorithm.entropy",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "eval_on_start": "evaluation.at_start",
    "eval_steps": "evaluation.every",
    "eval_temperature": "evaluation.temperature",
    "eval_top_p": "evaluation.top_p",
    "filter_overlong_prompts": "data.truncation",
    "flash_attn": "model.attention",
    "grad_clip": "learner.clip_norm",
    "gradient_accumulation_steps": "learner.tokens_per_microbatch",
    "kl_coef": "algorithm.kl",
    "kl_loss_coef": "algorithm.kl",
    "learning_rate": "learner.lr",
    "limit": "evaluation.problems",
    "logging_steps": "run.log_every",
    "loss_agg_mode": "algorithm.average",
    "loss_type": "algorithm.average",
    "lr_scheduler_type": "learner.schedule",
    "lr_warmup_ratio": "learner.warmup_ratio",
    "lr_warmup_steps_ratio": "learner.warmup_ratio",
    "max_completion_length": "sampling.max_tokens",
    "max_grad_norm": "learner.clip_norm",
    "max_new_tokens": "sampling.max_tokens",
    "max_prefix_ratio": "algorithm.guidance.most",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_response_length": "sampling.max_tokens",
    "max_steps": "learner.steps",
    "micro_batch_size": "learner.tokens_per_microbatch",
    "min_prefix_ratio": "algorithm.guidance.least",
    "model_name_or_path": "model.name",
    "n_prefix": "algorithm.guidance.traces",
    "n_samples_per_prompt": "sampling.group_size",
    "norm_adv_by_std_in_grpo": "algorithm.normalize_std",
    "num_epochs": "learner.epochs",
    "num_generations": "sampling.group_size",
    "num_train_epochs": "learner.epochs",
    "output_dir": "run.out",
    "per_device_train_batch_size": "learner.batch_size",
    "ppo_max_token_len_per_gpu": "learner.tokens_per_microbatch",
    "ppo_mini_batch_size": "learner.batch_size",
    "prefix_strategy": "algorithm.guidance.strategy",
    "pretrain": "model.name",
    "reward_funcs": "data.reward",
    "rollout_batch_size": "sampling.problems_per_step",
    "rollout_n": "sampling.group_size",
    "save_freq": "run.save_every",
    "save_steps": "run.save_every",
    "save_total_limit": "run.keep_last",
    "scale_rewards": "algorithm.normalize_std",
    "system": "data.system_prompt",
    "system_message": "data.system_prompt",
    "test_freq": "evaluation.every",
    "torch_dtype": "model.precision",
    "total_epochs": "learner.epochs",
    "total_training_steps": "learner.steps",
    "train_batch_size": "sampling.problems_per_step",
    "train_files": "data.tasks",
    "truncation_mode": "data.truncation",
    "truncation_side": "data.truncation",
    "val_before_train": "evaluation.at_start",
    "val_size": "data.validation_split",
    "val_files": "evaluation.tasks",
    "val_kwargs_n": "evaluation.samples",
    "val_kwargs_temperature": "evaluation.temperature",
}
# Names that correspond to no setting, with what to do instead.
_CUT = (
    " In training qed samples from the full distribution: the learner computes log-probs over all tokens, and with "
    "{name} answers would come from a different distribution. sampling.temperature applies to both. Evaluations can "
    "be truncated: see evaluation.top_p, and qed evaluate --help."
)
INSTEAD = {
    **dict.fromkeys(("top_p", "top_k", "min_p", "repetition_penalty"), _CUT),
    "config": " A configuration is given without an option name: qed {command} FILE.yaml.",
    "resume_from_checkpoint": " Give the run's folder as --out and add --resume.",
}


def suggest(key: str, table: Table, others: Iterable[str] = (), dashes: str = "") -> str:
    """Return a sentence that suggests what an unknown name may have meant, or an empty string.

    `others` are names besides the settings that may be suggested; `dashes` is the prefix of names on the command line.
    """
    last = key.rpartition(".")[2]
    if last in INSTEAD:
        return INSTEAD[last].format(command=table.command, name=last)
    sections = [name for name in table.sections if name and name in (key, f"sft.{key}", f"rl.{key}")]
    if sections:
        return f" It is a section, with the settings {_explain_section(sections, table)}."
    matches = _find_foreign(key, table) or [name for name in table.settings if name.rpartition(".")[2] == last]
    matches = matches or _find_near(key, table, others)
    if matches:
        return f" Did you mean {' or '.join(repr(format_name(name, dashes)) for name in matches)}?"
    section = key.rpartition(".")[0]
    inside = _explain_section([section], table)
    return f" The settings of that section are {inside}." if inside else ""


def format_name(name: str, dashes: str) -> str:
    """Format a name as on the command line if `dashes` is given, otherwise as in a file."""
    return dashes + name.replace("_", "-") if dashes else name


def _explain_section(sections: Iterable[str], table: Table) -> str:
    return ", ".join(
        key
        for section in sections
        for key, setting in table.settings.items()
        if section and setting.path.startswith(f"{section}.")
    )


def _find_foreign(key: str, table: Table) -> list[str]:
    """Return the settings that another library's name corresponds to, if this command has them."""
    parts = key.split(".")
    setting = FOREIGN.get(parts[-1]) or FOREIGN.get("_".join(parts[-2:]))
    if setting is None:
        return []
    names = (setting, *(f"{phase}.{setting}" for phase in table.methods))
    return [name for name in names if name in table.settings]


def _find_near(key: str, table: Table, others: Iterable[str]) -> list[str]:
    """Return the names closest to a mistyped one: among shortcuts and flags, in its section, in any, or in full."""
    section, _, last = key.rpartition(".")
    if not section and (near := _find_like(key, others)):
        return near
    inside = {setting.field for setting in table.settings.values() if setting.section == section}
    inside |= {setting.name for key, setting in table.settings.items() if key.rpartition(".")[0] == section}
    near = _find_like(last, inside, 0.6)
    if near:
        return [f"{section}.{near[0]}".lstrip(".")]
    near = _find_like(last, {setting.name for setting in table.settings.values()})
    if near:
        return [name for name, setting in table.settings.items() if setting.name == near[0]]
    # In an existing section, the long common prefix would make any two names similar.
    return [] if section in table.sections and section else _find_like(key, table.settings)


def _find_like(name: str, candidates: Iterable[str], cutoff: float = 0.7) -> list[str]:
    return difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=cutoff)
