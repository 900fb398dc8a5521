"""All settings of a run, as frozen dataclasses; a YAML file is a saved command line.

The string under a field documents it and becomes its help. Fields marked with `shelf` name a file on that shelf.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from qed.errors import UsageError


def shelf_field(shelf: str, default: str | tuple[str, ...]) -> Any:
    """A field that holds the name of a leaf on a shelf, or several."""
    return field(default=default, metadata={"shelf": shelf})


def require(condition: bool, message: str) -> None:
    """Raise a UsageError with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


@dataclass(frozen=True)
class ModelSettings:
    """Which model, on which device, in which precision."""

    name: str = "new:tiny"
    """A Hugging Face folder or hub name; new:tiny, … for a fresh model; sft:CONFIG for what qed sft CONFIG makes."""
    revision: str = ""
    """The hub revision to load; empty for the newest."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; weights and optimizer state are kept in float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    lora_rank: int = 0
    """Train low-rank adapters of this rank in place of the weights; 0 trains the weights."""
    lora_alpha: int = 0
    """The adapters' output is scaled by lora_alpha / lora_rank; 0 takes twice the rank."""
    lora_targets: tuple[str, ...] = ()
    """The linear layers to adapt, such as q_proj,v_proj, and experts for those of a mixture; empty: all but experts."""
    quantization: Literal["none", "nf4"] = "none"
    """nf4 holds the weights under LoRA in 4 bits (QLoRA, by bitsandbytes), on CUDA devices alone."""

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(self.lora_rank >= 0, "model.lora_rank must not be negative.")
        require(self.lora_alpha >= 0, "model.lora_alpha must not be negative.")
        fits = self.quantization == "none" or (self.lora_rank > 0 and not self.name.startswith("new:"))
        require(fits, "model.quantization needs model.lora_rank above 0, and a model.name other than new:….")


@dataclass(frozen=True)
class DataSettings:
    """What is trained on, how it is asked and how answers are judged."""

    tasks: tuple[str, ...] = ("arithmetic",)
    """Training problems: NAME[:split][@PATH], or a data file; several are joined."""
    map: tuple[str, ...] = ()
    """Renamed columns of data files, for example question=problem."""
    revisions: tuple[str, ...] = ()
    """Commits of the hub to load tasks from, for example gsm8k=740312a; else the pinned ones."""
    unique_examples: int = 0
    """Train on so many different problems, drawn by the seed; 0 takes all."""
    correct_only: bool = False
    """Train only on problems whose worked solution ends in the right answer, as the grader says."""
    max_prompt_percentile: float = 100.0
    """Leave out problems whose prompt is longer than this percentile of all prompts, in tokens."""
    window: int = 0
    """SFT alone: train on windows of so many tokens of all demonstrations written one after the other; 0 does not."""
    validation_split: float = 0.0
    """The share of the training problems that is held back to choose the best checkpoint by."""
    prompt: str = shelf_field("prompts", "auto")
    """A prompt by name; auto takes the task's own."""
    prompt_options: tuple[str, ...] = ()
    """Settings of the prompt, for example working_out.reasoning_start=<think>; a reward of its name has them too."""
    reward: tuple[str, ...] = shelf_field("rewards", ("auto",))
    """NAME or WEIGHT*NAME, several are added up: a reward by name, or a .py file; auto stands for the prompt's own."""
    reward_options: tuple[str, ...] = ()
    """Settings of a reward, for example working_out.preset=notebook."""
    reward_workers: int = 0
    """Processes in which your own rewards run; 0 takes one for each core, at most eight."""
    reward_seconds: float = 10.0
    """Processor time that your own reward may take for one answer; six times as much by the clock."""
    reward_memory_gb: float = 4.0
    """Memory that a process of your own reward may take beyond what loading it took."""

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(self.unique_examples >= 0, "data.unique_examples must not be negative.")
        require(0 < self.max_prompt_percentile <= 100, "data.max_prompt_percentile must lie in (0, 100].")
        require(self.window >= 0, "data.window must not be negative.")
        require(0 <= self.validation_split < 1, "data.validation_split must lie in [0, 1).")
        require(bool(self.tasks), "data.tasks must name a task or a data file.")
        require(bool(self.reward), "data.reward must name a reward.")
        require(self.reward_workers >= 0, "data.reward_workers must not be negative.")
        require(self.reward_seconds > 0, "data.reward_seconds must be above 0.")
        require(self.reward_memory_gb > 0, "data.reward_memory_gb must be above 0.")


@dataclass(frozen=True)
class SamplingSettings:
    """How answers are sampled during training."""

    problems_per_step: int = 16
    """Problems asked in each step."""
    group_size: int = 8
    """Answers sampled for each problem."""
    temperature: float = 1.0
    """Divides the logits, in sampling and in every log-prob."""
    max_tokens: int = 256
    """An answer's longest length in tokens, end token included."""
    rows_per_batch: int = 128
    """Answers generated side by side; bounds the memory of the sampler."""
    sampler: str = shelf_field("samplers", "native")
    """What generates: native is the fast one, hf the reference, which takes any model."""

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(self.problems_per_step >= 1, "sampling.problems_per_step must be at least 1.")
        require(self.group_size >= 1, "sampling.group_size must be at least 1.")
        require(self.temperature > 0, "sampling.temperature must be above 0; evaluation is greedy by itself.")
        require(self.max_tokens >= 1, "sampling.max_tokens must be at least 1.")
        require(self.rows_per_batch >= 1, "sampling.rows_per_batch must be at least 1.")


