"""One run of the laboratory in a separate process: training, measuring, and a summary in a small file."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laboratory_parts import tasks
from laboratory_parts.methods import LEARNER, MAX_TOKENS, METHODS, SHARED, TEACHER, list_learner_settings

Summary = dict[str, Any]
# Steps of the starts and of the teachers, which are trained once for all seeds.
START_STEPS, TEACHER_STEPS = {"withheld": 200, "little": 300, "foreign": 300}, 300
SAMPLES = 4  # answers per problem besides the greedy one
SFT: Mapping[str, Any] = {"learner.batch_size": 32, "learner.warmup_steps": 20, "learner.lr": 2e-3}


@dataclass(frozen=True)
class Job:
    """A run to make.

    Attributes:
        home: folder of the study, with the starts, the teachers and the summaries.
        task, method: their names; the methods `start` and `teacher` train the models that the others need.
        stage: what the run is for: `model`, `pilot`, `rate` (chooses the learning rate) or `final`.
        steps: steps of each phase.
        rate: learning rate.
        seed: seed of the run.
    """

    home: Path
    task: str
    method: str
    stage: str
    steps: Mapping[str, int] = field(default_factory=dict)
    rate: float = 0.0
    seed: int = 0

    @property
    def name(self) -> str:
        """Return a unique name of the run."""
        leaf = "".join(letter if letter.isalnum() else "-" for letter in self.method)
        steps = "+".join(map(str, self.steps.values()))
        return f"{self.task}/{leaf}-{self.describe()}/{self.stage}-{steps}-{self.rate:g}-{self.seed}"

    def describe(self) -> str:
        """Return a short hash of all settings that are not in the name, because other settings make another run."""
        method = next((each for each in METHODS if each.name == self.method), None)
        models = (START_STEPS, TEACHER_STEPS, SFT)
        return hashlib.sha256(repr((method, SHARED, LEARNER, models)).encode()).hexdigest()[:8]

    @property
    def file(self) -> Path:
        """Return the file of the run's summary, which exists exactly if the run is done."""
        return self.home / "summaries" / f"{self.name}.json"


def find_model(home: Path, task: str, name: str) -> Path:
    """Return the folder of a task's start or teacher."""
    return home / "models" / f"{task}-{name}"


def name_task(task: str, part: str) -> str:
    """Return qed's name for a part of a task."""
    return f"{tasks.__file__}:{task}-{part}"


def make(job: Job) -> Summary:
    """Make a run unless its summary exists, and return the summary."""
    if job.file.is_file():
        found: Summary = json.loads(job.file.read_text())
        return found
    from qed.errors import Diverged  # noqa: PLC0415 -- the planning process needs no torch

    folder = job.home / "work" / job.name
    shutil.rmtree(folder, ignore_errors=True)
    summary: Summary = {"steps": dict(job.steps), "rate": job.rate, "seed": job.seed}
    try:
        train(job, folder)
        model = folder / "final" / "hf"
        if job.stage == "model":
            model = keep_model(job, folder)
        summary |= {"compute": read_compute(folder), "parts": measure_parts(job, model)}
    except Diverged as error:
        summary["error"] = str(error)
    shutil.rmtree(folder, ignore_errors=True)
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    summary["cpu_seconds"] = round(sum(use.ru_utime + use.ru_stime for use in (own, children)), 1)
    write(job.file, summary)
    return summary


def train(job: Job, folder: Path) -> None:
    """Train the model of a job into a folder; printed output is discarded."""
    import qed  # noqa: PLC0415

    start = find_model(job.home, job.task, "start")
    if job.stage == "model":
        teaches = job.method == "teacher"
        leaf, own = (
            "sft",
            {**SFT, "learner.schedule": "linear" if teaches else "constant", "learner.betas": [0.9, 0.95]},
        )
        own |= {"learner.steps": TEACHER_STEPS if teaches else START_STEPS[job.task]}
        part, model = (job.method, str(start)) if teaches else ("base", "new:tiny")
    else:
        method = next(each for each in METHODS if each.name == job.method)
        leaf, part, model = method.leaf, "train", str(start)
        teacher = str(find_model(job.home, job.task, "teacher"))
        own = {name: teacher if value == TEACHER else value for name, value in method.settings.items()}
        own |= list_learner_settings(method, job.steps, job.rate)
    data = {"data.tasks": [name_task(job.task, part)], "evaluation.tasks": [name_task(job.task, "other")]}
    settings = {**SHARED, **own, **data, "model.name": model}
    with redirect_stdout(io.StringIO()):
        qed.train(leaf, out=str(folder), seed=job.seed, overwrite=True, allow_user_code=True, **settings)


