"""The engine's process samples what a sampler in this process samples, takes new weights whole, and survives requests.

All tests of the file share one process, and one that is killed in the end.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from qed.config.settings import ModelSettings
from qed.errors import ModelError, QedError, UsageError
from qed.models.load import build_model, load_model
from qed.models.save import save_model
from qed.models.weights_folder import MARKER
from qed.randomness import derive_seed
from qed.sampling.base import PromptBatch, Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.batch import DecodingBatch
from qed.sampling.native.sampler import NativeSampler
from qed.serving import engine_answers
from qed.serving.engine import Engine
from qed.serving.engine_answers import Answers
from qed.serving.engine_jobs import Counts
from qed.serving.engine_loop import READY, run_engine
from qed.serving.engine_model import EngineModel
from qed.serving.messages import (
    AnswerAborted,
    Batch,
    EngineDied,
    Generation,
    ModelSource,
    PauseTimeout,
    Progress,
    Scoring,
)
from qed.training.scoring import score_with
from qed.types import Completion, Problem, Rollout

TEXTS = ["What is 3 + 4? The answer is 7.", "Name the letters: a b c d e f g."] * 20
ENDS = (3, 20, 21)  # several, so that answers have many lengths
ROWS = 16
LIMIT = 48  # tokens from which on the second model's RoPE changes, so that only the hf sampler samples it
WINDOW = 100_000  # so that an answer can be longer than any test waits
WHOLE = "model.safetensors"
SECONDS = 60.0

Result = TypeVar("Result")


def build_batch(*given: Any) -> Batch:
    return Batch([PromptBatch(*given)])


@dataclass
class Served:
    """A running engine, and a model of this process with the same weights."""

    runner: asyncio.Runner
    engine: Engine
    folder: Path
    twin: Any
    tokenizer: Any
    exits: list[str] = field(default_factory=list)

    def run(self, work: Awaitable[Result]) -> Result:
        async def limited() -> Result:
            async with asyncio.timeout(SECONDS):
                return await work

        return self.runner.run(limited())

    def generate(self, generation: Generation) -> list[Progress]:
        return self.run(collect(self.engine, generation))

    def sample_here(self, batch: Batch, ends: tuple[int, ...] = ENDS) -> list[list[Completion]]:
        sampler = NativeSampler(self.twin, self.tokenizer, ends, ROWS)
        rows = chain.from_iterable(sampler.generate_batches(batch.parts))
        return [[replace(each, version=self.engine.version) for each in own] for own in rows]

    def write(self, name: str, seed: int, version: int) -> Path:
        """Write a complete folder of random weights."""
        model, _ = build_model("new:tiny", TEXTS, seed)
        folder = self.folder.parent / name
        save_model(model, self.tokenizer, folder)
        (folder / MARKER).write_text(json.dumps({"version": version, "format": "full"}))
        return folder


async def collect(engine: Engine, generation: Generation) -> list[Progress]:
    return [progress async for progress in engine.generate(generation)]


def prepare(runner: asyncio.Runner, folder: Path, rope: dict[str, Any] | None = None) -> Served:
    model, tokenizer = build_model("new:tiny", TEXTS, 0)
    if rope is not None:
        model.config.rope_parameters = {**model.config.rope_parameters, **rope}
    model.config.max_position_embeddings = WINDOW
    save_model(model, tokenizer, folder)
    settings, exits = ModelSettings(name=str(folder), device="cpu"), list[str]()
    source = ModelSource(settings, rows_per_batch=ROWS, threads=torch.get_num_threads(), ends=ENDS)
    twin, _ = load_model(settings)
    return Served(runner, Engine(source, exits.append), folder, twin, tokenizer, exits)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """A running engine, and one of a model with a changing RoPE."""
    folder = tmp_path_factory.mktemp("engines")
    rope = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": LIMIT}
    with asyncio.Runner() as runner:
        one, other = prepare(runner, folder / "model"), prepare(runner, folder / "rope", rope)

        async def start() -> None:
            await asyncio.gather(one.engine.start(SECONDS), other.engine.start(SECONDS))

        runner.run(start())
        yield one, other
        runner.run(one.engine.stop())
        runner.run(other.engine.stop())


@pytest.fixture
def served(engines: tuple[Served, Served]) -> Served:
    return engines[0]


def ask(count: int, longest: int = 30) -> tuple[list[list[int]], list[list[int]]]:
    source = random.Random(count)
    prompts = [[source.randrange(4, 90) for _ in range(source.randint(1, longest))] for _ in range(count)]
    return prompts, [[derive_seed("engine", which, n) for n in range(source.randint(1, 4))] for which in range(count)]


def test_it_describes_its_model(served: Served) -> None:
    info = served.engine.info
    assert (info.window, info.ends, info.device) == (WINDOW, ENDS, "cpu")
    assert (info.exact_logps, info.handed_over) == (True, None)
    assert info.threads == torch.get_num_threads()
    assert info.parameters == sum(each.numel() for each in served.twin.parameters())


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    settings = ModelSettings(name=str(tmp_path / "nothing"), device="cpu")
    ours.send(ModelSource(settings, threads=torch.get_num_threads()))
    run_engine(theirs)
    ((call, failure),) = ours.recv()
    assert (call, failure.kind) == (READY, ModelError.__name__)
    assert "There is no model folder" in failure.message


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, 60),
        Sampling(0.0, 30),
        Sampling(0.8, 40, stop=("a", "er"), top_p=0.9, top_k=20, min_p=0.01, min_tokens=3, record=True),
    ],
)
def test_a_batch_has_the_bits_of_this_process(served: Served, sampling: Sampling) -> None:
    """Tokens, log-probs, supports and stop reasons, beside other answers that are sampled meanwhile."""
    prompts, seeds = ask(9)
    given = [min(2, len(prompt) - 1) for prompt in prompts]
    steps: list[int] = []

    async def run() -> list[list[list[Completion]]]:
        batches = (build_batch(prompts, seeds, sampling), build_batch(prompts, seeds, sampling, given))
        work = [served.engine.batch(batch, steps.append) for batch in batches]
        aside = [collect(served.engine, Generation(prompts[0], seed, Sampling(1.0, 50))) for seed in range(3)]
        whole, continued, *_ = await asyncio.gather(*work, *aside)
        return [whole, continued]

    found = served.run(run())
    assert found[0] == served.sample_here(build_batch(prompts, seeds, sampling))
    assert found[1] == served.sample_here(build_batch(prompts, seeds, sampling, given))
    assert steps


def test_answers_of_many_clients_are_those_of_calls_of_their_own(served: Served) -> None:
    """With different parameters, in pieces or whole; more of them than rows."""
    prompts, _ = ask(30)
    kinds = [
        Sampling(1.0, 40),
        Sampling(0.0, 20),
        Sampling(0.7, 30, top_p=0.9),
        Sampling(1.0, 50, stop=("a",), min_tokens=4),
        Sampling(1.2, 8, top_k=10, min_p=0.02),
    ]
    asked = [
        Generation(prompt, number, kinds[number % 5], top_logps=number % 3, stream=number % 2 == 0)
        for number, prompt in enumerate(prompts)
    ]

    async def run() -> list[list[Progress]]:
        return await asyncio.gather(*(collect(served.engine, each) for each in asked))

    for generation, pieces in zip(asked, served.run(run()), strict=True):
        ((alone,),) = served.sample_here(build_batch([generation.prompt], [[generation.seed]], generation.sampling))
        tokens = [token for piece in pieces for token in piece.tokens]
        assert tokens == list(alone.tokens)
        logps = [logp for piece in pieces for logp in piece.logps]
        assert logps == pytest.approx(list(alone.logps), abs=1e-4)
        assert [piece.stop_reason for piece in pieces] == [None] * (len(pieces) - 1) + [alone.stop_reason]
        assert {piece.version for piece in pieces} == {served.engine.version}
        top = [each for piece in pieces for each in piece.top]
        assert [len(each) for each in top] == [generation.top_logps] * len(tokens) * (generation.top_logps > 0)
        assert generation.stream or len(pieces) == 1


def test_an_answer_may_bring_its_own_ends(served: Served) -> None:
    (endless,) = served.generate(Generation([5, 6], 1, Sampling(1.0, 200), ends=()))
    assert (len(endless.tokens), endless.stop_reason) == (200, "length")
    first = endless.tokens[7]
    assert served.generate(Generation([5, 6], 1, Sampling(1.0, 200), ends=(first,)))[0].tokens[-1] == first


@pytest.mark.parametrize(
    ("generation", "wanted"),
    [
        (Generation([], 0, Sampling(1.0, 5)), "no token"),
        (Generation([5] * 500, 0, Sampling(1.0, WINDOW)), f"{WINDOW:,} of the model's window"),
        (Generation([5, 99999], 0, Sampling(1.0, 5)), "outside of the model's vocabulary"),
        (Generation([5, -1], 0, Sampling(1.0, 5)), "outside of the model's vocabulary"),
        (Generation([5], 0, Sampling(1.0, 0)), "max_tokens must be at least 1"),
        (Generation([5], 2**63, Sampling(1.0, 5)), "64 bits"),
        (Generation([5], 0, Sampling(math.nan, 5)), "temperature"),
        (Generation([5], 0, Sampling(1.0, 5, top_p=0.0)), "top_p"),
        (Generation([5], 0, Sampling(1.0, 5, stop=("",))), "stop string"),
        (Generation([5], 0, Sampling(1.0, 5), ends=(99999,)), "end tokens"),
    ],
)
def test_what_cannot_be_sampled_is_refused(served: Served, generation: Generation, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        served.generate(generation)


def test_a_step_that_fails_ends_its_answers_and_no_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory has run out, they are sampled again with fewer rows; what was sent of one is not taken back."""
    sent: dict[int, list[Any]] = {number: [] for number in range(5)}
    model = EngineModel(served.engine.source)
    nothing = {"on_hf_step": lambda: None}
    answers = Answers(model, Counts(), *(lambda call, reply: sent[call].append(reply) for _ in range(2)), **nothing)
    errors: list[Exception] = [RuntimeError("shapes differ"), torch.OutOfMemoryError("no")]
    step = DecodingBatch.step

    def fail(batch: DecodingBatch) -> None:
        if batch.steps == 3 and errors:
            raise errors.pop(0)
        step(batch)

    monkeypatch.setattr(DecodingBatch, "step", fail)
    monkeypatch.setattr(engine_answers, "STREAM_SECONDS", 0.0)  # else fast steps have sent nothing when one fails
    answers.add(0, Generation([5], 0, Sampling(1.0, 9)))
    while not sent[0]:
        answers.advance(True)
    assert str(sent[0][0]) == "shapes differ"
    for number in range(1, 5):
        answers.add(number, Generation([5, number], number, Sampling(1.0, 9), stream=number == 1, ends=()))
    while answers.waiting or answers.running:
        answers.advance(True)
    assert (errors, answers.rows) == ([], 2)
    assert isinstance(sent[1][-1], torch.OutOfMemoryError)
    for number in range(2, 5):
        (whole,) = sent[number]
        ((alone,),) = served.sample_here(build_batch([[5, number]], [[number]], Sampling(1.0, 9)), ())
        assert list(whole.tokens) == list(alone.tokens)