@dataclass(frozen=True)
class LearnerSettings:
    """The optimizer and its schedule."""

    steps: int = 200
    """Steps of the phase."""
    batch_size: int = 0
    """Rollouts for each optimizer step, at most; a step's rollouts are split evenly, and 0 takes them all at once."""
    passes: int = 1
    """Passes over the rollouts of an online step; each pass makes its own optimizer steps."""
    tokens_per_microbatch: int = 16384
    """Tokens computed at once, padding included; bounds memory, never changes a gradient."""
    packing: bool = True
    """Compute rows side by side without padding, and a prompt once for all of its answers; never another gradient."""
    compile: bool = False
    """Compile the model's body (torch.compile): faster on CUDA devices after minutes of compiling."""
    optimizer: Literal["adamw", "adamw_offload", "adamw8bit"] = "adamw"
    """AdamW; with its moments in the host's memory, the same updates; or with moments of 8 bits, by bitsandbytes."""
    lr: float = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up: constant, or down to zero."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly to its peak."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient; 0 does not clip."""
    skip_norm: float = 0.0
    """Pass over an update whose gradient's norm is above this; 0 takes any. Not finite: run.on_non_finite."""

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(self.steps >= 0, "learner.steps must not be negative.")
        require(self.batch_size >= 0, "learner.batch_size must not be negative.")
        require(self.passes >= 1, "learner.passes must be at least 1.")
        require(self.tokens_per_microbatch >= 1, "learner.tokens_per_microbatch must be at least 1.")
        require(0 <= self.lr < float("inf"), "learner.lr must be a finite number, 0 or more.")
        require(self.warmup_steps >= 0, "learner.warmup_steps must not be negative.")
        require(all(0 <= beta < 1 for beta in self.betas), "learner.betas must both lie in [0, 1).")
        require(self.weight_decay >= 0, "learner.weight_decay must not be negative.")
        require(self.clip_norm >= 0, "learner.clip_norm must not be negative.")
        require(self.skip_norm >= 0, "learner.skip_norm must not be negative.")


@dataclass(frozen=True)
class EvaluationSettings:
    """What is measured, on problems that are never trained on."""

    tasks: tuple[str, ...] = ()
    """Held-out problems; empty takes the test split of the training tasks, or holds a part of them out."""
    problems: int = 200
    """How many problems of each task, spread over it."""
    every: int = 0
    """Evaluate every so many steps, on the validation part where there is one; 0 only at the start and the end."""
    samples: int = 1
    """Sampled answers to each problem beside the greedy one, at the training temperature."""

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(self.problems >= 1, "evaluation.problems must be at least 1.")
        require(self.every >= 0, "evaluation.every must not be negative.")
        require(self.samples >= 0, "evaluation.samples must not be negative.")


@dataclass(frozen=True)
class RunSettings:
    """Where the run is written and what makes it repeatable."""

    out: str = ""
    """The run's folder; empty makes a fresh one under runs/."""
    seed: int = 0
    """Every random draw of the run follows from it."""
    threads: int = 0
    """CPU threads of the numeric kernels; 0 takes the physical cores. Recorded, and reused on resume."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Of float32 products: exact, or by TF32 (high) or bfloat16 (medium) where that is faster; reused on resume."""
    save_every: int = 0
    """Write a checkpoint after every so many steps; 0 only at the end of a phase."""
    keep_last: int = 0
    """Keep only so many of the newest checkpoints, beside the best and those at a phase's end; 0 keeps all."""
    keep_best: int = 1
    """With run.keep_last, keep so many checkpoints after which the validation part was answered best."""
    save_rollouts: bool = True
    """Keep every rollout on disk, compressed."""
    on_no_signal: Literal["stop", "warn"] = "stop"
    """What a run does at its end when no step had a gradient: fail with exit code 5, or warn, as a control arm may."""
    on_non_finite: str = "stop"
    """Where an update is not finite: stop with exit code 4, or skip:N, at most N updates one after another."""
    preflight: bool = True
    """Before the first step, sample and grade a few answers, and refuse what cannot work."""
    watchdog: float = 1800.0
    """Seconds without any progress after which a run ends with exit code 75 and its stacks in the log; 0 never."""
    log_every: int = 0
    """Print a plain line every so many steps where the output is not a terminal; 0 prints about twenty a phase."""

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(self.threads >= 0, "run.threads must not be negative.")
        require(self.save_every >= 0, "run.save_every must not be negative.")
        require(self.keep_last >= 0, "run.keep_last must not be negative.")
        require(self.keep_best >= 1, "run.keep_best must be at least 1: the best checkpoint is always kept.")
        require(self.log_every >= 0, "run.log_every must not be negative.")
        require(0 <= self.watchdog < float("inf"), "run.watchdog must be a finite number, 0 or more.")
        meant = self.on_non_finite == "stop" or self.non_finite_skips > 0
        require(meant, f"run.on_non_finite is stop, or skip:N with N above 0, not '{self.on_non_finite}'.")

    @property
    def non_finite_skips(self) -> int:
        """How many updates that are not finite may follow each other."""
        word, _, count = self.on_non_finite.partition(":")
        return int(count) if word == "skip" and count.isdecimal() and count.isascii() else 0
