"""What somebody may have meant by a name that is no setting: a typo, a missing section, or another library's word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from qed.config.fields import Table

# Other libraries' words, by their last part and in snake case. They are suggested and never accepted: a name that works
# for some settings and not for others is worse than one that never does.
FOREIGN = {
    "beta": "algorithm.kl",
    "bf16": "model.precision",
    "clip_ratio_high": "algorithm.clip_high",
    "clip_ratio_low": "algorithm.clip_low",
    "dataset": "data.tasks",
    "dataset_name": "data.tasks",
    "dtype": "model.precision",
    "entropy_coeff": "algorithm.entropy",
    "epochs": "learner.steps",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "eval_steps": "evaluation.every",
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
    "max_completion_length": "sampling.max_tokens",
    "max_grad_norm": "learner.clip_norm",
    "max_new_tokens": "sampling.max_tokens",
    "max_response_length": "sampling.max_tokens",
    "max_steps": "learner.steps",
    "max_prefix_ratio": "algorithm.guidance.most",
    "micro_batch_size": "learner.tokens_per_microbatch",
    "min_prefix_ratio": "algorithm.guidance.least",
    "model_name_or_path": "model.name",
    "n_prefix": "algorithm.guidance.traces",
    "n_samples_per_prompt": "sampling.group_size",
    "norm_adv_by_std_in_grpo": "algorithm.normalize_std",
    "num_epochs": "learner.steps",
    "num_generations": "sampling.group_size",
    "num_train_epochs": "learner.steps",
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
    "test_freq": "evaluation.every",
    "torch_dtype": "model.precision",
    "total_epochs": "learner.steps",
    "total_training_steps": "learner.steps",
    "train_batch_size": "sampling.problems_per_step",
    "train_files": "data.tasks",
    "val_files": "evaluation.tasks",
}
# Words that stand for something other than a setting, with what to do instead.
_CUT = (
    " In training qed samples from the whole distribution: the learner computes the log-probs of answers over all "
    "tokens, and with {name} they would be those of another distribution than the one that was sampled from. "
    "sampling.temperature counts in both; to evaluate with a cut distribution, see qed evaluate --help."
)
INSTEAD = {
    **dict.fromkeys(("top_p", "top_k", "min_p", "repetition_penalty"), _CUT),
    "config": " A configuration is given without a name in front: qed {command} FILE.yaml.",
    "resume_from_checkpoint": " Give the run's folder as --out and add --resume.",
}


def suggest(key: str, table: Table, others: Iterable[str] = (), dashes: str = "") -> str:
    """A sentence proposing what a name that is no setting of the command may have meant, or an empty string.

    `others` are names beside the settings that may be proposed; `dashes` stands before a name on the command line.
    """
    last = key.rpartition(".")[2]
    if last in INSTEAD:
        return INSTEAD[last].format(command=table.command, name=last)
    sections = [name for name in table.sections if name and name in (key, f"sft.{key}", f"rl.{key}")]
    if sections:
        return f" It is a section, with the settings {_explain_section(sections, table)}."
    known = _find_foreign(key, table) or [name for name in table.settings if name.rpartition(".")[2] == last]
    known = known or _find_near(key, table, others)
    if known:
        return f" Did you mean {' or '.join(repr(format_name(name, dashes)) for name in known)}?"
    section = key.rpartition(".")[0]
    inside = _explain_section([section], table)
    return f" The settings of that section are {inside}." if inside else ""


def format_name(name: str, dashes: str) -> str:
    """A name as the command line writes it where there are dashes before it, and as a file writes it elsewhere."""
    return dashes + name.replace("_", "-") if dashes else name


def _explain_section(sections: Iterable[str], table: Table) -> str:
    return ", ".join(
        key
        for section in sections
        for key, setting in table.settings.items()
        if section and setting.path.startswith(f"{section}.")
    )


def _find_foreign(key: str, table: Table) -> list[str]:
    """The settings that another library's word stands for, where this command has them."""
    parts = key.split(".")
    wanted = FOREIGN.get(parts[-1]) or FOREIGN.get("_".join(parts[-2:]))
    if wanted is None:
        return []
    names = (wanted, *(f"{phase}.{wanted}" for phase in table.methods))
    return [name for name in names if name in table.settings]


def _find_near(key: str, table: Table, others: Iterable[str]) -> list[str]:
    """The names most like a mistyped one: among shortcuts and flags, in its own section, in any, and as a whole."""
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
    # Within a section that exists, the long common beginning would make any two names look alike.
    return [] if section in table.sections and section else _find_like(key, table.settings)


def _find_like(name: str, known: Iterable[str], cutoff: float = 0.7) -> list[str]:
    return difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
