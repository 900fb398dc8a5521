"""Servers that evaluate a run while it trains (`evaluation.sampler`): started by the run, or already running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from qed.config.phases import Settings
from qed.loops.background_evaluator import BackgroundEvaluator
from qed.loops.servers import RunServers
from qed.loops.setup import Setup
from qed.models import load
from qed.rollout.grader import load_evaluator, load_grader
from qed.rollout.policy import Policy, build_sampler
from qed.types import Problem


class EvaluationServers:
    """The evaluation servers of a run; see `EvaluationServer`.

    Args:
        setup: setup of the run.
        settings: settings of its last phase.
        problems: problems whose prompts are used to verify the servers' weights.
    """

    def __init__(self, setup: Setup, settings: Settings, problems: Sequence[Problem]) -> None:
        self.servers = RunServers(setup.run, setup.console, setup.parallel, takes_placed=False)
        settings = adapt_settings(settings)
        policy = Policy(setup.model, setup.tokenizer, setup.materials[-1].template, setup.sampler)
        ends = load.find_end_ids(setup.model, setup.tokenizer, policy.template.leaf.CHAT)
        policy.sampler = build_sampler(setup.model, setup.tokenizer, ends, settings)
        version = setup.read_state()["step"]
        try:
            self.servers.connect(policy, settings, problems, setup.device, version)
        except BaseException:
            self.close()
            raise
        self.sampler: Any = policy.sampler

    def prepare(self, model: Any, version: int) -> Callable[[], None]:
        """Write weights, and return a function that loads them from any thread; all ranks must call this."""
        load: Callable[[], None] = self.sampler.prepare(model, version)
        return load

    def close(self) -> None:
        """Cancel all requests, and stop the servers that were started; the thread's requests are not retried."""
        if self.servers.sync is not None:
            self.servers.sync.restart = None
            self.sampler.close()
        self.servers.__exit__(None, None, None)


def adapt_settings(settings: Settings) -> Settings:
    """Return settings whose training would sample as the run's evaluations do, on dedicated servers."""
    evaluation = settings.evaluation
    sampling = replace(
        settings.sampling,
        sampler=evaluation.sampler,
        url=evaluation.url,
        devices=evaluation.devices,
        servers=0 if evaluation.sampler == "server" else max(1, len(evaluation.devices)),
        colocate=False,
    )
    return replace(settings, sampling=sampling, rollout=replace(settings.rollout, max_staleness=0))


@contextmanager
def open_background_evaluator(setup: Setup, settings: Settings) -> Iterator[None]:
    """Within the context, run evaluations on dedicated servers if `evaluation.sampler` is set.

    Args:
        setup: setup of the run.
        settings: settings of its last phase.

    Raises:
        UsageError: the servers do not fit the model or the machine.
        QedError: a server does not start.
    """
    if not settings.evaluation.sampler:
        yield
        return
    grader = load_evaluator(
        settings.data, settings.sampling.max_tokens, load_grader(settings.data, settings.sampling.max_tokens)
    )
    with (
        closing(grader),
        closing(start_servers(setup, settings)) as server,
        closing(BackgroundEvaluator(setup, server, grader)) as background,
    ):
        setup.background = background
        yield


def start_servers(setup: Setup, settings: Settings) -> EvaluationServers:
    """Start the evaluation servers, or connect to running ones."""
    held_out = [problem for problems in setup.benchmarks.values() for problem in problems]
    return EvaluationServers(setup, settings, [*held_out, *setup.validation])
