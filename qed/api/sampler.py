"""Sample answers of a model from Python."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from qed.api.evaluation import list_model_options
from qed.api.keywords import use_keywords
from qed.api.process import prepare_process
from qed.api.runs import Run
from qed.cli.commands.evaluate import resolve_model
from qed.cli.commands.policy_options import load_answering_policy
from qed.config.settings import is_temperature
from qed.console.progress import say_on_stderr
from qed.data.sources.fields import convert_to_text
from qed.data.sources.rows import Place
from qed.errors import UsageError, suggest_nearest
from qed.models import load
from qed.rollout.stages import sample
from qed.sampling.base import Sampling
from qed.types import Problem, Request, Rollout

# Options of `qed evaluate` that concern loading a model; the others concern sampling or grading.
LOADING = (
    *("step", "prompt", "prompt_options", "system_prompt", "chat_template_options", "stop", "revision"),
    *("device", "precision", "attention", "threads", "sampler", "url", "request_seconds", "rows_per_batch"),
    *("seed", "allow_user_code"),
)


class Sampler:
    """A loaded model that answers questions.

    Args:
        model: a run or its folder, a Hugging Face folder or a name on the hub.
        options: options of `qed evaluate` that concern loading a model: `step`, `prompt`, `device`, `precision`,
            `threads`, `sampler`, `rows_per_batch`, `revision` and others. The default prompt is that of the run;
            otherwise the chat template of the tokenizer if it has one; otherwise the question alone.

    Raises:
        qed.errors.UsageError: an option is unknown or invalid.
        qed.errors.ModelError: the model cannot be used.
    """

    def __init__(self, model: str | os.PathLike[str] | Run, **options: Any) -> None:
        prepare_process()
        _require_loading(name for name, value in options.items() if value is not None)
        with use_keywords(options) as texts:
            settings, self.step = resolve_model(list_model_options(model, texts))
        load.check_name(settings.model.name)
        if settings.data.prompt == "auto":
            own = settings.model
            chat = load.is_new(own.name) or load.load_tokenizer(own.name, own.revision)[0].chat_template
            prompt = "chat" if chat else "question_only"
            settings = replace(settings, data=replace(settings.data, prompt=prompt))
        self.policy = load_answering_policy(settings, say_on_stderr)

    def sample(
        self,
        questions: Iterable[str],
        samples: int = 1,
        *,
        temperature: float = 1.0,
        max_tokens: int = 256,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
    ) -> list[list[Rollout]]:
        """Return `samples` answers to each question, with text, tokens and log-probs.

        The random numbers of an answer depend only on the seed, its question and its index.

        Args:
            questions: the questions; the prompt renders each, and `prompt_text` of an answer shows the result.
            samples: the number of answers to each question.
            temperature: the sampling temperature; 0 is greedy decoding.
            max_tokens: the maximum number of tokens of an answer, end token included.
            top_p: sample from the smallest set of tokens whose probabilities reach this sum.
            top_k: sample from this many of the most likely tokens; 0 is all.
            seed: the seed of the random numbers.

        Raises:
            qed.errors.UsageError: a prompt has no token or exceeds the context window, or an argument is invalid.
            qed.errors.DataError: a question is not valid text.
        """
        questions = list_questions(questions)
        for number, question in enumerate(questions, 1):
            convert_to_text(question, Place("questions", number), "the question")
        whole = all(isinstance(value, Integral) for value in (samples, max_tokens, top_k))
        real = all(isinstance(value, Real) and math.isfinite(value) for value in (temperature, top_p))
        valid = whole and real and min(samples, max_tokens) >= 1 and top_k >= 0 and 0 < top_p <= 1
        if not (valid and is_temperature(temperature)):
            raise UsageError(
                "qed.Sampler.sample takes samples and max_tokens of at least 1, a temperature of 0 or at least 1e-6, a "
                "top_k of at least 0, and a top_p in (0, 1]; samples, max_tokens and top_k are whole numbers."
            )
        sampling = Sampling(temperature, max_tokens, self.policy.template.stop, top_p, top_k)
        problems = [Problem(question, question, "") for question in questions]
        limit, lengths = self.policy.max_prompt_tokens(max_tokens), self.policy.template.lengths(problems)
        if too_long := [number for number, length in enumerate(lengths, 1) if length > limit]:
            raise UsageError(
                f"Question {too_long[0]} has {lengths[too_long[0] - 1]} tokens, but with {max_tokens} tokens for the "
                f"answer the model's context window has space for {max(0, limit)}."
            )
        requests = [Request(problem, samples) for problem in problems]
        return sample(requests, self.policy.sampler, self.policy.template, sampling, (seed, "sampler"))


def list_questions(questions: Iterable[str]) -> list[str]:
    """Return the questions as a list; an iterator is read once.

    Raises:
        UsageError: they are one text, or one of them is not a text.
    """
    listed = list(questions) if isinstance(questions, Iterable) and not isinstance(questions, str) else [None]
    texts = [question for question in listed if isinstance(question, str)]
    if len(texts) < len(listed):
        raise UsageError("qed.Sampler.sample takes a list of questions, each a text.")
    return texts


def _require_loading(options: Iterable[str]) -> None:
    """Raise UsageError for options without effect here, such as `temperature`, which is an argument of `sample`."""
    for name in options:
        if name not in LOADING:
            raise UsageError(
                f"qed.Sampler has no option '{name}'.{suggest_nearest(name, LOADING)} It has: {', '.join(LOADING)}. "
                "Pass sampling parameters to sample()."
            )
