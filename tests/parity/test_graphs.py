"""A step that is captured and repeated writes what the step itself writes.

Without a device, a tape stands in for a CUDA graph: it notes the operations of a step and repeats them on the same
memory, as a graph does, whatever has become of the Python objects since, and refuses what would wait for a device.
"""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from making import VOCABULARY, make_model
from test_kept_prefixes import ENDS, sample_turns
from test_native_sampler import family
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qed.algorithms.grpo import Grpo
from qed.config.phases import Settings
from qed.config.sampling_settings import EvaluationSettings, SamplingSettings
from qed.config.settings import LearnerSettings, ModelSettings, RunSettings
from qed.loops.train import train
from qed.models.lora import add_adapters
from qed.randomness import derive_seed
from qed.runs.run import Launch, read_lines
from qed.sampling.base import Sampling, keep_prefixes
from qed.sampling.hf import HFSampler
from qed.sampling.native import cuda_graphs
from qed.sampling.native.cuda_decoder import CudaDecoder
from qed.sampling.native.cuda_graphs import Capture, GraphedDecoder
from qed.sampling.native.decoder import Decoder, LlamaDecoder
from qed.sampling.native.sampler import NativeSampler
from qed.sampling.native.sequences import Sequences
from qed.types import Completion

Step = Callable[[], Tensor]
WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique")


class Tape(TorchDispatchMode):
    """The operations of a step, to be repeated on the memory that they had."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().split(".")[0] in WAITING:
            raise RuntimeError(f"{func.name()} waits for the device")
        given = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        out = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves(out) if isinstance(one, Tensor)]  # the result of promote_types is none
        made = [one for one in tensors if one.untyped_storage().data_ptr() not in given]
        # A view of memory that was there already needs no repetition.
        if made or func._schema.is_mutable:
            self.noted.append((func, args, kwargs or {}, made))
        return out

    def repeat(self) -> None:
        for func, args, kwargs, made in self.noted:
            found = [one for one in tree_leaves(func(*args, **kwargs)) if isinstance(one, Tensor)]
            for place, one in zip(made, found if made else [], strict=True):
                place.copy_(one)


class Taping:
    """Captures steps on tapes, as `Capture` does on a device: what is computed while taping is spoiled, because a graph
    that was not replayed has computed nothing."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    def __call__(self, step: Step) -> Step:
        step()
        tape = Tape()
        with tape:
            logits = step()
        for _, _, _, made in tape.noted:
            for one in made:
                one.fill_(99)
        self.tapes.append(tape)

        def replay() -> Tensor:
            tape.repeat()
            return logits

        return replay


@pytest.fixture
def taping(monkeypatch: pytest.MonkeyPatch) -> Taping:
    """Makes samplers repeat taped steps, and close up as on a device."""
    capture = Taping()

    def graphed(decoder: Decoder, device: torch.device, refuse: Callable[[str], None]) -> Decoder:
        assert isinstance(decoder, LlamaDecoder)
        return GraphedDecoder(decoder, capture, refuse)

    monkeypatch.setattr("qed.sampling.native.batch.with_cuda_graphs", graphed)
    monkeypatch.setattr("qed.sampling.native.batch.COMPACT_SHARE", {"cpu": 2})
    # As on a device.
    monkeypatch.setattr("qed.sampling.native.projection.can_pack", lambda _: False)
    monkeypatch.setattr("qed.sampling.native.projection.has_product", lambda _: False)
    monkeypatch.setattr("qed.sampling.native.projection.has_tile_products", lambda: False)
    for module in ("models.precision", "sampling.native.projection"):
        monkeypatch.setattr(f"qed.{module}.lacks_bfloat16", lambda: False)
    monkeypatch.setattr("qed.sampling.native.decoders.can_compile", lambda _: False)
    return capture


def asked(longest: int, most: int) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    source = random.Random(4)
    prompts = [tuple(source.randrange(2, VOCABULARY) for _ in range(source.randint(1, longest))) for _ in range(7)]
    return prompts, [[derive_seed("graph", which, n) for n in range(source.choice([1, most]))] for which in range(7)]