LONG = Generation([5, 6, 7], 3, Sampling(1.0, 500), stream=True, ends=())
ENDLESS = replace(LONG, sampling=Sampling(1.0, WINDOW - 10))


def test_an_answer_that_nobody_waits_for_is_aborted(served: Served) -> None:
    async def run() -> None:
        before = await served.engine.read_stats()
        async with aclosing(served.engine.generate(ENDLESS)) as pieces:
            assert (await anext(pieces)).stop_reason is None
            assert (await served.engine.read_stats()).running == 1
        stats = await served.engine.read_stats()
        assert (stats.running, stats.aborted - before.aborted) == (0, 1)
        seeds = [[*range(16)]]  # so many that they have not all ended before they are cancelled
        task = asyncio.create_task(served.engine.batch(build_batch([[5]], seeds, Sampling(1.0, 5000))))
        while not (await served.engine.read_stats()).running:
            assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stats = await served.engine.read_stats()
        assert (stats.running, stats.aborted - before.aborted) == (0, 2)

    served.run(run())


def test_a_pause_waits_or_aborts(served: Served) -> None:
    """While it is paused, answers wait, and it still scores and answers checks."""
    engine = served.engine

    async def run() -> None:
        running = asyncio.create_task(collect(engine, ENDLESS))
        while not (await engine.read_stats()).running:
            assert not running.done()
        with pytest.raises(PauseTimeout):
            await engine.pause("wait", 0)
        assert not (await engine.read_stats()).paused
        await engine.pause("abort", 0)
        with pytest.raises(AnswerAborted):
            await running
        waiting = asyncio.create_task(collect(engine, Generation([5], 1, Sampling(1.0, 5))))
        batch = asyncio.create_task(engine.batch(build_batch([[5]], [[1]], Sampling(1.0, 5))))
        await engine.check(SECONDS)
        await engine.score(Scoring([[5]], [[6]]))
        stats = await engine.read_stats()
        assert (stats.paused, stats.running, stats.waiting) == (True, 0, 2)
        await engine.pause("wait", 0)
        await engine.resume()
        assert (await waiting)[-1].stop_reason is not None
        assert await batch
        finite = asyncio.create_task(collect(engine, replace(LONG, sampling=Sampling(1.0, 400))))
        while not (await engine.read_stats()).running:  # a pause does not wait for what has not begun
            assert not finite.done()
        await engine.pause("wait", SECONDS)
        assert len([token for piece in await finite for token in piece.tokens]) == 400
        await engine.resume()

    served.run(run())


