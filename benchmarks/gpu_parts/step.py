"""The stages of a GRPO step of one shape, with qed's sampler and learner."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gpu_parts.ceilings import Work, wait_for
from gpu_parts.kernels import list_kernels
from gpu_parts.report import Figures, Report
from gpu_parts.shapes import LORA_RANK, Shape, describe, make_model, make_tokenizer
from qed.algorithms.grpo import Grpo
from qed.config.phases import Settings
from qed.config.sampling_settings import SamplingSettings
from qed.config.settings import DataSettings, LearnerSettings, ModelSettings
from qed.loops.device_defaults import Card, Surroundings, choose_device_defaults, estimate_peak, read_card
from qed.loops.device_fit import measure_shape
from qed.loops.memory import reserve_training
from qed.models.block_attention import list_faults
from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.sampling.native.sampler import NativeSampler
from qed.training.learner import Learner
from qed.types import Completion, Problem, Rollout

GIB = 2**30
NEVER = -1  # an end token id that is never sampled, so that every answer has full length
ROUNDS = 3
FIRST_SHARE = 0.4  # expected time of a second round, as a share of the first one's
PROFILED_TOKENS = 32  # tokens per answer, because every kernel of every step is an event
LEAST_TOKENS = 1024  # smallest micro-batch to try after running out of memory
STAGES = ("sample", "score", "update", "sync")
PRECISION = torch.bfloat16


class Step:
    """A policy with random weights, and the work of its steps.

    Args:
        shape: shape of the model and its work.
        device: device to compute on.
        settings: settings with the micro-batch size and activation checkpointing.
        note: called with what comes next, so that a part that is cut off shows where.
    """

    def __init__(self, shape: Shape, device: torch.device, settings: Settings, note: Callable[[str], None]) -> None:
        self.shape, self.device, self.note = shape, device, note
        note("build the model")
        self.model = make_model(shape, device, settings.model.gradient_checkpointing)
        sampling, learner = settings.sampling, settings.learner
        self.sampler = NativeSampler(self.model, make_tokenizer(), (NEVER,), sampling.rows_per_batch, PRECISION)
        self.learner = Learner(self.model, Grpo(), learner, length=shape.answer, precision=PRECISION)
        reserve_training(self.sampler, self.learner)
        self.prompts = draw_prompts(shape)
        self.rollouts: list[Rollout] = []  # of the last step
        self.seconds: dict[str, float] = {}

    def run(self, number: int) -> dict[str, float]:
        """Make a step, and return the learner's metrics; `seconds` has the time of each stage."""
        groups = self._time("sample", lambda: self.sample(number))
        self.rollouts = rollouts = make_rollouts(self.prompts, groups)
        self._time("score", lambda: self.learner.score(rollouts, old=True))
        stats: dict[str, float] = self._time("update", lambda: self.learner.update(rollouts, number))
        self._time("sync", lambda: self.sampler.load(self.learner.weights(), number + 1))
        return stats

    def sample(self, number: int, tokens: int | None = None) -> list[list[Completion]]:
        """Sample the answers of a step, with `tokens` tokens if given."""
        seeds = [
            [derive_seed("kit", number, row, one) for one in range(self.shape.group)]
            for row in range(len(self.prompts))
        ]
        return self.sampler.generate(self.prompts, seeds, Sampling(1.0, tokens or self.shape.answer))

    def _time(self, stage: str, work: Callable[[], Any]) -> Any:
        self.note(stage)
        wait_for(self.device)
        began = time.perf_counter()
        result = work()
        wait_for(self.device)
        self.seconds[stage] = time.perf_counter() - began
        return result


def draw_prompts(shape: Shape) -> list[tuple[int, ...]]:
    """Draw prompts of random tokens."""
    source = random.Random(0)
    return [tuple(source.randrange(4, 500) for _ in range(shape.prompt)) for _ in range(shape.problems)]


