"""Find what other systems' names of settings mean in qed, for hints about unknown names.

They are suggested, but not accepted as other names: those of only some settings would be confusing. Most come from the
tables of `qed config import`; here are the words of several systems, and names that mean more than one setting.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from qed.config.imports import axolotl, llama_factory, open_r1, trl, verl

# Names by their last part, in snake case, with the settings that they may be: the first that a command has is meant.
WORDS = {
    "batch_size": ("learner.batch_size",),
    "bf16": ("model.precision",),
    "clip_ratio": ("algorithm.clip_low",),
    "clip_ratio_high": ("algorithm.clip_high",),
    "clip_ratio_low": ("algorithm.clip_low",),
    "dataset": ("data.tasks",),
    "dataset_name": ("data.tasks",),
    "datasets": ("data.tasks",),
    "default_system": ("data.system_prompt",),
    "entropy_coeff": ("algorithm.entropy",),
    "epochs": ("learner.epochs", "learner.steps"),
    "epsilon": ("algorithm.clip_low",),
    "epsilon_high": ("algorithm.clip_high",),
    "eval_on_start": ("evaluation.at_start",),
    "eval_steps": ("evaluation.every",),
    "grad_clip": ("learner.clip_norm",),
    "init_kl_coef": ("algorithm.kl",),
    "kl_coef": ("algorithm.kl",),
    "kl_loss_coef": ("algorithm.kl",),
    "kl_loss_type": ("algorithm.kl_estimator",),
    "kl_penalty": ("algorithm.kl_estimator",),
    "limit": ("evaluation.problems",),
    "logger": ("run.trackers",),
    "load_in_4bit": ("model.quantization",),
    "loss_agg_mode": ("algorithm.average",),
    "lora_r": ("model.lora_rank",),
    "lora_target": ("model.lora_targets",),
    "lora_target_modules": ("model.lora_targets",),
    "lr_warmup_steps_ratio": ("learner.warmup_ratio",),
    "max_new_tokens": ("sampling.max_tokens",),
    "max_prompt_len": ("data.max_prompt_tokens",),
    "max_prompt_length": ("data.max_prompt_tokens", "data.max_prompt_percentile"),
    "max_steps": ("learner.steps",),
    "model_name": ("model.name",),
    "n_samples_per_prompt": ("sampling.group_size",),
    "norm_adv_by_std_in_grpo": ("algorithm.normalize_std",),
    "num_epochs": ("learner.epochs", "learner.steps"),
    "num_train_epochs": ("learner.epochs", "learner.steps"),
    "pretrain": ("model.name",),
    "report_to": ("run.trackers",),
    "reward_funcs": ("data.reward",),
    "rollout_batch_size": ("sampling.problems_per_step",),
    "rollout_n": ("sampling.group_size",),
    "save_steps": ("run.save_every",),
    "save_total_limit": ("run.keep_last",),
    "scale_rewards": ("algorithm.normalize_std",),
    "target_modules": ("model.lora_targets",),
    "total_epochs": ("learner.epochs", "learner.steps"),
    "total_training_steps": ("learner.steps",),
    "train_batch_size": ("sampling.problems_per_step",),
    "train_files": ("data.tasks",),
    "use_kl_in_reward": ("algorithm.kl_place",),
    "val_files": ("evaluation.tasks",),
    "val_kwargs_n": ("evaluation.samples",),
    "val_kwargs_temperature": ("evaluation.temperature",),
    "val_kwargs_top_p": ("evaluation.top_p",),
    "use_wandb": ("run.trackers",),
    "wandb_group": ("run.group",),
    "wandb_run_group": ("run.group",),
    "wandb_tags": ("run.tags",),
    "warmup_ratio": ("learner.warmup_ratio", "learner.warmup_steps"),
}
_PENALTY = (
    " A repetition penalty depends on the tokens before, and the learner's log-probs would be of another distribution "
    "than the answers. sampling.temperature, top_p, top_k and min_p apply to both."
)
_ESTIMATOR = " The command chooses it, as qed rloo; algorithm.estimator changes it within a command."
_COMMAND = (
    " The command is the algorithm, as qed rloo. To compare several in one sweep: qed pipeline --sft.learner.steps 0 "
    "--sweep rl.method=grpo,rloo."
)
_ROWS = (
    " qed counts the rows of a whole optimizer step in learner.batch_size, and cuts them by "
    "learner.tokens_per_microbatch to fit the memory; neither devices nor accumulation multiply it."
)
# Names that correspond to no single setting, with what to do instead.
INSTEAD = {
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), _PENALTY),
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps", "micro_batch_size"), _ROWS),
    **dict.fromkeys(("adv_estimator", "advantage_estimator"), _ESTIMATOR),
    "config": " A configuration is given without an option name: qed {command} FILE.yaml.",
    "fp16": " The precisions are float32, bfloat16 and float64: --model.precision bfloat16.",
    "loss_type": " A loss is algorithm.surrogate with algorithm.average. For TRL's and others: qed config import.",
    "ppo_mini_batch_size": " It counts problems in verl. learner.batch_size counts answers: problems x group_size.",
    "resume_from_checkpoint": " Give the run's folder as --out and add --resume.",
    "reward_weights": " A weight is written before its reward: --reward 0.5*NAME,OTHER.",
    "use_kl_loss": " A weight above 0 switches the KL on: algorithm.kl.",
    **dict.fromkeys(("use_peft", "finetuning_type"), " A rank above 0 switches the adapters on: model.lora_rank."),
}


@dataclass(frozen=True)
class ForeignRule:
    """What a system's setting is in qed: one of these settings, or none for a reason."""

    title: str
    ours: tuple[str, ...]
    why: str


def advise(key: str, command: str) -> str:
    """Return what to do instead of a name that corresponds to no single setting; empty if there is no such advice."""
    last = key.rpartition(".")[2]
    if last in ("method", "algorithm", "algo") and command != "pipeline":
        return _COMMAND
    return INSTEAD[last].format(command=command, name=last) if last in INSTEAD else ""


def find_words(key: str) -> tuple[str, ...]:
    """Return the settings that a usual word of other systems may mean."""
    parts = key.split(".")
    return WORDS.get(parts[-1]) or WORDS.get("_".join(parts[-2:]), ())


def find_rule(key: str) -> ForeignRule | None:
    """Return the rule for a setting of another system: by its whole name, or by the end of it."""
    rules = _index_rules()
    return rules.get(key) or rules.get(".".join(key.split(".")[-2:])) or rules.get(key.rpartition(".")[2])


@functools.cache
def _index_rules() -> dict[str, ForeignRule]:
    """Index the rules of all systems by whole names and, if they are telling, by their last words."""
    index: dict[str, ForeignRule] = {}
    for system in (trl, open_r1, verl, llama_factory, axolotl):
        for rule in system.RULES:
            found = ForeignRule(system.TITLE, rule.ours, rule.why)
            for name in (one for one in rule.theirs if not one.endswith(".")):
                parts = name.split(".")
                index.setdefault(name, found)
                index.setdefault(".".join(parts[-2:]), found)
                # One word, such as name or mode, may be anything.
                if "_" in parts[-1]:
                    index.setdefault(parts[-1], found)
    return index