def test_it_sleeps_and_wakes(served: Served) -> None:
    engine = served.engine

    async def run() -> None:
        await engine.sleep()
        waiting = asyncio.create_task(collect(engine, Generation([5], 1, Sampling(1.0, 5))))
        assert (await engine.read_stats()).asleep
        with pytest.raises(QedError, match="asleep"):
            await engine.score(Scoring([[5]], [[6]]))
        assert not waiting.done()
        await engine.wake()
        assert await waiting

    served.run(run())


def score_here(served: Served, scoring: Scoring) -> list[tuple[float, ...]]:
    rows = [
        Rollout(Problem("", "", ""), prompt, output, (0.0,) * len(output), "", "stop")
        for prompt, output in zip(scoring.prompts, scoring.outputs, strict=True)
    ]
    return score_with(served.twin, scoring.temperature)(rows, torch.float32)


def test_scores_are_the_learners(served: Served) -> None:
    prompts, _ = ask(5)
    scoring = Scoring(prompts, [[4, 5, 6], [7], [8, 9], [10], [11]], 0.7, top_logps=2)
    found = served.run(served.engine.score(scoring))
    assert [each.logps for each in found] == score_here(served, scoring)
    assert [len(each.top) for each in found] == [3, 1, 2, 1, 1]
    likely = served.run(served.engine.score(replace(scoring, outputs=[[row.top[0][0][0]] for row in found])))
    for first, own in zip(found, likely, strict=True):
        assert own.logps[0] == pytest.approx(first.top[0][0][1], abs=1e-5)
    assert served.run(served.engine.score(Scoring([[5]], [[]])))[0].logps == ()
    with pytest.raises(UsageError, match="must be at least 1e-6"):
        served.run(served.engine.score(Scoring([[5]], [[6]], 0.0)))