def make_rollouts(prompts: list[tuple[int, ...]], groups: list[list[Completion]]) -> list[Rollout]:
    """Make rollouts of sampled answers, each of which has a gradient."""
    return [
        Rollout(
            Problem(str(number), "", ""),
            prompt,
            completion.tokens,
            completion.logps,
            "",
            "length",
            index=index,
            advantage=1.0 if index % 2 else -1.0,
        )
        for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
        for index, completion in enumerate(group)
    ]


def make_settings(shape: Shape) -> Settings:
    """Return the settings of a run of this shape."""
    return Settings(
        method="grpo",
        algorithm=Grpo(),
        model=ModelSettings(
            "saved" if shape.lora else "new:tiny",
            precision="bfloat16",
            dtype="bfloat16" if shape.quantized else "float32",
            lora_rank=LORA_RANK if shape.lora else 0,
            quantization="nf4" if shape.quantized else "none",
        ),
        data=DataSettings(max_prompt_tokens=shape.prompt),
        sampling=SamplingSettings(problems_per_step=shape.problems, group_size=shape.group, max_tokens=shape.answer),
        learner=LearnerSettings(lr=1e-6),
    )


def measure_step(shape: Shape, device: torch.device, ceilings: Figures, name: str, report: Report, end: float) -> None:
    """Measure steps of a shape until the time is up, and write the figures after each step.

    The sizes are those of a run on this card without a measured fit; a micro-batch that runs out of memory
    is halved, and that is recorded.
    """
    torch.set_float32_matmul_precision("high")
    settings: Settings | None
    step: Step | None = None
    settings, estimated = fit_settings(shape, device)
    report.add_part(name, shape=describe(shape))
    while settings is not None:
        try:
            step = Step(shape, device, settings, lambda stage: report.add_part(name, at=stage))
            _run_rounds(step, settings, estimated, ceilings, name, report, end)
            return
        except torch.OutOfMemoryError:
            report.add_part(name, out_of_memory_at=describe_sizes(settings))
        step, settings = None, shrink_settings(settings)
        gc.collect()
        torch.cuda.empty_cache()
    report.add_part(name, failed="out of memory at every size")


def shrink_settings(settings: Settings) -> Settings | None:
    """Return settings that need less memory: activation checkpointing, then smaller sizes; None at the minimum."""
    if not settings.model.gradient_checkpointing:
        return replace(settings, model=replace(settings.model, gradient_checkpointing=True))
    tokens, rows = settings.learner.tokens_per_microbatch // 2, max(8, settings.sampling.rows_per_batch // 2)
    if tokens < LEAST_TOKENS:
        return None
    learner = replace(settings.learner, tokens_per_microbatch=tokens)
    return replace(settings, learner=learner, sampling=replace(settings.sampling, rows_per_batch=rows))


def describe_sizes(settings: Settings) -> Figures:
    """Return the settings that determine a step's memory, for JSON."""
    return {
        "tokens_per_microbatch": settings.learner.tokens_per_microbatch,
        "rows_per_batch": settings.sampling.rows_per_batch,
        "gradient_checkpointing": settings.model.gradient_checkpointing,
    }


def fit_settings(shape: Shape, device: torch.device) -> tuple[Settings, int]:
    """Return the settings with the sizes estimated for the device, and the estimated peak bytes."""
    settings = make_settings(shape)
    with torch.device("meta"):
        outline = measure_shape(make_model(shape, torch.device("meta"), checkpointing=False))
    card = read_card(device) or Card("", (9, 0), 4 * GIB, 4 * GIB)
    settings, _ = choose_device_defaults(settings, {}, Surroundings(card, outline, disk=0))
    assert isinstance(settings, Settings)
    return settings, estimate_peak(outline, settings, shape.prompt)


