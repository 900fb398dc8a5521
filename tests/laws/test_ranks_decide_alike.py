"""What only one rank sees, such as a signal, a file or a full disk, leaves no rank behind in a collective."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from threaded import run_threads
from torch import nn

from qed.errors import UsageError
from qed.guards.signals import Stop
from qed.loops.phase import Phase
from qed.loops.ranks import require_same_data
from qed.training.parallel import Parallel
from qed.types import Problem


def test_a_request_that_one_rank_has_seen_saves_on_all() -> None:
    """SIGUSR1 comes during an evaluation, and a rank reaches its end before it knows."""

    def save(parallel: Parallel) -> int:
        saved: list[Any] = []
        stop = Stop()
        stop.save = parallel.rank == 1
        phase: Any = object.__new__(Phase)
        phase.setup = SimpleNamespace(parallel=parallel, stop=stop)
        phase.settings = SimpleNamespace(run=SimpleNamespace(save_every=0))
        phase.offset, phase.last = 0, 9
        phase.evaluator = SimpleNamespace(is_best=lambda step: False, may_be_best=lambda step: False, scores={})
        phase.checkpointer = SimpleNamespace(save=lambda *given, **_: saved.append(given))
        for step in (1, 2):
            phase.save_if_due(step)
        return len(saved)

    assert run_threads(save, 3) == [1, 1, 1]


def test_a_stop_that_one_rank_has_received_is_agreed_on() -> None:
    def stop(parallel: Parallel) -> signal.Signals | None:
        flags = Stop()
        flags.received = signal.SIGTERM if parallel.rank == 1 else None
        parallel.agree_on_stop(flags)
        return flags.agreed

    assert set(run_threads(stop, 2)) == {signal.SIGTERM}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_weight_that_no_rank_uses_has_no_gradient(world: int) -> None:
    """Weight decay would change it otherwise, at several ranks only."""

    def step(parallel: Parallel) -> list[torch.Tensor]:
        model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False, dtype=torch.float64) for name in "abc"})
        for number, weight in enumerate(model.parameters()):
            nn.init.constant_(weight, number + 1.0)
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)
        if parallel.is_first:
            model["a"](torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        if parallel.rank == parallel.world - 1:
            model["b"](torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        parallel.sum_gradients(parameters)
        optimizer.step()
        return [weight.detach().clone() for weight in parameters]

    results = run_threads(step, world) if world > 1 else [step(Parallel())]
    alone = step(Parallel())
    for result in results:
        assert all(torch.equal(own, other) for own, other in zip(result, alone, strict=True))
    assert torch.equal(alone[2], torch.full((2, 2), 3.0, dtype=torch.float64))


def test_ranks_with_other_data_are_refused() -> None:
    def check(parallel: Parallel, differs: str) -> None:
        own = parallel.rank == 1
        held_out = [Problem("1", "1 + 1", "3" if own and differs == "held out" else "2")]
        require_same_data("other" if own and differs == "training" else "same", held_out, parallel)

    run_threads(lambda parallel: check(parallel, ""), 2)
    for differs in ("training", "held out"):
        with pytest.raises(UsageError, match=r"Rank 1 on .* reads other problems than rank 0"):
            run_threads(lambda parallel, differs=differs: check(parallel, differs), 2)
