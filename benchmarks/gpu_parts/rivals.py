"""Other programs on the same work: `model.generate` of transformers, and TRL's GRPOTrainer, with and without vLLM."""

from __future__ import annotations

import random
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, TrainerCallback

from gpu_parts.ceilings import Work, wait_for
from gpu_parts.report import Report
from gpu_parts.shapes import Shape, make_model, make_tokenizer, save_model
from gpu_parts.step import draw_prompts

STEPS = 3


def measure_generate(shape: Shape, device: torch.device, name: str, report: Report, end: float) -> None:
    """Time `model.generate` with bfloat16 weights on the prompts of a step, each repeated for its group."""
    model = make_model(shape, device, checkpointing=False, dtype=torch.bfloat16).eval()
    ids = torch.tensor([prompt for prompt in draw_prompts(shape) for _ in range(shape.group)], device=device)
    options = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=shape.answer, min_new_tokens=shape.answer, pad_token_id=0
    )
    for attempt in ("first", "second"):
        wait_for(device)
        began = time.perf_counter()
        with torch.no_grad():
            found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=options)
        wait_for(device)
        seconds = time.perf_counter() - began
        assert found.shape[1] == shape.prompt + shape.answer
        report.add_part(name, sample_s=seconds, tokens_per_s=Work(shape).tokens / seconds, round=attempt)
        if time.time() + 1.5 * seconds > end:
            return


class _Clock(TrainerCallback):  # type: ignore[misc]
    """Records the seconds of every step, also in the report, so that they are kept if the part is cut off."""

    def __init__(self, device: torch.device, name: str, report: Report) -> None:
        self.device, self.began, self.seconds = device, 0.0, list[float]()
        self.name, self.report = name, report

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        wait_for(self.device)
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the seconds."""
        wait_for(self.device)
        self.seconds.append(time.perf_counter() - self.began)
        self.report.add_part(self.name, step_s=min(self.seconds), all_s=self.seconds)


def measure_trl(shape: Shape, device: torch.device, name: str, report: Report, end: float, vllm: bool = False) -> None:
    """Time steps of TRL's GRPOTrainer with the same model and the same numbers of prompts, answers and tokens.

    The prompts are texts with about the shape's length in tokens; answers have the full length. Micro-batches have
    the rows of eight groups, because TRL pads and keeps the logits of a micro-batch in memory, or of four groups with
    vLLM, which samples in TRL's process and needs its share of the memory.
    """
    for package in ("trl", "vllm") if vllm else ("trl",):
        if find_spec(package) is None:
            report.add_part(name, skipped=f"{package} is not installed")
            return
    from datasets import Dataset  # noqa: PLC0415 -- optional, like the next
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415

    source, rows = random.Random(0), shape.problems * shape.group
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    texts = [
        " ".join(f"{source.randrange(400)} plus" for _ in range(max(1, shape.prompt // 5)))
        for _ in range(shape.problems)
    ]
    at_once = min(rows, (4 if vllm else 8) * shape.group)
    with tempfile.TemporaryDirectory() as out:
        options = GRPOConfig(
            output_dir=out,
            max_steps=STEPS,
            bf16=device.type == "cuda",
            use_cpu=device.type == "cpu",
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=rows // at_once,
            num_generations=shape.group,
            max_completion_length=shape.answer,
            beta=0.0,
            temperature=1.0,
            top_k=0,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            **(_choose_vllm(shape) if vllm else {"generation_kwargs": {"min_new_tokens": shape.answer}}),
        )
        clock = _Clock(device, name, report)
        model = make_model(shape, device, checkpointing=False)
        if vllm:  # vLLM reads the weights' shapes from a folder, and gets the weights themselves from TRL
            model.config._name_or_path = model.name_or_path = str(save_model(shape, device, Path(out) / "model"))
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[lambda completions, **_: [source.random() for _ in completions]],
            args=options,
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts * STEPS]),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        report.add_part(name, at="train")
        trainer.train()
    report.add_part(name, prompt_tokens=len(tokenizer(texts[0])["input_ids"]))
    if device.type == "cuda":
        report.add_part(name, peak_gib=torch.cuda.max_memory_allocated(device) / 2**30)
    if vllm and time.time() < end:
        report.add_part(name, vllm_sample_s=_time_vllm(trainer.vllm_generation.llm, shape, device))


def _choose_vllm(shape: Shape) -> dict[str, Any]:
    """Return TRL's settings for vLLM in its process, with just enough memory for all answers at once."""
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.2,
        "vllm_max_model_length": 2 * (shape.prompt + shape.answer),
        "generation_kwargs": {"min_tokens": shape.answer, "ignore_eos": True},
    }


def _time_vllm(llm: Any, shape: Shape, device: torch.device) -> float:
    """Return the shortest of three times, in seconds, that vLLM takes to answer the prompts of qed's step."""
    from vllm import SamplingParams  # noqa: PLC0415 -- optional here

    prompts = [{"prompt_token_ids": list(prompt)} for prompt in draw_prompts(shape)]
    options = SamplingParams(
        n=shape.group, temperature=1.0, max_tokens=shape.answer, ignore_eos=True, logprobs=0, detokenize=False
    )
    seconds = []
    for _ in range(STEPS):
        llm.reset_prefix_cache()
        wait_for(device)
        began = time.perf_counter()
        found = llm.generate(prompts, options, use_tqdm=False)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
        assert sum(len(answer.token_ids) for one in found for answer in one.outputs) == Work(shape).tokens
    return min(seconds)
