"""Tables shared by TRL, open-r1, LLaMA-Factory and axolotl: the transformers Trainer, its batches and its adapters."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.imports.rules import Draft, Options, absent, rename
from qed.config.task_names import DATA_SUFFIXES, parse_task
from qed.errors import UsageError

SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
# Schedules that qed does not have, each with the closest one.
NEAREST_SCHEDULES = {
    **dict.fromkeys(("cosine_with_min_lr", "cosine_warmup_with_min_lr", "cosine_with_restarts"), "cosine"),
    "polynomial": "linear",
}
OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw", "adamw_hf"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adamw8bit"),
}
ATTENTION = {"flash_attention_2": "flash_attention_2", "sdpa": "sdpa", "eager": "eager", "auto": "auto"}
PRECISION = {
    **dict.fromkeys(("bfloat16", "bf16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("float32", "fp32", "torch.float32"), "float32"),
    **dict.fromkeys(("float64", "torch.float64"), "float64"),
}
ONE_PROCESS = "qed distributes a run by --ranks and parallel.shard"
OWN_SAMPLER = "see sampling.sampler: native or vllm"
HUB = "hub"  # the task that reads any data set on the Hub, if qed has it
NO_HUB = "qed uploads nothing during training"
OF_NO_EFFECT = "does not affect results"
EVERY_FILE = "qed keeps every rollout and metric of a run"

RULES = (
    rename("learner.lr", "learning_rate"),
    rename("learner.schedule", "lr_scheduler_type", "lr_scheduler", values=SCHEDULES),
    absent("qed's schedules decay to 0", "lr_scheduler_kwargs", "lr_scheduler_kwargs."),
    rename("learner.weight_decay", "weight_decay"),
    rename("learner.clip_norm", "max_grad_norm"),
    rename("learner.optimizer", "optim", "optimizer", values=OPTIMIZERS),
    rename("model.revision", "model_revision", values={"main": None}, why="the newest revision is the default"),
    rename("model.attention", "attn_implementation", values=ATTENTION),
    rename("model.precision", "torch_dtype", "dtype", values=PRECISION),
    rename("model.gradient_checkpointing", "gradient_checkpointing"),
    rename("run.seed", "seed"),
    rename("run.out", "output_dir"),
    rename("run.log_every", "logging_steps"),
    rename("run.project", "wandb_project"),
    rename("run.entity", "wandb_entity"),
    absent("a run is named by its folder, run.out", "run_name", "wandb_run_name", "wandb_name", "wandb_run_id"),
    absent("its format is the model's own", "chat_template", "chat_template_kwargs.", "eos_token", "pad_token"),
    absent(
        ONE_PROCESS,
        "deepspeed fsdp fsdp_config. ddp_timeout ddp_find_unused_parameters dataloader_num_workers",
        "num_machines main_process_port config_file accelerator_config. gpu_ids parallelism_config.",
    ),
    absent(
        OF_NO_EFFECT,
        "logging_first_step logging_strategy log_level log_completions num_completions_to_print",
        "gradient_checkpointing_kwargs. tf32 torch_compile use_liger_kernel use_liger dataloader_pin_memory",
        "per_device_eval_batch_size do_train do_eval overwrite_output_dir overwrite_cache group_by_length",
        "remove_unused_columns preprocessing_num_workers dataset_num_proc plot_loss include_tokens_per_second",
        "log_on_each_node disable_tqdm save_safetensors save_only_model eval_on_start_batch log_unique_prompts",
        "include_num_input_tokens_seen dataset_prepared_path strict special_tokens. debug hub_strategy",
    ),
    absent("its settings are above if the file was found; if not, pass it as a separate FILE", "config"),
    absent(NO_HUB, "push_to_hub", "hub_model_id", "hub_private_repo", "hub_token", "hub_model_revision"),
    absent("the model's code is its transformers class", "trust_remote_code"),
    absent("adapters have no dropout", "lora_dropout"),
    absent("only the adapters of linear layers are trained", "lora_modules_to_save", "additional_target"),
    absent("adapters are plain LoRA", "use_rslora", "use_dora", "loraplus_lr_ratio", "lora_task_type"),
)  # fmt: skip


def set_adapters(draft: Draft, rank: str, alpha: str, targets: str, on: bool) -> None:
    """Set the LoRA settings: without adapters, rank 0 trains all weights."""
    options = draft.options
    if not on:
        for name in (rank, alpha, targets):
            if options.has(name):
                draft.skip(name, "adapters are not switched on")
        return
    draft.set(rank, "model.lora_rank", int(options.number(rank)))
    if options.is_on("use_rslora"):
        scaled = round(options.number(alpha, default=2 * options.number(rank)) * math.sqrt(options.number(rank)))
        draft.set(f"{alpha},use_rslora", "model.lora_alpha", scaled, "rank-stabilised: lora_alpha x sqrt(rank)")
    elif options.get(alpha) is not None:
        draft.set(alpha, "model.lora_alpha", int(options.number(alpha)))
    chosen = options.get(targets)
    if chosen in (None, "all-linear", "all", ["all-linear"], ["all"]):
        options.read.add(targets)
    else:
        draft.set(targets, "model.lora_targets", chosen)


def set_schedule(draft: Draft) -> None:
    """Set the schedule of the learning rate, or the closest one."""
    theirs, ours = "lr_scheduler_type", "learner.schedule"
    name = str(draft.options.get(theirs)).lower()
    if name in SCHEDULES:
        draft.set(theirs, ours, SCHEDULES[name])
    elif name in NEAREST_SCHEDULES:
        draft.set(theirs, ours, NEAREST_SCHEDULES[name], "the closest that qed has; it decays to 0, once")
    else:
        draft.skip(theirs, f"the schedule of qed {draft.table.command} is kept; qed has {', '.join(SCHEDULES)}")


def set_precision(draft: Draft) -> None:
    """Set the compute precision; with bf16, the trainers also compute in bfloat16 and keep weights in float32."""
    options, names = draft.options, ("torch_dtype", "dtype")
    loaded = PRECISION.get(str(options.get(*names)).lower())
    if options.is_on("fp16"):
        draft.skip("fp16", "the precisions are float32 and bfloat16")
    elif options.is_on("bf16") and loaded in (None, "float32"):
        draft.set("bf16", "model.precision", "bfloat16")
        if loaded:
            draft.set(next(filter(options.has, names)), "model.dtype", loaded)
    elif options.has("bf16") and not loaded:
        draft.set("bf16", "model.precision", "float32")


def set_betas(draft: Draft) -> None:
    """Set AdamW's two betas, which are separate settings in the trainers."""
    options, names = draft.options, ("adam_beta1", "adam_beta2")
    if options.has(*names):
        first, second = options.number(names[0], default=0.9), options.number(names[1], default=0.999)
        draft.set(",".join(names), "learner.betas", [first, second])