def hurt(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WHOLE)
        change(tensors)
        save_file(tensors, folder / WHOLE)

    return apply


LAST = "model.layers.1.mlp.up_proj.weight"
WRONG = {
    "no file COMPLETE": lambda folder: (folder / MARKER).unlink(),
    "cannot be read": lambda folder: (folder / MARKER).write_text("{"),
    "names the format": lambda folder: (folder / MARKER).write_text('{"version": 77, "format": "half"}'),
    "version 76": lambda folder: (folder / MARKER).write_text('{"version": 76, "format": "full"}'),
    "lacks the weight": hurt(lambda tensors: tensors.pop(LAST)),
    "has the shape": hurt(lambda tensors: tensors.update({LAST: tensors[LAST][:5].clone()})),
    "not finite": hurt(lambda tensors: tensors[LAST].view(-1)[3].fill_(torch.nan)),
    "weights in .* cannot be read": lambda folder: os.truncate(folder / WHOLE, 5000),
    "no safetensors weights": lambda folder: (folder / WHOLE).unlink(),
}


@pytest.mark.parametrize("wanted", WRONG)
def test_weights_that_do_not_fit_change_nothing(served: Served, wanted: str) -> None:
    engine, version = served.engine, served.engine.version
    folder = served.write(f"wrong {list(WRONG).index(wanted)}", 7, 77)
    WRONG[wanted](folder)
    scoring = Scoring([[5, 6, 7]], [[8, 9, 10, 11]])
    with pytest.raises(ModelError, match=wanted):
        served.run(engine.update(folder, 77))
    assert engine.version == version
    assert [each.logps for each in served.run(engine.score(scoring))] == score_here(served, scoring)


