"""When memory runs out, a step is computed again in smaller parts: its result is the undisturbed one."""

from __future__ import annotations

import copy
import errno
import gc
import json
import os
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cutting import SMALL, by_chance, cut, run_small, write_data
from hypothesis import given
from hypothesis import strategies as st
from making import make_model, make_rollout
from safetensors.torch import load_file

from qed.algorithms.dpo import Dpo
from qed.algorithms.grpo import Grpo
from qed.config.settings import LearnerSettings
from qed.errors import QedError, is_out_of_memory
from qed.guards import faults
from qed.guards.out_of_memory import call_if_it_fits
from qed.loops.out_of_memory import EVENT, ROWS, TOKENS, remember_limits
from qed.runs.run import read_lines
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.training.batch import collate, cut_microbatches
from qed.training.learner import Learner
from qed.training.out_of_memory import MicrobatchBudget, Outcome, choose_budget, explain_out_of_memory
from qed.training.parallel import ALONE
from qed.training.scoring import score_with

MESSAGES = [
    "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "CUDA error: out of memory",
    "MPS backend out of memory (MPS allocated: 1 GB)",
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
]
ROLLOUTS = [make_rollout(random.Random(number), advantage=(-1.0) ** number) for number in range(12)]


@contextmanager
def memory_for(model: torch.nn.Module, tokens: int) -> Iterator[Counter[str]]:
    """Lets forward passes over more tokens fail; counts passes and failures."""
    counted: Counter[str] = Counter()

    def refuse(_: Any, arguments: Any, named: dict[str, Any]) -> None:
        counted["passes"] += 1
        if named["input_ids"].numel() > tokens:
            counted["failures"] += 1
            raise RuntimeError(MESSAGES[3])

    handle = model.model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        yield counted
    finally:
        handle.remove()


def test_errors_of_the_system_and_of_its_loader_are_those_of_memory() -> None:
    assert is_out_of_memory(ImportError("libtorch_cpu.so: failed to map segment from shared object"))
    assert is_out_of_memory(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    assert not is_out_of_memory(ImportError("No module named 'x'"))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), MemoryError(), *map(RuntimeError, MESSAGES)])
def test_errors_of_memory_are_known(error: Exception) -> None:
    def fail() -> None:
        raise error

    assert is_out_of_memory(error)
    assert call_if_it_fits(fail) == []
    wanted = r"does not hold the state: .*qed doctor --fit"
    with pytest.raises(QedError, match=wanted), explain_out_of_memory("the state"):
        fail()


def test_other_errors_are_passed_on() -> None:
    for error in (RuntimeError("shapes differ"), ValueError("out of memory")):

        def fail(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error), match=str(error)):
            call_if_it_fits(fail)
        with pytest.raises(type(error), match=str(error)), explain_out_of_memory("the state"):
            fail()


def test_a_failed_call_holds_nothing() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def deepest(graph: torch.Tensor) -> None:
        activations = graph * 2
        held.append(weakref.ref(activations))
        raise RuntimeError(MESSAGES[0])

    def outer() -> None:
        weights = torch.ones(3, requires_grad=True)
        graph = weights.exp()
        held.append(weakref.ref(graph))
        try:
            deepest(graph)
        except RuntimeError as error:
            raise RuntimeError(MESSAGES[1]) from error

    gc.disable()
    try:
        assert call_if_it_fits(outer) == []
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()


@given(
    st.lists(st.tuples(st.booleans(), st.integers(2, 500)), min_size=1, max_size=4),
    st.integers(2, 1000),
    st.randoms(),
)
def test_all_processes_choose_the_same(parts: list[tuple[bool, int]], budget: int, source: random.Random) -> None:
    outcomes = [Outcome(failed, tokens, alone=False) for failed, tokens in parts]
    chosen = choose_budget(outcomes, budget)
    shuffled = source.sample(outcomes, len(outcomes))
    assert choose_budget(shuffled, budget) == chosen
    assert (chosen is None) == (not any(failed for failed, _ in parts))
    if chosen is not None:
        assert 1 <= chosen <= budget / 2
        assert all(chosen <= tokens / 2 for failed, tokens in parts if failed)
        with pytest.raises(QedError, match="a micro-batch of 7 tokens, which cannot be split"):
            choose_budget([*outcomes, Outcome(True, 7, alone=True)], budget)


