"""What every recipe needs before its first step: the run's folder, model, tokenizer, problems, prompt, reward and
sampler."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from qed import checkpoints, model, plugins, tasks
from qed.configuration.changes import changes
from qed.configuration.values import dump
from qed.console import Console
from qed.draws import seed_of, shuffled
from qed.errors import DataError, QedError, UsageError
from qed.guards.signals import Stop, watched
from qed.prompts.base import Template
from qed.prompts.base import make as make_template
from qed.rollouts import Reward
from qed.runs import Launch, Run, open_folder, read_json, read_lines
from qed.samplers.base import Sampler
from qed.samplers.hf import HFSampler
from qed.settings import DataSettings, EvaluationSettings, PipelineSettings, Settings
from qed.types import Problem

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "peft", "numpy")
HELD_OUT_SHARE = 10  # one in so many problems, where the training data brings no test split


@dataclass
class Setup:
    """Everything that the steps of a run work with."""

    run: Run
    console: Console
    stop: Stop
    launch: Launch
    device: torch.device
    model: Any
    tokenizer: Any
    template: Template
    reward: Reward
    problems: list[Problem]
    benches: dict[str, list[Problem]]
    sampler: Sampler
    resumed: Path | None  # the checkpoint that the run goes on from

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The state to go on from; a run that begins is at step 0."""
        return checkpoints.read_state(self.resumed) if self.resumed else ({}, {"step": 0})


@contextmanager
def opened(settings: Settings | PipelineSettings, launch: Launch, name: str) -> Iterator[Setup]:
    """Open a run's folder and prepare everything in it; failures leave their traceback in the run's log.

    Args:
        settings: of the run.
        launch: how it was started.
        name: the recipe's name, for a fresh folder.
    """
    model.check_name(settings.model.name)
    device = model.pick_device(settings.model.device)
    label = settings.model.name.rstrip("/").split("/")[-1].replace(":", "-")
    folder, aside = open_folder(settings.run.out, f"{name}--{label}", launch)
    console = Console(launch.json, settings.run.log_every)
    threads = torch.get_num_threads()
    with watched() as stop, Run(folder) as run:
        try:
            with _preparing(folder, aside, launch):
                resumed = _resumed(settings, run) if launch.resume else None
                _set_threads(settings, run, launch)
                _write_settings(settings, run, launch, device)
                setup = _prepared(settings, run, console, stop, launch, device, resumed)
            yield setup
        finally:
            console.end_phase()
            torch.set_num_threads(threads)  # the next run of this process begins as this one did


@contextmanager
def _preparing(folder: Path, aside: Path | None, launch: Launch) -> Iterator[None]:
    """A mistake found before the first step leaves the folder as it was; the run it replaces goes once all is
    prepared."""
    try:
        yield
    except (QedError, KeyboardInterrupt):
        if not launch.resume:
            shutil.rmtree(folder, ignore_errors=True)
            if aside is not None:
                aside.rename(folder)
        raise
    if aside is not None:
        shutil.rmtree(aside)


def _resumed(settings: Settings | PipelineSettings, run: Run) -> Path | None:
    """The checkpoint to go on from, once it is sure that this is the same run."""
    told, refused = changes(run.folder / "settings.yaml", settings)
    if refused:
        raise UsageError(
            f"{run.folder} cannot be resumed with other settings: {'; '.join(refused)}. Give those of its "
            "settings.yaml, or "
            "begin another run."
        )
    checkpoints.tidy(run)
    found = checkpoints.newest_whole(run)
    if found is None and read_lines(run.folder / "metrics.jsonl"):
        raise UsageError(
            f"{run.folder} has no checkpoint to go on from, and resuming would erase what it recorded. Begin "
            "again with "
            "--overwrite, and set run.save_every next time."
        )
    run.event("resumed", attempt=run.attempt, changed=told)
    return found


def _prepared(
    settings: Settings | PipelineSettings,
    run: Run,
    console: Console,
    stop: Stop,
    launch: Launch,
    device: torch.device,
    resumed: Path | None,
) -> Setup:
    problems, benches = load_problems(settings.data, settings.evaluation, settings.run.seed)
    leaf = prompt_leaf(settings.data)
    if resumed is not None:
        network, tokenizer = model.load(replace(settings.model, name=str(resumed / "hf"), revision=""))
        console.say(f"Going on from {resumed}.")
    elif model.is_new(settings.model.name):
        network, tokenizer = model.build(settings.model.name, training_text(problems, leaf), settings.run.seed)
    else:
        network, tokenizer = model.load(settings.model)
    run.truncate(checkpoints.read_state(resumed)[1]["step"] if resumed else 0)
    network = model.prepare(network, settings.model, device)
    ends = model.end_ids(network, tokenizer, leaf.CHAT)
    template = make_template(prompt_name(settings.data), tokenizer, ends)
    limit = model.window(network) - settings.sampling.max_tokens
    problems = fitting(problems, template, limit, "training", run, console)
    benches = {name: fitting(some, template, limit, name, run, console) for name, some in benches.items()}
    reward = plugins.load("rewards", leaf.REWARD if settings.data.reward == "auto" else settings.data.reward).reward
    sampler = HFSampler(network, tokenizer, ends, settings.sampling.rows_per_batch, model.precision(settings.model))
    run.event(
        "data",
        tasks=list(settings.data.tasks),
        prompt=prompt_name(settings.data),
        training=len(problems),
        fingerprint=f"{seed_of(*(problem.id for problem in problems)):016x}",
        held_out={name: len(some) for name, some in benches.items()},
    )
    parameters = sum(parameter.numel() for parameter in network.parameters())
    console.say(
        f"{run.folder}: {settings.model.name} ({parameters / 1e6:.2f} M parameters, {device.type}, "
        f"{torch.get_num_threads()} threads), {len(problems)} training problems, "
        + ", ".join(f"{len(some)} held out ({name})" for name, some in benches.items())
    )
    return Setup(
        run, console, stop, launch, device, network, tokenizer, template, reward, problems, benches, sampler, resumed
    )