def alike(found: Sequence[Sequence[Completion]], expected: Sequence[Sequence[Completion]]) -> None:
    for own, other in zip(found, expected, strict=True):
        assert [one.tokens for one in own] == [two.tokens for two in other]
        assert [one.logps for one in own] == [pytest.approx(two.logps, abs=1e-5) for two in other]


@pytest.mark.parametrize("name", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize(("rows", "shared"), [(128, 1), (7, 1), (128, 999), (7, 999)])
def test_it_writes_what_the_reference_writes(
    name: str, rows: int, shared: int, taping: Taping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows come and leave, with prompts that are shared and with prompts that are copied."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    model, (prompts, seeds), sampling = family(name), asked(25, 6), Sampling(1.0, 15)
    sampler = NativeSampler(model, None, ends=(1, 2), rows_per_batch=rows)
    expected = HFSampler(model, None, ends=(1, 2)).generate(prompts, seeds, sampling)
    found = sampler.generate(prompts, seeds, sampling)
    assert sampler.without_graphs is None
    assert taping.tapes
    alike(found, expected)


@pytest.mark.parametrize("shared", [1, 999])
def test_answers_go_on_in_place(shared: int, taping: Taping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows that are done are looked for now and then, and repeated until they are."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    monkeypatch.setattr("qed.sampling.native.batch.CHECK_EVERY", {"cpu": 8})
    model, sampling = make_model(initializer_range=0.5), Sampling(1.0, 40)
    expected = sample_turns(HFSampler(model, None, ENDS), sampling)
    sampler = NativeSampler(model, None, ENDS, rows_per_batch=8)
    with keep_prefixes(sampler):
        found = sample_turns(sampler, sampling)
        assert sampler.kept is not None
        assert sampler.kept.tokens
    assert taping.tapes
    for one, other in zip(found, expected, strict=True):
        alike(one, other)


@pytest.fixture
def _memory_holds_no_numbers() -> Iterator[None]:
    """What is allocated and not written is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_memory_holds_no_numbers")
def test_a_step_of_fixed_shapes_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same logits to rounding, step by step, whatever lies in columns that are not in use."""

    class Both(LlamaDecoder):
        steps = 0

        def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
            other, positions = deepcopy(rows), rows.prompt_lens + rows.output_lens - 1
            column = torch.tensor([rows.used])
            logits = super().__call__(rows, last)
            other.reserve(rows.used + 37)
            torch.testing.assert_close(
                self.step_in_place(other, last, positions, column), logits, rtol=1e-11, atol=1e-11
            )
            other.commit_slot()
            for one, two in zip(other.cache.layers, rows.cache.layers, strict=True):
                assert one.used == two.used
                torch.testing.assert_close(one.keys[:, :, : one.used], two.keys[:, :, : two.used])
                torch.testing.assert_close(one.values[:, :, : one.used], two.values[:, :, : two.used])
            Both.steps += 1
            return logits

    for shared in (1, 999):
        monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
        monkeypatch.setattr("qed.sampling.native.batch.choose_decoder", Both)
        prompts, seeds = asked(30, 4)
        # Norms and rotations of transformers' models are float32; here they are the same ones on both sides.
        NativeSampler(family("qwen3"), None, ends=(1, 2), rows_per_batch=9).generate(prompts, seeds, Sampling(1.0, 12))
    assert Both.steps > 30


def test_rows_that_stay_are_captured_once_for_so_many_columns(taping: Taping) -> None:
    """Prompts of 2 and answers of 90 tokens: once with 64 columns, and once with 128."""
    prompts, seeds, model = [(3, 4), (5, 6)], [[1, 2, 3], [4]], make_model()
    expected = HFSampler(model, None, ends=(99,)).generate(prompts, seeds, Sampling(1.0, 90))
    alike(NativeSampler(model, None, ends=(99,)).generate(prompts, seeds, Sampling(1.0, 90)), expected)
    assert len(taping.tapes) == 2


@pytest.mark.parametrize(
    ("used", "answer", "shared", "columns"),
    [(0, 90, True, 128), (0, 2000, True, 512), (700, 2000, True, 1408), (1500, 2000, True, 2048), (30, 90, False, 128)],
)
def test_columns_that_are_not_read_are_allocated_ahead(used: int, answer: int, shared: bool, columns: int) -> None:
    """At most as many as the longest answer needs, with its prompt where that is not shared."""
    prefix = object() if shared else None
    lengths = torch.tensor([20, 30])
    rows = SimpleNamespace(used=used, tokens=torch.zeros(2, answer + 1), shared_prefix=prefix, prompt_lens=lengths)
    decoder = object.__new__(CudaDecoder)
    assert cuda_graphs._choose_columns(decoder, rows) == columns  # type: ignore[arg-type]
    least = used + 1 + (used + 1) // cuda_graphs.GROW
    assert cuda_graphs._choose_columns(object.__new__(LlamaDecoder), rows) == -(-least // 64) * 64  # type: ignore[arg-type]


def test_a_capture_that_finds_too_little_memory_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the cache was freed, for which there is no need before; other errors are raised."""
    noted: list[str] = []
    failures: list[Exception] = []

    class Graph:
        def capture_begin(self, *_: Any, **__: Any) -> None:
            noted.append("begin")

        def capture_end(self) -> None:
            noted.append("end")

        def replay(self) -> None:
            noted.append("replay")

    def step() -> Tensor:
        if noted and noted[-1] == "begin" and failures:
            raise failures.pop()
        return torch.ones(1)

    stream = SimpleNamespace(wait_stream=lambda _: None)
    stand_ins = {"current_stream": lambda _: stream, "stream": lambda _: nullcontext(), "CUDAGraph": Graph}
    stand_ins |= {"graph_pool_handle": lambda: None, "empty_cache": lambda: noted.append("empty")}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(cuda_graphs, "_side_stream", lambda _: stream)
    monkeypatch.setattr(cuda_graphs, "_forbid_synchronization", nullcontext)
    capture = cuda_graphs.Capture(torch.device("cpu"))
    assert capture(step)().item() == 1
    assert noted == ["begin", "end", "replay"]
    noted.clear()
    failures.append(torch.OutOfMemoryError("CUDA out of memory"))
    assert capture(step)().item() == 1
    assert noted == ["begin", "end", "empty", "begin", "end", "replay"]
    failures.append(RuntimeError("not in a capture"))
    with pytest.raises(RuntimeError, match="not in a capture"):
        capture(step)
    assert gc.isenabled()


def test_trained_weights_are_cast_before_a_capture(taping: Taping) -> None:
    """A cast made while capturing would be handed to later steps, though it holds nothing before a replay; without
    autocast's memory of casts every step would make them all again."""
    model, (prompts, seeds) = make_model(dtype=torch.float32), asked(9, 6)
    frozen = model.model.layers[0].mlp.down_proj.weight.requires_grad_(False)
    sampler = NativeSampler(model, None, ends=(1,), rows_per_batch=8, precision=torch.bfloat16)
    sampler.generate(prompts, seeds, Sampling(1.0, 9))
    cast = [
        args[0].data_ptr()
        for tape in taping.tapes
        for func, args, _, _ in tape.noted
        if func.name() == "aten::_to_copy" and args[0].shape == frozen.shape
    ]
    assert len(taping.tapes) > 1
    assert cast == [frozen.data_ptr()] * len(taping.tapes)


def test_adapters_are_part_of_it(taping: Taping) -> None:
    model = add_adapters(make_model(dtype=torch.float32), ModelSettings(lora_rank=2), seed=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    prompts, seeds = asked(9, 6)
    expected = HFSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 12))
    alike(NativeSampler(model, None, ends=(1,)).generate(prompts, seeds, Sampling(1.0, 12)), expected)
    assert taping.tapes


def test_a_module_that_waits_is_asked_directly(taping: Taping) -> None:
    """Its answers are the same, the sampler knows why, and does not try again."""

    class Waiting(torch.nn.Linear):
        def forward(self, states: Tensor) -> Tensor:
            return super().forward(states) if float(states.sum()) < 1e9 else states

    model, (prompts, seeds), sampling = make_model(), asked(9, 6), Sampling(1.0, 12)
    model.model.layers[1].mlp.down_proj.__class__ = Waiting
    expected = HFSampler(model, None, ends=(1,)).generate(prompts, seeds, sampling)
    sampler = NativeSampler(model, None, ends=(1,), rows_per_batch=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alike(sampler.generate(prompts, seeds, sampling), expected)
    assert sampler.without_graphs == "RuntimeError: aten::_local_scalar_dense waits for the device"
    sampler.disable_graphs("it is known already")
    alike(sampler.generate(prompts, seeds, sampling), expected)
    assert (sampler.without_graphs, taping.tapes) == ("it is known already", [])


def test_a_capture_without_memory_is_made_again_for_fewer_rows(taping: Taping, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("Triton Error [CUDA]: out of memory")]
    original = Taping.__call__

    def capture(self: Taping, step: Step) -> Step:
        if failures:
            raise failures.pop()
        return original(self, step)

    monkeypatch.setattr(Taping, "__call__", capture)
    model, (prompts, seeds), sampling = make_model(), asked(9, 6), Sampling(1.0, 12)
    sampler = NativeSampler(model, None, ends=(1,), rows_per_batch=8)
    found = sampler.generate(prompts, seeds, sampling)
    alike(found, HFSampler(model, None, ends=(1,)).generate(prompts, seeds, sampling))
    assert (sampler.rows_per_batch, sampler.without_graphs, failures) == (2, None, [])
    assert taping.tapes


def test_a_run_notes_once_why_it_makes_no_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(step: Step) -> Step:
        try:
            raise ValueError("not in a capture")
        finally:
            raise RuntimeError("the capture was spoilt")  # as the end of a capture does

    monkeypatch.setattr(
        "qed.sampling.native.batch.with_cuda_graphs",
        lambda decoder, _, refuse: GraphedDecoder(decoder, spoilt, refuse),
    )
    settings = Settings(
        method="grpo",
        algorithm=Grpo(kl=0.1),
        sampling=SamplingSettings(problems_per_step=2, group_size=2, max_tokens=4),
        learner=LearnerSettings(steps=2),
        evaluation=EvaluationSettings(problems=1),
        run=RunSettings(out=str(tmp_path / "run")),
    )
    train(settings, Launch())
    events = read_lines(tmp_path / "run" / "events.jsonl")
    reasons = [event["reason"] for event in events if event["event"] == "sampler_without_graphs"]
    assert reasons == ["ValueError: not in a capture"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", [1, 999])
def test_on_a_device_graphs_write_what_steps_write(
    precision: torch.dtype, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured anew as rows come and leave, in two calls, between which the weights change where they lie."""
    monkeypatch.setattr("qed.sampling.native.sampler.SHARED_FROM", shared)
    model, (prompts, seeds) = make_model(dtype=torch.float32).cuda(), asked(25, 16)
    graphs, steps = (NativeSampler(model, None, (1, 2), 24, precision) for _ in range(2))
    steps.disable_graphs("the other side of the comparison")
    captured = []
    original = Capture.__call__
    monkeypatch.setattr(Capture, "__call__", lambda *args: (captured.append(args), original(*args))[1])
    for _ in range(2):
        expected, found = (one.generate(prompts, seeds, Sampling(1.0, 90)) for one in (steps, graphs))
        assert graphs.without_graphs is None
        pairs = zip(chain(*found), chain(*expected), strict=True)
        same = [one.tokens == two.tokens for one, two in pairs]
        # Attention over more columns may be rounded otherwise, which bfloat16 shows now and then.
        assert sum(same) >= (1 if precision == torch.float32 else 0.8) * len(same)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)
    assert len(captured) > 2
