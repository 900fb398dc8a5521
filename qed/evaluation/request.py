"""The settings of an evaluation, and the subset of them that determines the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qed.config.phases import Settings
from qed.config.settings import DataSettings
from qed.data.splits import resolve_prompt_name, resolve_reward_names
from qed.evaluation.benchmarks import Benchmark
from qed.evaluation.endpoint.model import EndpointSettings
from qed.evaluation.weights import hash_weights
from qed.grading.policy import PolicyName
from qed.randomness import derive_seed
from qed.runs.run import Row
from qed.sampling.base import Sampling
from qed.types import Problem


@dataclass(frozen=True)
class EvaluationRequest:
    """The settings of one evaluation.

    Args:
        settings: settings of the model, prompt and reward, or of the evaluated run.
        tasks: names of tasks; empty uses the held-out problems of the run.
        sampling: sampling parameters; `max_tokens` 0 uses half of the context window, at most 2,048.
        samples: answers per problem; 0 uses each benchmark's default.
        limit: number of problems of each task, drawn with `subset_seed`; 0 uses all.
        folder, step: where the answers are written.
        model: the model's name as given.
        overwrite: replace another evaluation in the folder.
        command: the command line, for the record.
        json: reserve stdout for the JSON result.
        endpoint: the OpenAI-compatible endpoint, if the model is neither loaded nor sampled by token ids.
        policy: the grading policy for final answers: math, qwen or strict.
        also: additional graders of the same answers, see `qed.evaluation.verdicts`.
        ties: the tie rule of maj@k, see `qed.evaluation.votes.vote_majority`.
        scoring: sampled answers, or the log-likelihoods of choices, with `shots` few-shot examples before each question
            (None: the default number, if there are `exemplars`); see `qed.evaluation.few_shot`.
    """

    settings: Settings
    tasks: tuple[str, ...]
    sampling: Sampling
    samples: int
    limit: int
    folder: Path
    step: int
    model: str
    overwrite: bool = False
    command: tuple[str, ...] = ()
    json: bool = False
    endpoint: EndpointSettings | None = None
    policy: PolicyName = "math"
    also: tuple[str, ...] = ()
    scoring: Literal["sampled", "likelihood"] = "sampled"
    ties: str = "split"
    subset_seed: int = 0
    shots: int | None = None
    exemplars: str = ""

    @property
    def decoding(self) -> str:
        """Return the name of the decoding."""
        if self.scoring != "sampled":
            return self.scoring
        return "greedy" if self.sampling.temperature == 0 else "sampled"


def describe_request(bench: Benchmark, kept: Sequence[Problem], request: EvaluationRequest, sampling: Sampling) -> Row:
    """Describe everything that determines the answers of a task."""
    settings = request.settings
    counts = [bench.samples_of(problem) for problem in kept]
    return {
        "model": request.model,
        "weights": hash_weights(Path(settings.model.name)),
        "revision": settings.model.revision,
        "precision": settings.model.precision,
        "task": bench.name,
        "problems": f"{derive_seed(*(f'{each.id} {each.question} {each.answer}' for each in kept)):016x}",
        "samples": max(counts) if len(set(counts)) == 1 else f"{derive_seed(*counts):016x}",
        "prompt": resolve_prompt_name(bench.data),
        "prompt_options": list(bench.data.prompt_options),
        # Only if set, so that evaluations started with earlier versions can be resumed.
        **({"system_prompt": bench.data.system_prompt} if bench.data.system_prompt else {}),
        **({"chat_template_options": options} if (options := list(bench.data.chat_template_options)) else {}),
        **_describe_environment(bench.data),
        **({"exemplars": bench.exemplars, "prompts": _hash_prompts(kept)} if bench.exemplars else {}),
        **({"stop": list(settings.sampling.stop)} if settings.sampling.stop else {}),
        "reward": list(resolve_reward_names(bench.data)),
        "reward_options": list(bench.data.reward_options),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_tokens": sampling.max_tokens,
        "rows_per_batch": settings.sampling.rows_per_batch,
        "sampler": settings.sampling.sampler if request.endpoint is None else "endpoint",
        "seed": settings.run.seed,
        **({} if request.endpoint is None else {"endpoint": request.endpoint.describe()}),
        **({"policy": request.policy} if request.policy != "math" else {}),
        **({"also": list(request.also)} if request.also else {}),
    }


def _describe_environment(data: DataSettings) -> Row:
    if data.environment == DataSettings.environment:
        return {}
    return {"environment": data.environment, "environment_options": list(data.environment_options)}


def _hash_prompts(problems: Sequence[Problem]) -> str:
    return f"{derive_seed(*(str(problem.meta.get('rendered')) for problem in problems)):016x}"