def load_problems(
    data: DataSettings, evaluation: EvaluationSettings, seed: int
) -> tuple[list[Problem], dict[str, list[Problem]]]:
    """The training problems, and the held-out ones by the name of their task; no held-out question is trained on."""
    mapping = dict(_pair(entry) for entry in data.map)
    problems = [problem for name in data.tasks for problem in tasks.load(name, "train", mapping)]
    benches: dict[str, list[Problem]] = {}
    for name in evaluation.tasks or [name for name in data.tasks if tasks.has_test_split(name)]:
        label = tasks.parse(name).label
        if label in benches:
            raise UsageError(f"evaluation.tasks names two tasks that would both be called '{label}'; rename a file.")
        benches[label] = tasks.load(name, "test", mapping)[: evaluation.problems]
    if not benches:
        order = shuffled(len(problems), seed, "held out")
        count = min(evaluation.problems, len(problems) // HELD_OUT_SHARE)
        if count == 0:
            raise DataError(
                f"{', '.join(data.tasks)}: {len(problems)} problems are too few to hold some out for evaluation. "
                "Name held-out problems with --evaluation.tasks."
            )
        benches["held_out"] = [problems[index] for index in order[:count]]
    held_out = {problem.question for some in benches.values() for problem in some}
    return [problem for problem in problems if problem.question not in held_out], benches


def prompt_name(data: DataSettings) -> str:
    """The prompt of a run: the one named, or the one that its first task is meant to be asked with."""
    return tasks.suggested_prompt(data.tasks[0]) if data.prompt == "auto" else data.prompt


def prompt_leaf(data: DataSettings) -> Any:
    """The prompt's file on its shelf."""
    return plugins.load("prompts", prompt_name(data))


def training_text(problems: Sequence[Problem], leaf: Any) -> Iterator[str]:
    """The text that a fresh tokenizer is trained on: questions and demonstrations, and a plain prompt's own words."""
    for problem in problems:
        yield problem.question if leaf.CHAT else leaf.render(problem, None)
        yield problem.meta.get("completion") or leaf.demonstration(problem) or problem.answer


def fitting(
    problems: list[Problem], template: Template, limit: int, name: str, run: Run, console: Console
) -> list[Problem]:
    """The problems whose prompt leaves room for an answer in the model's window; the others are counted and said."""
    kept = [problem for problem in problems if len(template.tokens(template.prompt(problem))) <= limit]
    if len(kept) < len(problems):
        left_out = len(problems) - len(kept)
        run.event("prompts_too_long", problems=name, left_out=left_out, limit=limit)
        console.say(
            f"Left out {left_out} of {len(problems)} {name} problems: the prompt is longer than {limit} tokens."
        )
    if not kept:
        raise DataError(
            f"No {name} problem fits: with sampling.max_tokens the model's window leaves {limit} tokens for "
            "the prompt. "
            "Take a smaller sampling.max_tokens or a model with a longer window."
        )
    return kept


def _pair(entry: str) -> tuple[str, str]:
    ours, equals, theirs = entry.partition("=")
    if not equals or not theirs:
        raise UsageError(f"data.map wants OURS=THEIRS, for example question=problem, not '{entry}'.")
    return ours, theirs


def _set_threads(settings: Settings | PipelineSettings, run: Run, launch: Launch) -> None:
    before = read_json(run.folder / "env.json", {}).get("threads", 0) if launch.resume else 0
    torch.set_num_threads(settings.run.threads or before or torch.get_num_threads())
    if before not in (0, torch.get_num_threads()):
        run.event("threads_changed", before=before, now=torch.get_num_threads())


def _write_settings(settings: Settings | PipelineSettings, run: Run, launch: Launch, device: torch.device) -> None:
    # Without its folder, so that `qed METHOD settings.yaml` repeats the run in a fresh one.
    run.write("settings.yaml", dump(replace(settings, run=replace(settings.run, out=""))).encode())
    run.write("settings.origin.json", json.dumps(dict(launch.origins), indent=1).encode())
    run.write("env.json", json.dumps(environment(device), indent=1).encode())
    run.write("command.txt", (shlex.join(launch.command) + "\n").encode())


def _commit() -> str | None:
    """The commit of qed's own checkout, `-dirty` behind it where files differ; None where there is no checkout or no
    git."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return told.stdout.strip() or None


def environment(device: torch.device) -> dict[str, Any]:
    """What the run stands on: versions, commit, hardware."""
    return {
        "qed": version("qed"),
        "python": sys.version.split()[0],
        **{name: version(name) for name in LIBRARIES},
        "commit": _commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