def test_every_answer_is_of_one_version(served: Served) -> None:
    """One that runs while new weights come ends with the old ones; the next has the bits of the new ones."""
    engine, before = served.engine, served.engine.version
    folder = served.write("new weights", 5, before + 1)

    async def run() -> list[Progress]:
        running = asyncio.create_task(collect(engine, LONG))
        while not (await engine.read_stats()).running:
            assert not running.done()
        update = asyncio.create_task(engine.update(folder, before + 1))
        later = asyncio.create_task(collect(engine, replace(LONG, sampling=Sampling(1.0, 5))))
        pieces = await running
        await update
        assert {piece.version for piece in await later} == {before + 1}
        return pieces

    old = served.run(run())
    batch = build_batch([LONG.prompt], [[LONG.seed]], LONG.sampling)
    assert [token for piece in old for token in piece.tokens] == list(served.sample_here(batch, ())[0][0].tokens)
    assert {piece.version for piece in old} == {before}
    assert engine.version == before + 1
    served.twin, _ = load_model(ModelSettings(name=str(folder)))
    prompts, seeds = ask(4)
    fresh = build_batch(prompts, seeds, Sampling(1.0, 30))
    assert served.run(engine.batch(fresh)) == served.sample_here(fresh)


def test_the_hf_sampler_takes_over_and_a_dead_process_is_told(engines: tuple[Served, Served], served: Served) -> None:
    """Answers beyond the length at which RoPE changes are sampled by `model.generate`, together and beside others."""
    other = engines[1]
    prompts = [[5, 6, 7], [8, 9], [10]]
    asked = [
        Generation(prompt, number, Sampling(1.0, tokens), top_logps=1)
        for number, (prompt, tokens) in enumerate(zip(prompts * 2, (20, 20, 60, 60, 60, 60), strict=True))
    ]

    async def run() -> Any:
        batch = build_batch(prompts, [[1]] * 3, Sampling(1.0, 60))
        answers = (collect(other.engine, each) for each in asked)
        found = await asyncio.gather(other.engine.batch(batch), other.engine.check(SECONDS), *answers)
        return found[0], found[2:]

    batch, answers = other.run(run())
    reference = HFSampler(other.twin, other.tokenizer, ENDS)
    expected = reference.generate(prompts, [[1]] * 3, Sampling(1.0, 60))
    assert [own[0].tokens for own in batch] == [own[0].tokens for own in expected]
    for generation, (answer,) in zip(asked, answers, strict=True):
        ((alone,),) = reference.generate([generation.prompt], [[generation.seed]], generation.sampling)
        assert list(answer.tokens) == list(alone.tokens)
        assert len(answer.top) == len(answer.tokens)

    async def kill() -> list[Any]:
        engine, busy = other.engine, replace(LONG, sampling=Sampling(1.0, 40))
        work = [collect(engine, each) for each in (LONG, busy)]
        work += [engine.batch(build_batch([[5]], [[1]], Sampling(1.0, 500)))]
        tasks = [asyncio.create_task(each) for each in work]
        while not (await engine.read_stats()).running:
            assert not tasks[0].done()
        os.kill(engine.info.process, signal.SIGKILL)
        return await asyncio.gather(*tasks, return_exceptions=True)

    died = other.run(kill())
    assert [type(error) for error in died] == [EngineDied] * 3
    assert "SIGKILL" in str(died[0])
    assert not other.engine.alive
    assert [("SIGKILL" in reason) for reason in other.exits] == [True]
    with pytest.raises(EngineDied, match="is not running: it was killed by SIGKILL"):
        other.generate(Generation([5], 1, Sampling(1.0, 5)))
    other.run(other.engine.stop())
    with pytest.raises(EngineDied, match="is stopping"):
        other.generate(Generation([5], 1, Sampling(1.0, 5)))
    assert served.engine.alive
    assert served.exits == []


PARENT = """
import asyncio, sys
from qed.config.settings import ModelSettings
from qed.serving.engine import Engine
from qed.serving.messages import ModelSource

async def run():
    info = await Engine(ModelSource(ModelSettings(name=sys.argv[1], device="cpu"), threads=1)).start()
    print(info.process, flush=True)
    await asyncio.sleep(600)

asyncio.run(run())
"""


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_process_ends_with_its_parent(served: Served) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(served.folder)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        assert Path(f"/proc/{process}").exists()
        parent.kill()
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{process}/exe").exists():
        assert time.monotonic() < deadline
