"""Attention of a packed row, by spans and by blocks, is that of each row alone, and builds no large mask."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_model
from test_packing import families, rows_with_shared_prompts
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from qed.models.families import split_head
from qed.models.segments import Segment, compute_visible
from qed.training import attention, block_attention, spans
from qed.training.attention import Shape, choose_attention, compute_packed_states, list_faults
from qed.training.block_attention import BLOCK, attend_blocks, build_block_mask, count_visible_pairs
from qed.training.logps import compute_logps
from qed.training.packing import pack_batch
from qed.training.spans import attend_spans, build_spans

CPU = torch.device("cpu")
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# Layers read windows by their own settings; the second is shorter than most segments.
WINDOWS = (None, 5, 40)


@pytest.fixture(autouse=True)
def no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test finds about a kernel is not known to another."""
    monkeypatch.setattr(attention, "_FAULTS", {})


def join(rows: Sequence[tuple[int, Sequence[int]]]) -> tuple[Segment, ...]:
    """Segments of prompts and the answers to each; a prompt without answers is a row alone."""
    segments: list[Segment] = []
    end = 0
    for prompt, answers in rows:
        start = end
        segments.append(Segment(start, prompt))
        end += prompt
        for answer in answers:
            segments.append(Segment(end, answer, start, prompt))
            end += answer
    return tuple(segments)


def compute_dense_mask(segments: Sequence[Segment], window: int | None) -> Tensor:
    """Which inputs see which, [N, N], from the rows that the inputs of the packed row stand for."""
    seen = torch.zeros(2 * [sum(segment.length for segment in segments)], dtype=torch.bool)
    for start, length, prompt, prompt_length in segments:
        row = [*range(prompt, prompt + prompt_length), *range(start, start + length)]
        for position, place in enumerate(row):
            if place >= start:
                first = 0 if window is None else max(0, position - window + 1)
                seen[place, row[first : position + 1]] = True
    return seen


layouts = st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(1, 30), max_size=3)), min_size=1, max_size=4).map(
    join
)
windows = st.one_of(st.none(), st.integers(1, 40))


def draw_states(segments: Sequence[Segment], **made: Any) -> list[Tensor]:
    """Queries of 4 heads, keys and values of 2, [1, heads, N, 32]."""
    source = torch.Generator().manual_seed(0)
    count = sum(segment.length for segment in segments)
    drawn = [torch.randn(1, heads, count, 32, generator=source).to(**made) for heads in (4, 2, 2)]
    return [states.requires_grad_() for states in drawn]


def attend_by_spans(segments: Sequence[Segment], states: Sequence[Tensor], window: int | None) -> Tensor:
    """The attention of a packed row, [N, heads, D]."""
    device = states[0].device
    built, order = build_spans(segments, device)
    queries, keys, values = (one[0].transpose(0, 1) for one in states)
    return attend_spans(built, queries, keys, values, 0.3, window)[order]


def attend_densely(segments: Sequence[Segment], states: Sequence[Tensor], window: int | None) -> Tensor:
    mask = compute_dense_mask(segments, window).to(states[0].device)
    attended = scaled_dot_product_attention(*states, attn_mask=mask, scale=0.3, enable_gqa=True)
    return attended[0].transpose(0, 1)


@given(segments=layouts, window=windows)
def test_what_an_input_sees_is_two_intervals(segments: tuple[Segment, ...], window: int | None) -> None:
    visible = compute_visible(segments, window, CPU)
    key = torch.arange(len(visible.own))
    own = (key >= visible.own[:, None]) & (key <= key[:, None])
    prompt = (key >= visible.prompt[:, None]) & (key < visible.prompt_end[:, None])
    assert torch.equal(own | prompt, compute_dense_mask(segments, window))


