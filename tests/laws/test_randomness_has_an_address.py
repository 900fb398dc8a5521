"""Law 10: every draw is a function of its address; neither the batch nor what was drawn before can change it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_model

from qed.algorithms.grpo import Grpo
from qed.config.phases import Settings
from qed.config.sampling_settings import EvaluationSettings, SamplingSettings
from qed.config.settings import LearnerSettings, ModelSettings, RunSettings
from qed.errors import ModelError, UsageError
from qed.loops.phase import Phase
from qed.loops.train import train
from qed.randomness import derive_seed, draw_uniforms, hash_parts, shuffle_indices
from qed.rollout.stages import Stream
from qed.runs.run import Launch, read_lines
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler


class Killed(BaseException):
    """Ends a run as a signal would that nobody can catch."""


SEEDS = st.integers(0, 2**63 - 1)


@settings(max_examples=50)
@given(seeds=st.lists(SEEDS, min_size=1, max_size=8), count=st.integers(1, 20), more=st.integers(0, 5))
def test_a_draw_depends_on_its_seed_and_position_alone(seeds: list[int], count: int, more: int) -> None:
    together = draw_uniforms(torch.tensor(seeds), count + more)
    assert ((together >= 0) & (together < 1)).all()
    for row, seed in enumerate(seeds):
        assert torch.equal(draw_uniforms(torch.tensor([seed]), count)[0], together[row, :count])


def test_draws_are_uniform_and_unrelated_between_neighbours() -> None:
    """The mean, the spread, and the correlation of neighbouring seeds and positions, within five standard errors."""
    draws = draw_uniforms(torch.arange(2000), 50)
    bound = 5 / draws.numel() ** 0.5
    assert abs(float(draws.mean()) - 0.5) < bound * 12**-0.5
    assert abs(float(draws.var()) - 1 / 12) < bound / 12
    for left, right in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:])):
        assert abs(float(torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1])) < bound


def test_the_hash_is_the_published_one() -> None:
    """SplitMix64 from seed 0 begins with 0xE220A8397B1DCDAF (Steele et al. 2014); a draw is its upper 53 bits."""
    assert float(draw_uniforms(torch.tensor([0]), 1)) == (0xE220A8397B1DCDAF >> 11) * 2.0**-53


def test_addresses_do_not_run_together() -> None:
    assert derive_seed("a", "bc") != derive_seed("ab", "c")
    assert derive_seed(1, "1") != derive_seed("1", 1)
    assert derive_seed(0, "rollout", 3, "p", 1) != derive_seed(0, "rollout", 3, "p", 2)


@given(st.lists(st.integers() | st.text(st.characters(exclude_categories=["Cs"]))))
def test_a_seed_is_the_hash_of_the_joined_parts(address: list[int | str]) -> None:
    """Old runs resume with the draws that they began with, and long addresses are hashed part by part."""
    joined = "\x1f".join(f"{type(part).__name__}:{part}" for part in address).encode()
    expected = int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big") >> 1
    assert derive_seed(*address) == hash_parts(iter(address)) == expected


@settings(max_examples=50)
@given(count=st.integers(1, 30), takes=st.lists(st.integers(1, 12), min_size=1, max_size=10), seed=st.integers(0, 99))
def test_a_stream_is_its_position(count: int, takes: list[int], seed: int) -> None:
    """However it is taken from, the order is the same; every epoch has each item once; a resumed stream goes on."""
    stream = Stream(list(range(count)), seed, "test")
    taken = [item for take in takes for item in stream.take(take)]
    assert taken == Stream(list(range(count)), seed, "test").take(sum(takes))
    for epoch in range(len(taken) // count):
        assert sorted(taken[epoch * count : (epoch + 1) * count]) == list(range(count))
    resumed = Stream(list(range(count)), seed, "test", position=takes[0])
    assert resumed.take(sum(takes[1:])) == taken[takes[0] :]
    assert shuffle_indices(count, seed, "test", 0) == Stream(list(range(count)), seed, "test").take(count)


@pytest.mark.parametrize("sampler", [HFSampler, NativeSampler])
def test_an_answer_does_not_depend_on_who_shares_its_batch(sampler: type[HFSampler] | type[NativeSampler]) -> None:
    model = make_model()
    prompts = [(5,), (3, 4, 5, 6, 7), (9, 2), (8, 8, 8)]
    seeds = [[derive_seed("alone", which, number) for number in range(4)] for which in range(len(prompts))]
    sampling = Sampling(temperature=1.0, max_tokens=12)
    together = sampler(model, None, ends=(1,)).generate(prompts, seeds, sampling)
    for which, prompt in enumerate(prompts):
        for number, seed in enumerate(seeds[which]):
            alone = sampler(model, None, ends=(1,), rows_per_batch=1).generate([prompt], [[seed]], sampling)[0][0]
            assert alone.tokens == together[which][number].tokens
            assert alone.logps == pytest.approx(together[which][number].logps, abs=1e-6)


def small_run(out: Path, steps: int = 4, **changes: object) -> Settings:
    """A GRPO run of a few seconds on the built-in default, with two updates a step so that scores are kept."""
    settings = Settings(
        method="grpo",
        # A fresh model's rewards are all 0, so the KL gives every row a gradient.
        algorithm=Grpo(kl=0.1, entropy=0.01),
        sampling=SamplingSettings(problems_per_step=2, group_size=3, max_tokens=6),
        learner=LearnerSettings(steps=steps, batch_size=3, lr=1e-2, schedule="cosine"),
        evaluation=EvaluationSettings(problems=3, every=2),
        run=RunSettings(out=str(out), save_every=2, seed=7),
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


def untimed(run: Path) -> list[dict[str, object]]:
    """A run's metrics without times, speed and memory."""
    aside = ("time/", "perf/", "mem/")
    return [{k: v for k, v in row.items() if not k.startswith(aside)} for row in read_lines(run / "metrics.jsonl")]