def set_length(draft: Draft, updates_per_step: float) -> None:
    """Set the number of steps or epochs.

    Args:
        draft: the configuration.
        updates_per_step: the trainer's optimizer steps per step of qed.
    """
    options = draft.options
    steps = options.number("max_steps", default=-1)
    if steps > 0:
        result = max(1, round(steps / updates_per_step))
        draft.set("max_steps", "learner.steps", result, explain_updates(updates_per_step))
        if options.has("num_train_epochs"):
            draft.skip("num_train_epochs", "max_steps takes precedence")
    else:
        draft.set("num_train_epochs,max_steps", "learner.epochs", options.number("num_train_epochs"))


def set_warmup(draft: Draft, updates_per_step: float) -> None:
    """Set the warm-up, in steps or as a share of them."""
    options, names = draft.options, ("warmup_steps", "warmup_ratio")
    count, share = map(options.number, names)
    if options.has("warmup_steps") and not options.has("warmup_ratio"):
        share = 0
    if options.get("lr_scheduler_type") == "constant":
        for name in filter(options.has, names):
            draft.skip(name, "the schedule constant has no warm-up")
    elif 0 < count < 1:
        draft.set("warmup_steps", "learner.warmup_ratio", count, "values below 1 are a share")
    elif count or (options.has("warmup_steps") and not share):
        result = max(1, round(count / updates_per_step)) if count else 0
        draft.set("warmup_steps", "learner.warmup_steps", result, explain_updates(updates_per_step))
        if share:
            draft.skip("warmup_ratio", "warmup_steps takes precedence")
    elif share:
        draft.set("warmup_ratio", "learner.warmup_ratio", share)


def set_cadence(draft: Draft, updates_per_step: float) -> None:
    """Set how often a run saves and evaluates: in qed's steps, while the trainer counts optimizer steps."""
    options = draft.options
    strategies = {"save": ("save_strategy",), "eval": ("eval_strategy", "evaluation_strategy")}
    for what, ours in (("save", "run.save_every"), ("eval", "evaluation.every")):
        name, strategy = f"{what}_steps", options.get(*strategies[what])
        if strategy in (None, "steps") and options.has(name) and options.number(name) >= 1:
            result = max(1, round(options.number(name) / updates_per_step))
            draft.set(name, ours, result, explain_updates(updates_per_step))
        elif options.has(name):
            draft.skip(
                name, "a share of all steps" if strategy in (None, "steps") else f"{what}_strategy is {strategy}"
            )
        if strategy in ("epoch", "best"):
            draft.skip(strategies[what][0], f"{ours} counts steps")
    if options.has("save_total_limit"):
        draft.set("save_total_limit", "run.keep_last", options.get("save_total_limit"))
    if options.has("eval_on_start"):
        draft.set("eval_on_start", "evaluation.at_start", options.get("eval_on_start"))