@pytest.mark.parametrize("window", [None, 70, 260])
def test_a_block_mask_has_the_blocks_with_visible_pairs(window: int | None) -> None:
    """Of a row of eight blocks, the last one cut short; full blocks need no mask, and no other is skipped."""
    segments = join([(150, [110, 70]), (600, []), (3, [50, 1, 2])])
    dense = compute_dense_mask(segments, window)
    count = len(dense)
    mask = build_block_mask(segments, window, CPU)
    wide = torch.zeros(2 * [-(-count // BLOCK) * BLOCK], dtype=torch.bool)
    wide[:count, :count] = dense
    pairs = wide.view(len(wide) // BLOCK, BLOCK, -1, BLOCK).sum((1, 3))
    assert torch.equal(count_visible_pairs(compute_visible(segments, window, CPU)), pairs)
    assert torch.equal(mask.to_dense()[0, 0].bool(), pairs > 0)
    full = [
        sorted(row[:number].tolist())
        for row, number in zip(mask.full_kv_indices[0, 0], mask.full_kv_num_blocks[0, 0], strict=True)
    ]
    assert full == [(row == BLOCK * BLOCK).nonzero().flatten().tolist() for row in pairs]
    assert any(full) == (window != 70)
    place = torch.arange(count)
    assert torch.equal(mask.mask_mod(0, 0, place[:, None], place), dense)


def test_a_long_row_needs_no_square_tensor() -> None:
    """Not even one bit for each pair; the count of blocks says that a window leaves a narrow band."""
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            if isinstance(made, Tensor):
                largest = max(largest, made.untyped_storage().nbytes())
            return made

    segments = join([(8000, [12000, 12768])])
    count = 32768
    with Sizes():
        mask = build_block_mask(segments, 1000, CPU)
        (row,), _ = build_spans(join([(count, [])]), CPU)
        for piece in row.list_pieces(1000):
            row.compute_mask(piece, 1000, torch.float32)
    assert largest <= 2**26 < count**2 / 8
    assert int(mask.kv_num_blocks.max() + mask.full_kv_num_blocks.max()) < 32


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("limit", [2**23, 700, 90, 1])
def test_spans_cut_into_pieces_are_dense_attention(
    limit: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, however small a mask must be, and no mask is larger."""
    monkeypatch.setattr(spans, "MASK_ELEMENTS", limit)
    monkeypatch.setattr(spans, "SHORTEST_PIECE", 3)
    segments = join([(13, [9, 7, 7]), (60, []), (12, [8, 30, 8]), (4, [])])
    states = draw_states(segments, dtype=torch.float64)
    found = []
    for attend in (attend_by_spans, attend_densely):
        attended = attend(segments, states, window)
        found.append([attended, *torch.autograd.grad(attended.sin().sum(), states)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    built, _ = build_spans(segments, CPU)
    sizes = [mask.numel() for span in built for mask in span.bands.values()]
    for span in built:
        for piece in span.list_pieces(window):
            mask = span.compute_mask(piece, window, torch.bool)
            sizes += [0 if mask is None else mask.numel()]
    # One query sees up to 60 keys, and no piece is smaller.
    assert max(sizes) <= max(limit, 60)


@pytest.mark.parametrize("window", WINDOWS)
def test_blocks_are_spans(window: int | None) -> None:
    """FlexAttention as the device runs it, but not compiled; its backward pass needs a device."""
    segments = join([(150, [110, 70]), (90, [])])
    states = [one.detach() for one in draw_states(segments)]
    with torch.no_grad():
        found = flex_attention(*states, block_mask=build_block_mask(segments, window, CPU), scale=0.3, enable_gqa=True)
        expected = attend_by_spans(segments, states, window)
    torch.testing.assert_close(found[0].transpose(0, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def blocks_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A CPU that takes the way of a CUDA device, without its compiler; returns the number of calls."""
    calls = [0]

    def attend(*states: Any, kernel_options: Any, **settings: Any) -> Any:
        calls[0] += 1
        return flex_attention(*states, **settings)

    monkeypatch.setattr(attention, "_find_fault", lambda shape: "")
    monkeypatch.setattr(attention, "BLOCK_DEVICES", ("cpu",))
    monkeypatch.setattr(block_attention, "compile_attention", lambda: attend)
    return calls


@pytest.mark.parametrize("family", ["qwen2", "mistral, sliding"])
def test_a_model_computes_the_same_by_blocks(family: str, blocks_on_cpu: list[int]) -> None:
    """Grouped queries, and layers with a window: what a CUDA device computes, but for the compiler."""
    network = families()[family]
    batch = rows_with_shared_prompts()
    with torch.no_grad():
        expected = compute_logps(network, batch, 0.8)
        assert blocks_on_cpu == [0]
        found = compute_logps(network, batch, 0.8, pack_batch(batch))
    assert blocks_on_cpu == [2]
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()


def test_a_kernel_that_fails_is_left_and_the_reason_is_kept(
    blocks_on_cpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler\nin this place")

    network, batch = make_model(), rows_with_shared_prompts()
    body = split_head(network)[0]
    with torch.no_grad():
        expected = compute_packed_states(body, pack_batch(batch))
        monkeypatch.setattr(block_attention, "compile_attention", lambda: fail)
        with pytest.warns(UserWarning, match="by spans from here on"):
            found = compute_packed_states(body, pack_batch(batch))
    torch.testing.assert_close(found, expected)
    (reason,) = list_faults()
    assert "RuntimeError: no compiler" in reason
    assert "place" not in reason


def test_a_kernel_is_tried_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it has no backward pass; one that is wrong is found by its values."""
    shape = Shape(CPU, torch.float32, 4, 2, 16)
    assert "NotImplementedError" in attention._find_fault(shape)

    def attend(mask: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        causal = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return causal

    monkeypatch.setattr(attention, "attend_blocks", attend)
    assert "is wrong by" in attention._find_fault(shape)
    assert choose_attention(shape) == "cpu devices have no kernel for attention by blocks"
    assert list_faults() == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_one_compiled_kernel_serves_rows_of_every_length() -> None:
    """Rows of one block need a second one; masks of other rows and windows need none."""
    torch._dynamo.reset()
    compiled = CompileCounterWithBackend("inductor")
    attend = torch.compile(flex_attention, dynamic=True, fullgraph=True, backend=compiled)
    for prompt in (150, 20, 330, 129, 700, 40):
        segments = join([(prompt, [80, 31]), (9, [])])
        states = [one.detach() for one in draw_states(segments)]
        for window in WINDOWS:
            mask = build_block_mask(segments, window, CPU)
            options = {"FORCE_USE_FLEX_ATTENTION": True}
            found = attend(*states, block_mask=mask, scale=0.3, enable_gqa=True, kernel_options=options)
            expected = attend_by_spans(segments, states, window)
            torch.testing.assert_close(found[0].transpose(0, 1), expected, rtol=1e-4, atol=1e-5)
    assert compiled.frame_count <= 2


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [64, 128])
def test_blocks_are_spans_on_a_device(dtype: torch.dtype, size: int) -> None:
    """Values and gradients of rows of several lengths with one kernel, and with windows."""
    device = torch.device("cuda", torch.cuda.current_device())
    shape = Shape(device, dtype, 4, 2, size)
    assert choose_attention(shape) == ""
    source = random.Random(0)
    for window in WINDOWS:
        lengths = [(source.randint(1, 400), [source.randint(1, 300) for _ in range(3)]) for _ in range(3)]
        segments = join(lengths)
        count = sum(segment.length for segment in segments)
        states = [torch.randn(1, heads, count, size, device=device).to(dtype).requires_grad_() for heads in (4, 2, 2)]
        mask = build_block_mask(segments, window, device)
        found = attend_blocks(mask, *states, 0.3)[0].transpose(0, 1)
        expected = attend_by_spans(segments, states, window)
        gradients = [torch.autograd.grad(one.float().sin().sum(), states) for one in (found, expected)]
        for one, other in [(found, expected), *zip(*gradients, strict=True)]:
            assert (one - other).float().norm() <= (0.02 if dtype == torch.bfloat16 else 2e-3) * other.float().norm()


@pytest.mark.gpu
@NEEDS_CUDA
def test_a_long_row_on_a_device_needs_little_memory() -> None:
    """A row of 32,768 inputs with a shared prompt, forward and backward; its mask alone would be 1 GiB."""
    device = torch.device("cuda", torch.cuda.current_device())
    segments = join([(8000, [12000, 12768])])
    states = [torch.randn(1, heads, 32768, 64, device=device).bfloat16().requires_grad_() for heads in (4, 2, 2)]
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    for window in (None, 4096):
        mask = build_block_mask(segments, window, device)
        torch.autograd.grad(attend_blocks(mask, *states, None).float().sum(), states)
    assert torch.cuda.max_memory_allocated(device) - before < 2**28


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_packed_rows_on_a_device_are_padded_rows(dtype: torch.dtype) -> None:
    """Log-probs and gradients of a model, by blocks."""
    network = make_model(dtype=torch.float32, hidden_size=256, initializer_range=0.05).cuda()
    batch = rows_with_shared_prompts().to("cuda")
    found = []
    for layout in (None, pack_batch(batch)):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logps, entropy = compute_logps(network, batch, 0.8, layout)
        gradients = torch.autograd.grad((logps.sin() + entropy).sum(), list(network.parameters()))
        found.append((logps, torch.cat([gradient.flatten() for gradient in gradients])))
    assert list_faults() == []
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= (0.1 if dtype == torch.bfloat16 else 5e-3) * other.norm()