def keep_model(job: Job, folder: Path) -> Path:
    """Move the final model of a start or a teacher to the folder where other runs look for it."""
    kept = find_model(job.home, job.task, job.method)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(kept, ignore_errors=True)
    (folder / "final" / "hf").resolve().rename(kept)
    return kept


def read_compute(folder: Path) -> dict[str, float]:
    """Return the multiply-adds of each phase of a run: sampling, scoring with any model, and updates."""
    found: dict[str, float] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "perf/flops" in row:
            found[row["phase"]] = found.get(row["phase"], 0.0) + row["perf/flops"] / 2
    return found


def measure_parts(job: Job, model: Path) -> dict[str, Summary]:
    """Measure a model on the problems that its stage may see."""
    parts = {"model": ("validation", "test", "other"), "pilot": (), "rate": ("validation",), "final": ("test", "other")}
    return {part: measure(model, job.task, part, job.seed) for part in parts[job.stage]}


def measure(model: Path, task: str, part: str, seed: int) -> Summary:
    """Answer problems greedily and by sampling.

    Returns:
        `n` problems; `greedy`: whether each greedy answer is right, see `pack`; `sampled`: a digit for each problem,
        how many of `SAMPLES` answers at temperature 1 are right; `length`: their mean number of tokens; `entropy`:
        minus the mean log-prob of their tokens in nats, which estimates the entropy of a token.
    """
    from qed import Sampler  # noqa: PLC0415
    from qed.rewards.base import load_reward  # noqa: PLC0415
    from qed.rollout.stages import sample  # noqa: PLC0415
    from qed.sampling.base import Sampling  # noqa: PLC0415
    from qed.types import Request  # noqa: PLC0415

    policy = Sampler(model, prompt=tasks.PROMPT, device="cpu", rows_per_batch=512).policy
    reward = load_reward((tasks.PROMPT,))
    problems = tasks.load(f"{task}-{part}")
    answers, right = {}, {}
    for temperature, count in ((0.0, 1), (1.0, SAMPLES)):
        sampling = Sampling(temperature, MAX_TOKENS, policy.template.stop)
        requests = [Request(problem, count) for problem in problems]
        groups = sample(requests, policy.sampler, policy.template, sampling, (seed, "laboratory"))
        answers[temperature] = [answer for group in groups for answer in group]
        right[temperature] = [sum(grade.correct for grade in reward.grade(group)) for group in groups]
    tokens = sum(len(answer.output) for answer in answers[1.0])
    return {
        "n": len(problems),
        "greedy": pack(right[0.0]),
        "sampled": "".join(map(str, right[1.0])),
        "length": round(tokens / len(answers[1.0]), 2),
        "entropy": round(-sum(sum(answer.logps) for answer in answers[1.0]) / tokens, 4),
    }


def read_sampled(part: Summary) -> list[float]:
    """Return the share of right sampled answers to each problem."""
    return [int(count) / SAMPLES for count in part["sampled"]]


def read_greedy(part: Summary) -> list[float]:
    """Return 1 for each problem whose greedy answer is right, else 0."""
    return [float(bit) for bit in f"{int(part['greedy'], 16):0{part['n']}b}"]


def pack(right: Sequence[int]) -> str:
    """Pack a bit for each problem into a hexadecimal number; the first problem has the highest bit."""
    bits = "".join(map(str, right))
    return f"{int(bits, 2):0{(len(bits) + 3) // 4}x}"


def write(file: Path, summary: Summary) -> None:
    """Write a summary atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(summary))
    part.replace(file)