def set_validation(draft: Draft, theirs: str) -> None:
    """Set the share of data to hold out; a number of examples has no equivalent."""
    if draft.options.has(theirs):
        size = draft.options.number(theirs)
        if size < 1:
            draft.set(theirs, "data.validation_split", size)
        else:
            draft.skip(theirs, "data.validation_split is a share, below 1")


def set_trackers(draft: Draft, *names: str) -> None:
    """Set those trackers that qed has."""
    theirs = next((name for name in names if draft.options.has(name)), "")
    draft.options.read.update(names)
    if not theirs:
        return
    chosen = draft.options.get(theirs)
    chosen = [one for one in (chosen if isinstance(chosen, list) else [chosen]) if one not in ("none", "console")]
    known = plugins.list_leaves("trackers")
    found, lost = [one for one in chosen if one in known], [str(one) for one in chosen if one not in known]
    note = f"without {', '.join(lost)}: qed has {', '.join(known)}" if lost else ""
    if found:
        draft.set(theirs, "run.trackers", found, note)
    elif lost:
        draft.skip(theirs, note)


def set_chat_prompt(draft: Draft, theirs: str) -> None:
    """Set the prompt, if it is not set yet, to the model's chat template; qed's own default depends on the task."""
    if "data.prompt" not in draft.values:
        note = "without the files' system messages, see --data.system-prompt; question_only has no template"
        draft.set(theirs, "data.prompt", "chat", note)


def set_tasks(draft: Draft, theirs: str, names: Any, ours: str = "data.tasks") -> None:
    """Set the tasks to the data sets that qed knows by name and to files that exist."""
    found: list[str] = []
    lost: list[str] = []
    for name in names if isinstance(names, list) else [names]:
        task = KNOWN_TASKS.get(str(name).lower(), str(name))
        is_file = task.startswith((".", "/")) or task.endswith(DATA_SUFFIXES)
        if not _is_task(task) and task.count("/") == 1 and not is_file:
            task = f"{HUB}:{task}"
        (found if _is_task(task) else lost).append(task)
    if found:
        draft.set(theirs, ours, found, "" if not lost else f"without {', '.join(lost)}: there is no such file or task")
    if lost and not found:
        option = f"--{ours}" if ours != "data.tasks" else "--tasks"
        draft.skip(theirs, f"there is no such file or task here: set it by {option}")
        files = all(parse_task(name).leaf == "files" for name in lost)
        draft.arguments += [option, ",".join(lost) if files else "FILE"]


def read_datasets(options: Options, name: str) -> dict[str, Any]:
    """Return one setting of all entries of `datasets`, by its full names; they count as read."""
    found = {key: options.get(key) for key in options.given if re.fullmatch(rf"datasets\.\d+\.{name}", key)}
    return {key: value for key, value in found.items() if value is not None}


def _is_task(name: str) -> bool:
    task = parse_task(name)
    try:
        plugins.check_leaf("tasks", task.leaf)
    except UsageError:
        return False
    return not task.path or Path(task.path).exists() or task.leaf == HUB


# Data sets on the Hub that are tasks of qed.
KNOWN_TASKS = {
    "openai/gsm8k": "gsm8k",
    "gsm8k": "gsm8k",
    "open-r1/openr1-math-220k": "openr1",
    "elliott/openr1-math-46k-8192": "openr1",
    "bytedtsinghua-sia/dapo-math-17k": "dapo17k",
    "open-r1/dapo-math-17k-processed": "dapo17k",
    "agentica-org/deepscaler-preview-dataset": "deepscaler",
    "nvidia/openmathreasoning": "openmathreasoning",
    "unsloth/openmathreasoning-mini": "openmathreasoning",
    "huggingfaceh4/math-500": "math:test500",
    "huggingfaceh4/aime_2024": "aime",
    "hendrycks/competition_math": "competition_math",
}


def count_processes(options: Any) -> int:
    """Return the number of training processes."""
    return max(1, int(options.number("num_processes", "nproc_per_node", "NPROC_PER_NODE", default=1)))


def count_rollouts(options: Any) -> int:
    """Return the rows of an optimizer step: per device x accumulation x processes.

    Raises:
        UsageError: there would be no rows.
    """
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    for name in names:
        if options.number(name) < 1:
            raise UsageError(f"{name} is {options.get(name)}; it must be at least 1. Set it after --, as in {name}=8.")
    return int(math.prod(map(options.number, names)) * count_processes(options))


def explain_updates(updates_per_step: float) -> str:
    """Return a note on how many optimizer steps become one of qed's steps."""
    return "" if updates_per_step == 1 else f"{updates_per_step:g} optimizer steps are one step"


def divide(total: int, part: int) -> tuple[int, str]:
    """Return how many parts a total has, and a note if it does not divide evenly."""
    count = max(1, math.ceil(total / max(1, part)))
    return count, "" if total % max(1, part) == 0 else f"{total} is not a multiple of {part}: rounded up"
