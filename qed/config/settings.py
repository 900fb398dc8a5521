"""Define all settings of a run as frozen dataclasses; YAML files and the command line set the same fields.

The string under a field is its help text. A field marked with `shelf` holds the name of a leaf on that shelf.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from qed.errors import UsageError

LEAST_TEMPERATURE = 1e-6  # logits that are divided by less leave the range of float32


def shelf_field(shelf: str, default: str | tuple[str, ...]) -> Any:
    """Declare a field that holds the name of a leaf on a shelf, or several names."""
    return field(default=default, metadata={"shelf": shelf})


def can_sample_at(temperature: float) -> bool:
    """Return whether a temperature can be sampled with, and is not greedy."""
    return LEAST_TEMPERATURE <= temperature < math.inf


def is_temperature(value: float) -> bool:
    """Return whether a temperature can be sampled with; 0 is greedy."""
    return value == 0 or can_sample_at(value)


def require(condition: bool, message: str) -> None:
    """Raise a UsageError with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


@dataclass(frozen=True)
class ModelSettings:
    """The model, its device and its precision."""

    name: str = "new:tiny"
    """Hugging Face folder or hub name; new:tiny, … is a new model; sft:CONFIG is first trained by qed sft CONFIG."""
    revision: str = ""
    """Hub revision to load; empty loads the newest one."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the computation; float64 also keeps the weights in float64, for tests and for checking results."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights; bfloat16 halves their memory, with float32 masters of trained ones in the optimizer."""
    reference_dtype: Literal["same", "float32", "bfloat16"] = "same"
    """Precision of a separate reference model's weights; same uses the policy's."""
    reference_offload: bool = False
    """Keep a separate reference model in CPU memory while it does not score."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: saves memory, but takes about a third more time."""
    lora_rank: int = 0
    """Rank of the LoRA adapters to train; 0 trains all weights instead."""
    lora_alpha: int = 0
    """LoRA alpha: the adapters' output is scaled by lora_alpha / lora_rank; 0 uses twice the rank."""
    lora_targets: tuple[str, ...] = ()
    """Linear layers to adapt, such as q_proj,v_proj; experts adapts those of an MoE; empty adapts all but experts."""
    quantization: Literal["none", "nf4"] = "none"
    """nf4 stores the base weights in 4 bits (QLoRA, by bitsandbytes); needs LoRA and a CUDA device."""
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = "auto"
    """Attention kernels of transformers' forward pass; packed rows and the native sampler use their own."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.lora_rank >= 0, "model.lora_rank must not be negative.")
        require(self.lora_alpha >= 0, "model.lora_alpha must not be negative.")
        valid = self.quantization == "none" or (self.lora_rank > 0 and not self.name.startswith("new:"))
        require(valid, "model.quantization needs model.lora_rank above 0, and a model.name other than new:….")
        exact = self.precision != "float64" or self.quantization == "none"
        require(exact, "model.precision float64 keeps all weights in float64: take model.quantization=none.")
        for name, dtype in (("dtype", self.dtype), ("reference_dtype", self.reference_dtype)):
            fits = dtype != "bfloat16" or self.precision == "bfloat16"
            require(fits, f"model.{name} bfloat16 needs model.precision=bfloat16, the precision of the computation.")


@dataclass(frozen=True)
class DataSettings:
    """The training problems, their prompt and their reward."""

    tasks: tuple[str, ...] = ("arithmetic",)
    """Training tasks: NAME[:split][@PATH], or a data file; several are concatenated. ?OURS=THEIRS renames columns."""
    map: tuple[str, ...] = ()
    """Columns of data files to rename, for example question=problem; in one file: FILE?question=problem&answer=gold."""
    revisions: tuple[str, ...] = ()
    """Hub commits to load tasks from, for example gsm8k=740312a; other tasks use their pinned commits."""
    unique_examples: int = 0
    """Number of different problems to train on, drawn by the seed; 0 uses all."""
    correct_only: bool = False
    """Train only on problems whose worked solution ends in the correct answer, according to the grader."""
    max_prompt_percentile: float = 100.0
    """Drop problems whose prompt is longer, in tokens, than this percentile of all prompts."""
    max_prompt_tokens: int = 0
    """Longest prompt to train on, in tokens; with 0 only the model's window limits it."""
    truncation: Literal["drop", "left", "right"] = "drop"
    """Prompts above data.max_prompt_tokens: drop the problem, or cut tokens off the left or right of the question."""
    window: int = 0
    """SFT only: concatenate all demonstrations and train on windows of this many tokens; 0 keeps them separate."""
    validation_split: float = 0.0
    """Fraction of the training problems to hold out as a validation split, which selects the best checkpoint."""
    held_out_words: int = 0
    """Also drop training problems that share N consecutive words with a held-out question; 13 is usual, 0 is off."""
    prompt: str = shelf_field("prompts", "auto")
    """Name of the prompt; auto uses the task's default."""
    prompt_options: tuple[str, ...] = ()
    """Options of the prompt, for example working_out.reasoning_start=<think>; a reward of that name gets them too."""
    system_prompt: str = ""
    """System message instead of the prompt's own; for prompts that use the model's chat template."""
    chat_template_options: tuple[str, ...] = ()
    """Variables of the model's chat template, such as enable_thinking=false; qed refuses unknown ones."""
    environment: str = shelf_field("environments", "single")
    """What replies to the policy after each turn, such as a tool: the name of an environment, or a .py file."""
    environment_options: tuple[str, ...] = ()
    """Options of the environment, for example retry.max_turns=3."""
    reward: tuple[str, ...] = shelf_field("rewards", ("auto",))
    """NAME or WEIGHT*NAME, several are summed: the name of a reward, or a .py file; auto uses the prompt's default."""
    reward_options: tuple[str, ...] = ()
    """Options of a reward, for example working_out.preset=notebook."""
    reward_workers: int = 0
    """Worker processes for your own rewards; 0 starts one per core, at most eight."""
    reward_seconds: float = 10.0
    """CPU seconds that your own reward may take per answer; the wall-clock limit is six times as long."""
    reward_memory_gb: float = 4.0
    """Memory limit of each worker process for your own rewards, in GiB beyond what loading them takes."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.unique_examples >= 0, "data.unique_examples must not be negative.")
        require(0 < self.max_prompt_percentile <= 100, "data.max_prompt_percentile must lie in (0, 100].")
        require(self.max_prompt_tokens >= 0, "data.max_prompt_tokens must not be negative.")
        cut = self.truncation == "drop" or self.max_prompt_tokens > 0
        require(cut, "data.truncation needs data.max_prompt_tokens, the number of tokens that are kept.")
        require(self.window >= 0, "data.window must not be negative.")
        require(0 <= self.validation_split < 1, "data.validation_split must lie in [0, 1).")
        require(self.held_out_words >= 0, "data.held_out_words must not be negative.")
        require(bool(self.tasks), "data.tasks must name a task or a data file.")
        require(bool(self.reward), "data.reward must name a reward.")
        require(self.reward_workers >= 0, "data.reward_workers must not be negative.")
        require(0 < self.reward_seconds < math.inf, "data.reward_seconds must be a finite number above 0.")
        require(0 < self.reward_memory_gb <= 2**20, "data.reward_memory_gb must be above 0, and at most 1048576.")


@dataclass(frozen=True)
class LearnerSettings:
    """The optimizer and its schedule."""

    steps: int = 200
    """Number of training steps in the phase."""
    epochs: float = 0.0
    """Passes over the training data, instead of learner.steps; the run prints at its start how many steps that is."""
    batch_size: int = 0
    """Maximum rollouts per optimizer step; qed splits a step's rollouts evenly. 0 uses all of them in one update."""
    passes: int = 1
    """Passes over the rollouts of an online step, each with its own optimizer steps."""
    tokens_per_microbatch: int = 16384
    """Maximum tokens per forward pass, padding included; limits memory and does not change the gradient."""
    packing: bool = True
    """Pack sequences without padding, and compute each prompt once for all its answers; gradients do not change."""
    compile: bool = False
    """Compile the model's layers with torch.compile: faster on CUDA devices, after minutes of compilation."""
    optimizer: Literal["adamw", "adamw_offload", "adamw8bit"] = "adamw"
    """adamw; adamw_offload keeps AdamW's state in CPU memory, with the same updates; adamw8bit uses 8-bit state."""
    offload_for_sampling: bool = False
    """Keep the optimizer's state in CPU memory during sampling, which leaves the sampler more memory."""
    lr: float = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate schedule after the warm-up; linear and cosine decay to zero."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly to its peak."""
    warmup_ratio: float = 0.0
    """Warm-up as a share of all steps, rounded up, instead of learner.warmup_steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, applied to matrices only."""
    clip_norm: float = 1.0
    """Clip the gradient to this global norm; 0 turns clipping off."""
    skip_norm: float = 0.0
    """Skip an update whose gradient norm exceeds this; 0 skips none. For non-finite updates see run.on_non_finite."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.steps >= 0, "learner.steps must not be negative.")
        require(0 <= self.epochs < float("inf"), "learner.epochs must be a finite number, 0 or more.")
        require(not (self.steps and self.epochs), "learner.steps and learner.epochs exclude each other: give one.")
        require(self.batch_size >= 0, "learner.batch_size must not be negative.")
        require(self.passes >= 1, "learner.passes must be at least 1.")
        require(self.tokens_per_microbatch >= 1, "learner.tokens_per_microbatch must be at least 1.")
        require(0 <= self.lr < float("inf"), "learner.lr must be a finite number, 0 or more.")
        require(self.warmup_steps >= 0, "learner.warmup_steps must not be negative.")
        require(0 <= self.warmup_ratio <= 1, "learner.warmup_ratio must lie in [0, 1].")
        both = self.warmup_steps and self.warmup_ratio
        require(not both, "learner.warmup_steps and learner.warmup_ratio exclude each other: give one.")
        require(all(0 <= beta < 1 for beta in self.betas), "learner.betas must both lie in [0, 1).")
        require(0 <= self.weight_decay < math.inf, "learner.weight_decay must be a finite number, 0 or more.")
        require(self.clip_norm >= 0, "learner.clip_norm must not be negative.")
        require(self.skip_norm >= 0, "learner.skip_norm must not be negative.")

    def count_warmup_steps(self) -> int:
        """Return the number of steps over which the learning rate rises."""
        return self.warmup_steps or math.ceil(self.warmup_ratio * self.steps)


@dataclass(frozen=True)
class RunSettings:
    """The run's folder, seed, checkpoints and safety checks."""

    out: str = ""
    """The run's folder; empty creates a new one under runs/."""
    seed: int = 0
    """Random seed of the whole run."""
    threads: int = 0
    """CPU threads for PyTorch; 0 uses all physical cores. The run records the number and reuses it on resume."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """float32 matrix products: exact (highest), or TF32 (high) or bfloat16 (medium) if faster; reused on resume."""
    save_every: int = 0
    """Save a checkpoint every N steps; 0 saves only at the end of a phase."""
    keep_last: int = 0
    """Number of newest checkpoints to keep, besides the best ones and those at the end of a phase; 0 keeps all."""
    keep_best: int = 1
    """With run.keep_last: number of checkpoints with the best validation accuracy to keep."""
    save_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of a checkpoint's hf/; weights of higher precision are also saved exactly, for resuming."""
    save_async: bool = False
    """Write checkpoints in the background while training continues, from a copy of the state in host memory."""
    save_rollouts: bool = True
    """Save every rollout, compressed."""
    save_token_stats: int = 4
    """Number of answers per online step whose per-token log-probs and entropies (the learner's) are saved; 0: none."""
    save_top_logps: int = 0
    """With run.save_token_stats: number of most likely tokens to save at each position of those answers, at most 20."""
    on_no_signal: Literal["stop", "warn"] = "stop"
    """If no step had a gradient: fail at the end with exit code 5, or only warn, for example in a control run."""
    on_non_finite: str = "stop"
    """On a non-finite update: stop exits with code 4; skip:N skips at most N such updates in a row."""
    preflight: bool = True
    """Sample and grade a few answers before the first step, and stop if training cannot work."""
    watchdog: float = 1800.0
    """Seconds without progress after which a run logs its stack traces and exits with code 75; 0 turns this off."""
    log_every: int = 0
    """Print a line every N steps if the output is not a terminal; 0: about twenty lines per phase."""
    profile: str = ""
    """Write a trace and the memory use of some steps to profile/: steps=3:5 for steps 3 to 5; empty writes none."""
    trackers: tuple[str, ...] = shelf_field("trackers", ())
    """Trackers that show the run while it trains: tensorboard, wandb, trackio; each needs the extra of that name."""
    project: str = ""
    """Project in the trackers; empty uses qed, or in W&B WANDB_PROJECT if it is set."""
    entity: str = ""
    """User or team that owns the project in W&B; empty uses your own."""
    group: str = ""
    """Group of runs in the trackers."""
    tags: tuple[str, ...] = ()
    """Tags of the run in the trackers."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(0 <= self.threads <= 4096, "run.threads must lie between 0 and 4096.")
        require(self.save_every >= 0, "run.save_every must not be negative.")
        require(self.save_token_stats >= 0, "run.save_token_stats must not be negative.")
        require(0 <= self.save_top_logps <= 20, "run.save_top_logps must lie between 0 and 20.")
        require(self.keep_last >= 0, "run.keep_last must not be negative.")
        require(self.keep_best >= 1, "run.keep_best must be at least 1: the best checkpoint is always kept.")
        require(self.log_every >= 0, "run.log_every must not be negative.")
        require(0 <= self.watchdog < float("inf"), "run.watchdog must be a finite number, 0 or more.")
        stems = [PurePath(name).stem for name in self.trackers]
        require(
            len(set(stems)) == len(stems),
            "run.trackers names a tracker twice, or two files of one name; each tracker has a folder of its name.",
        )
        valid = self.on_non_finite == "stop" or self.non_finite_skips > 0
        steps = self.profile_steps
        fits = not self.profile or (steps is not None and 1 <= steps[0] <= steps[1])
        require(fits, f"run.profile must be steps=FIRST:LAST, such as steps=3:5, not '{self.profile}'.")
        require(valid, f"run.on_non_finite must be stop, or skip:N with N above 0, not '{self.on_non_finite}'.")

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and the last step to profile; None without any."""
        found = re.fullmatch(r"steps=([0-9]{1,9}):([0-9]{1,9})", self.profile)
        return (int(found[1]), int(found[2])) if found else None

    @property
    def non_finite_skips(self) -> int:
        """The number of consecutive non-finite updates that may be skipped; 0 stops at the first."""
        word, _, count = self.on_non_finite.partition(":")
        return int(count) if word == "skip" and count.isdecimal() and count.isascii() else 0