def test_ranks_repeat_together() -> None:
    """One of two runs out of memory: both compute again, with the same budget."""
    barrier, shared = Barrier(2), dict[int, Outcome]()
    batch = collate(ROLLOUTS)

    def build(rank: int) -> MicrobatchBudget:
        def join(own: Outcome) -> list[Outcome]:
            shared[rank] = own
            barrier.wait(10)
            both = [shared[0], shared[1]]
            barrier.wait(10)
            return both

        return MicrobatchBudget(100, join)

    def work(rank: int) -> tuple[int, int, int]:
        budget, calls = build(rank), 0

        def compute() -> int:
            nonlocal calls
            calls += 1
            for rows in budget.watch(cut_microbatches(batch, budget.tokens), batch):
                if rank == 1 and len(rows) > 2:
                    raise MemoryError
            return rank

        return budget.repeat(compute), budget.tokens, calls

    with ThreadPoolExecutor(2) as pool:
        (first, *one), (second, *other) = pool.map(work, range(2))
    assert (first, second) == (0, 1)
    assert one == other
    assert one[1] > 1


@pytest.mark.parametrize("packing", [True, False])
def test_an_update_is_the_undisturbed_one(packing: bool) -> None:
    def build(budget: int) -> Learner:
        settings = LearnerSettings(lr=1e-2, tokens_per_microbatch=budget, packing=packing)
        return Learner(make_model(), Grpo(), settings, length=9)

    told: list[int] = []
    undisturbed, learner = build(16384), build(16384)
    learner.budget.report = told.append
    before = undisturbed.update(ROLLOUTS, 0)
    with memory_for(learner.model, 40) as counted:
        stats = learner.update(ROLLOUTS, 0)
        failures = counted["failures"]
        undisturbed.update(ROLLOUTS, 1)
        learner.update(ROLLOUTS, 1)
        learner.score(copy.deepcopy(ROLLOUTS), old=True)
        assert counted["failures"] == failures == len(told) > 0  # the smaller budget is remembered
    assert told[-1] == learner.budget.tokens < 40
    for name in ("train/loss", "optim/grad_norm", "train/live_rows", "train/tokens", "policy/entropy"):
        assert stats[name] == pytest.approx(before[name], rel=1e-9), name
    same_cut = build(learner.budget.tokens)
    for step in range(2):
        same_cut.update(ROLLOUTS, step)
    for one, other, third in zip(learner.parameters, undisturbed.parameters, same_cut.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        assert torch.equal(one, third)


def test_a_failure_in_the_middle_drops_the_gradient() -> None:
    """The first micro-batches have added to the gradient when a later one fails."""
    source = random.Random(3)
    rollouts = [make_rollout(source, 1.0, longest=length) for length in (2, 2, 3, 3, 9, 9, 9, 9)]
    learners = [
        Learner(make_model(), Grpo(), LearnerSettings(tokens_per_microbatch=30, packing=False), length=9) for _ in "ab"
    ]
    wanted = learners[0].update(rollouts, 0)
    with memory_for(learners[1].model, 25) as counted:
        found = learners[1].update(rollouts, 0)
    assert counted["failures"]
    assert counted["passes"] > counted["failures"] + 1
    assert found["optim/grad_norm"] == pytest.approx(wanted["optim/grad_norm"], rel=1e-9)


def test_scores_are_the_undisturbed_ones() -> None:
    model = make_model()
    learner = Learner(model, Grpo(), LearnerSettings(), length=9)
    score = score_with(model, 1.0)
    wanted, means = score(ROLLOUTS, torch.float32), learner.compute_mean_scores(ROLLOUTS)
    with memory_for(model, 40) as counted:
        found = score(ROLLOUTS, torch.float32)
        assert counted["failures"]
        for one, other in zip(learner.compute_mean_scores(ROLLOUTS), means, strict=True):
            assert one == pytest.approx(other, rel=1e-9)
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_what_cannot_be_cut_ends_the_run() -> None:
    learner = Learner(make_model(), Grpo(), LearnerSettings(), length=9)
    with memory_for(learner.model, 3), pytest.raises(QedError, match=r"cannot be split.*gradient_checkpointing=true"):
        learner.update(ROLLOUTS, 0)
    pairs = Learner(make_model(), Dpo(), LearnerSettings(), length=9)
    longest = max(len(row.prompt) + len(row.output) for row in ROLLOUTS)
    with memory_for(pairs.model, longest), pytest.raises(QedError, match="rows that belong together"):
        pairs.score(copy.deepcopy(ROLLOUTS), old=False, reference=pairs.model)


@pytest.mark.parametrize("kind", [NativeSampler, HFSampler])
@pytest.mark.parametrize("passing", [1, 4, 9])
def test_answers_are_the_undisturbed_ones(kind: type[HFSampler], passing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, seeds = [[3, 4, 5], [6, 7], [8] * 9], [[1, 2, 3], [4, 5], [6, 7, 8]]
    sampling = Sampling(1.0, 12)
    wanted = kind(make_model(), None, (1,), 8, torch.float64).generate(prompts, seeds, sampling)
    arm(monkeypatch, f"rollout:oom:{passing}")
    sampler, told = kind(make_model(), None, (1,), 8, torch.float64), list[int]()
    sampler.on_fewer_rows = told.append
    found = sampler.generate(prompts, seeds, sampling)
    assert [[answer.tokens for answer in row] for row in found] == [[answer.tokens for answer in row] for row in wanted]
    for one, other in zip(chain(*found), chain(*wanted), strict=True):
        assert one.logps == pytest.approx(other.logps, abs=1e-12)
    assert told == [sampler.rows_per_batch]
    assert sampler.rows_per_batch < 8


@pytest.mark.parametrize("kind", [NativeSampler, HFSampler])
def test_a_sequence_that_does_not_fit_ends_the_run(kind: type[HFSampler]) -> None:
    sampler = kind(make_model(), None, (1,), 4, torch.float64)
    with memory_for(sampler.model, 1), pytest.raises(QedError, match="KV cache of a single answer"):
        sampler.generate([[3, 4, 5]], [[1, 2, 3]], Sampling(1.0, 5))


def arm(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(faults, "ARMED", fault)
    monkeypatch.setattr(faults, "_passed", Counter())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_problems: None) -> Callable[..., Path]:
    """Makes a small run of GRPO and returns its folder."""
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    problems, _ = write_data(tmp_path)
    common = ["grpo", "--tasks", problems, *SMALL, "--sampling.problems_per_step", 3, "--sampling.group_size", 4]

    def make(out: str, *more: object) -> Path:
        run_small([*common, *more, "--out", tmp_path / out])
        return tmp_path / out

    return make


def test_a_run_goes_on_and_remembers(
    run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arm(monkeypatch, "update:oom:1")
    hurt = run("hurt", "--model.precision", "float64")
    told = capsys.readouterr()
    assert (told.out + told.err).count("The device ran out of memory: learner.tokens_per_microbatch is") == 1
    arm(monkeypatch, "")
    event = next(row for row in read_lines(hurt / "events.jsonl") if row["event"] == "out_of_memory")
    assert event["setting"] == "learner.tokens_per_microbatch"
    assert event["configured"] == 16384
    exact = [load_file(run("same cut", "--model.precision", "float64", *cut_alike(event)) / WEIGHTS)]
    cut(hurt, 2, tmp_path / "again")
    exact.append(load_file(run("again", "--model.precision", "float64", "--resume") / WEIGHTS))
    for name, weights in load_file(hurt / WEIGHTS).items():
        assert all(torch.equal(weights, other[name]) for other in exact)


WEIGHTS = "final/weights.safetensors"


def cut_alike(event: dict[str, Any]) -> tuple[object, ...]:
    return ("--learner.tokens_per_microbatch", event["limit"])


def test_a_limit_holds_until_its_setting_is_changed(tmp_path: Path) -> None:
    """The lowest of what a run has found is taken on its resumption; the other setting has limits of its own."""
    found = [(TOKENS, 16384, 8192), (TOKENS, 16384, 4096), (TOKENS, 16384, 6144), (TOKENS, 1024, 512), (ROWS, 32, 2)]
    rows = [{"event": EVENT, "setting": name, "configured": own, "limit": limit} for name, own, limit in found]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"event": "start"}, *rows]))
    for configured, limit in ((16384, 4096), (1024, 512), (2048, 2048)):
        sampler = SimpleNamespace(rows_per_batch=64, on_fewer_rows=None)
        setup: Any = SimpleNamespace(run=SimpleNamespace(folder=tmp_path), parallel=ALONE, sampler=sampler)
        learner: Any = SimpleNamespace(budget=MicrobatchBudget(configured))
        settings: Any = SimpleNamespace(
            learner=LearnerSettings(tokens_per_microbatch=configured), sampling=SimpleNamespace(rows_per_batch=64)
        )
        remember_limits(setup, settings, learner)
        assert (learner.budget.tokens, sampler.rows_per_batch) == (limit, 64)
