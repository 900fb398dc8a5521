"""Finds what other systems' setting names mean in qed, for hints about unknown names.

They are suggested but not accepted as alternative names, because only some settings would have one. Most come from the
tables of `qed config import`; here are words used by several systems, and names that mean more than one setting.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from qed.config.imports import axolotl, llama_factory, open_r1, trl, verl

# Names by their last part, in snake case, with the settings that they may mean: the first one that a command has.
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
    " A repetition penalty depends on the preceding tokens, so the learner's log-probs would have another distribution "
    "than the answers. sampling.temperature, top_p, top_k and min_p apply to both."
)
_ESTIMATOR = " The command chooses it, such as qed rloo; algorithm.estimator changes it within a command."
_COMMAND = (
    " The command names the algorithm, as in qed rloo. To compare several in a sweep: qed pipeline "
    "--sft.learner.steps 0 --sweep rl.method=grpo,rloo."
)
_ROWS = (
    " learner.batch_size is the number of rows in a whole optimizer step, which qed splits by "
    "learner.tokens_per_microbatch to fit memory; neither devices nor accumulation multiply it."
)
# Names without a single corresponding setting, with what to do instead.
INSTEAD = {
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), _PENALTY),
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps", "micro_batch_size"), _ROWS),
    **dict.fromkeys(("adv_estimator", "advantage_estimator"), _ESTIMATOR),
    "config": " A configuration needs no option name: qed {command} FILE.yaml.",
    "fp16": " The precisions are float32, bfloat16 and float64: --model.precision bfloat16.",
    "loss_type": " A loss is algorithm.surrogate with algorithm.average. To convert TRL's: qed config import.",
    "ppo_mini_batch_size": " It counts problems in verl. learner.batch_size counts answers: problems x group_size.",
    "resume_from_checkpoint": " Set --out to the run's folder and add --resume.",
    "reward_weights": " Write a weight before its reward: --reward 0.5*NAME,OTHER.",
    "use_kl_loss": " Set algorithm.kl above 0 to use a KL.",
    **dict.fromkeys(("use_peft", "finetuning_type"), " Set model.lora_rank above 0 to train adapters."),
}


@dataclass(frozen=True)
class ForeignRule:
    """What another system's setting is in qed: one of these settings, or none for a reason."""

    title: str
    ours: tuple[str, ...]
    why: str


def advise(key: str, command: str) -> str:
    """Return what to do instead of a name without a single corresponding setting; empty if there is no advice."""
    last = key.rpartition(".")[2]
    if last in ("method", "algorithm", "algo") and command != "pipeline":
        return _COMMAND
    return INSTEAD[last].format(command=command, name=last) if last in INSTEAD else ""


def find_words(key: str) -> tuple[str, ...]:
    """Return the settings that a common word of other systems may mean."""
    parts = key.split(".")
    return WORDS.get(parts[-1]) or WORDS.get("_".join(parts[-2:]), ())


def find_rule(key: str) -> ForeignRule | None:
    """Return the rule for a setting of another system: by its full name, or by the end of it."""
    rules = _index_rules()
    return rules.get(key) or rules.get(".".join(key.split(".")[-2:])) or rules.get(key.rpartition(".")[2])


@functools.cache
def _index_rules() -> dict[str, ForeignRule]:
    """Index the rules of all systems by full names and, if they are specific enough, by their last parts."""
    index: dict[str, ForeignRule] = {}
    for system in (trl, open_r1, verl, llama_factory, axolotl):
        for rule in system.RULES:
            found = ForeignRule(system.TITLE, rule.ours, rule.why)
            for name in (one for one in rule.theirs if not one.endswith(".")):
                parts = name.split(".")
                index.setdefault(name, found)
                index.setdefault(".".join(parts[-2:]), found)
                # A single word, such as name or mode, may mean anything.
                if "_" in parts[-1]:
                    index.setdefault(parts[-1], found)
    return index