def _run_rounds(
    step: Step, settings: Settings, estimated: int, ceilings: Figures, name: str, report: Report, end: float
) -> None:
    cuda = step.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(step.device)
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS + 1):  # the first one is a warm-up, and counts only if there is no time for a second
        stats = step.run(number)
        # The first round compiles, so later ones take at most a part of its time.
        expected = sum(step.seconds.values()) * (1 if number else FIRST_SHARE)
        rounds.append(dict(step.seconds))
        best = {stage: statistics.median(one[stage] for one in rounds[1:] or rounds) for stage in STAGES}
        peak = torch.cuda.max_memory_allocated(step.device) / GIB if cuda else None
        report.add_part(
            name,
            rounds=len(rounds),
            seconds=best,
            first_round={stage: rounds[0][stage] for stage in STAGES},
            settings=describe_sizes(settings),
            memory={"peak_gib": peak, "estimated_gib": estimated / GIB},
            mismatch=stats.get("mismatch/logp"),
            grad_norm=stats["optim/grad_norm"],
            without_graphs=step.sampler.without_graphs,
            attention_faults=list_faults(),
            **_compare_with_ceilings(step.shape, best, stats, ceilings),
        )
        if time.time() + 1.5 * expected > end:
            break
    _time_decoding(step, report, name, end)
    _list_kernels(step, report, name, end)
    _measure_eager(step, report, name, end)
    report.add_part(name, at="done")


def _compare_with_ceilings(
    shape: Shape, seconds: dict[str, float], stats: dict[str, float], ceilings: Figures
) -> Figures:
    work = Work(shape)
    floor = work.find_sampling_floor(ceilings)
    flops = work.count_update() / seconds["update"]
    return {
        "sampler": {
            "tokens_per_s": work.tokens / seconds["sample"],
            "floor_s": floor,
            "share_of_floor": floor / seconds["sample"],
        },
        "learner": {
            "tokens_per_s": stats["train/computed_tokens"] / seconds["update"],
            "flop_per_s": flops,
            "share_of_peak": flops / ceilings["flop_per_s"],
            "score_share_of_peak": work.count_forward() / seconds["score"] / ceilings["flop_per_s"],
        },
    }


def _time_decoding(step: Step, report: Report, name: str, end: float) -> None:
    """Measure how long a decoding step takes as answers grow: seconds per step in each quarter of their tokens.

    The first quarter includes the prompts. Each length is sampled separately, if there is time for all of them.
    """
    if time.time() + 3 * step.seconds["sample"] > end:
        return
    lengths = [max(1, step.shape.answer * quarter // 4) for quarter in (1, 2, 3, 4)]
    seconds = []
    for length in lengths:
        wait_for(step.device)
        began = time.perf_counter()
        step.sample(0, length)
        wait_for(step.device)
        seconds.append(time.perf_counter() - began)
    found = report.read()["parts"][name]["sampler"]
    found["ms_by_quarter"] = [
        round(1e3 * (later - sooner) / max(1, longer - shorter), 3)
        for sooner, later, shorter, longer in zip([0.0, *seconds], seconds, [0, *lengths], lengths, strict=False)
    ]
    report.add_part(name, sampler=found)


def _list_kernels(step: Step, report: Report, name: str, end: float) -> None:
    """List the kernels of each stage, if there is time."""
    if time.time() + 5 * sum(step.seconds.values()) > end:
        return
    works: dict[str, Callable[[], Any]] = {
        "sample": lambda: step.sample(0, min(PROFILED_TOKENS, step.shape.answer)),
        "score": lambda: step.learner.score(step.rollouts, old=True),
        "update": lambda: step.learner.update(step.rollouts, 0),
    }
    step.note("list kernels")
    kernels: dict[str, Figures] = {}
    for stage, work in works.items():
        kernels[stage] = list_kernels(work, step.device)
        report.add_part(name, kernels=kernels)


def _measure_eager(step: Step, report: Report, name: str, end: float) -> None:
    """Sample once without CUDA graphs, if there is time."""
    known = step.seconds["sample"]
    if step.sampler.without_graphs or time.time() + 4 * known > end:
        return
    step.sampler.disable_graphs("measured without graphs")
    wait_for(step.device)
    began = time.perf_counter()
    step.sample(0)
    wait_for(step.device)
    found = report.read()["parts"][name]["sampler"]
    found["eager_tokens_per_s"] = Work(step.shape).tokens / (time.perf_counter() - began)
    report.add_part(name, sampler=found)