def weights(run: Path) -> bytes:
    return (run / "final" / "hf" / "model.safetensors").read_bytes()


def assert_same_run(one: Path, other: Path) -> None:
    assert untimed(one) == untimed(other)
    assert weights(one) == weights(other)
    rollouts = sorted(path.name for path in one.glob("rollouts/*.jsonl.zst"))
    assert rollouts == sorted(path.name for path in other.glob("rollouts/*.jsonl.zst"))
    for name in rollouts:
        assert read_lines(one / "rollouts" / name) == read_lines(other / "rollouts" / name)


@pytest.mark.usefixtures("few_problems")
def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    for name in ("one", "other"):
        train(small_run(tmp_path / name), Launch())
    assert_same_run(tmp_path / "one", tmp_path / "other")
    train(small_run(tmp_path / "third", run=RunSettings(out=str(tmp_path / "third"), seed=8)), Launch())
    assert weights(tmp_path / "third") != weights(tmp_path / "one")


@pytest.mark.usefixtures("few_problems")
def test_a_run_is_resumed_as_itself_or_not_at_all(tmp_path: Path) -> None:
    """Other settings are refused by name, a longer horizon is not; without a checkpoint nothing recorded is erased."""
    run = tmp_path / "run"
    train(small_run(run), Launch())
    recorded = (run / "metrics.jsonl").read_bytes()
    other = small_run(run, sampling=SamplingSettings(problems_per_step=2, group_size=5, max_tokens=6))
    with pytest.raises(UsageError, match=r"sampling\.group_size: 3 -> 5"):
        train(other, Launch(resume=True))
    with pytest.raises(UsageError, match="already made 4 steps"):
        train(small_run(run, steps=2), Launch(resume=True))
    assert (run / "metrics.jsonl").read_bytes() == recorded
    train(small_run(run, steps=6), Launch(resume=True))
    assert max(int(str(row["step"])) for row in untimed(run)) == 6
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UsageError, match="no checkpoint to resume from"):
        train(small_run(run, steps=6), Launch(resume=True))
    assert len(read_lines(run / "metrics.jsonl")) > 6


@pytest.mark.usefixtures("few_problems")
def test_a_replaced_run_stays_until_the_new_one_stands(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_run(run), Launch())
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(ModelError):
        train(small_run(run, model=ModelSettings(name=str(run / "nowhere"))), Launch(overwrite=True))
    assert (run / "metrics.jsonl").read_bytes() == before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qed.loops.setup.load_run_problems", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(small_run(run), Launch(overwrite=True))
    assert (run / "metrics.jsonl").read_bytes() == before, "a bug of ours costs nobody his run either"
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "nothing is left beside it"
    train(small_run(run, steps=1), Launch(overwrite=True))
    assert max(int(str(row["step"])) for row in untimed(run)) == 1
    with pytest.raises(ModelError):
        train(small_run(tmp_path / "fresh", model=ModelSettings(name="no/where/to/be/found")), Launch())
    assert not (tmp_path / "fresh").exists(), "the corrected command can take the same folder"


@pytest.mark.usefixtures("few_problems")
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Cut after step 3, resumed from the checkpoint of step 2: metrics, rollouts and weights are those of the whole
    run."""
    train(small_run(tmp_path / "whole", steps=6), Launch())

    record = Phase.record

    def record_and_die(self: Phase, step: int, *rest: Any) -> None:
        record(self, step, *rest)
        if step == 3:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phase, "record", record_and_die)
        with pytest.raises(Killed):
            train(small_run(tmp_path / "cut", steps=6), Launch())
    train(small_run(tmp_path / "cut", steps=6), Launch(resume=True))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
