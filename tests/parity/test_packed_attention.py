"""Attention of a packed row, by spans and by blocks, is that of each row alone, and builds no large mask."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_model
from test_packing import families, rows_with_shared_prompts
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from qed.kernels.attention_blocks import Launch, Launches
from qed.models import block_attention
from qed.models.block_attention import RowBlocks, Shape, attend_blocks, find_refusal, list_faults
from qed.models.families import split_head
from qed.models.segments import Segment, compute_visible
from qed.training import attention, spans
from qed.training.attention import compute_packed_states
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
    monkeypatch.setattr(block_attention, "_FAULTS", {})


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


@given(segments=layouts, size=st.sampled_from([1, 4, 16]))
def test_blocks_cover_what_inputs_see(segments: tuple[Segment, ...], size: int) -> None:
    """Each input is in one block of queries, which tells what it sees, and in one of keys, which tells what sees it."""
    dense, row = compute_dense_mask(segments, None), RowBlocks(segments, CPU)
    count = len(dense)
    found, seen_by = torch.zeros_like(dense), torch.zeros_like(dense)
    work = []
    for begin, end, own, prompt, prompt_end in row.list_queries(size).tolist():
        work.append(begin - own + prompt_end - prompt)
        for query in range(begin, min(begin + size, end)):
            assert not found[query].any()
            found[query, prompt:prompt_end] = True
            found[query, own : query + 1] = True
    assert torch.equal(found, dense)
    assert work == sorted(work, reverse=True)
    work = []
    for begin, end, last in row.list_keys(size).tolist():
        work.append(last - begin)
        for key in range(begin, min(begin + size, end)):
            assert not seen_by[:, key].any()
            seen_by[key:last, key] = True
    assert torch.equal(seen_by, dense)
    assert work == sorted(work, reverse=True)
    assert row.positions.tolist() == [int(dense[place].sum()) - 1 for place in range(count)]


@pytest.mark.parametrize(
    "segments",
    [
        [Segment(0, 9), Segment(9, 4), Segment(13, 5, 0, 9)],  # another row between a prompt and its answer
        [Segment(0, 9), Segment(9, 5, 0, 4)],  # a part of a row as a prompt
        [Segment(0, 9), Segment(9, 5), Segment(14, 5, 3, 6)],
    ],
)
def test_rows_in_another_order_are_refused(segments: list[Segment]) -> None:
    with pytest.raises(ValueError, match="a prompt is not a segment"):
        RowBlocks(segments, CPU)


def test_a_long_row_needs_no_square_tensor() -> None:
    """Not even one bit for each pair."""
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
        blocks = RowBlocks(segments, CPU)
        assert len(blocks.list_queries(128)) + len(blocks.list_keys(128)) == 2 * count // 128 + 2
        (row,), _ = build_spans(join([(count, [])]), CPU)
        for piece in row.list_pieces(1000):
            row.compute_mask(piece, 1000, torch.float32)
    assert largest <= 2**26 < count**2 / 8


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


LARGE, SMALL = Launch(32, 16, 4, 1), Launch(16, 16, 4, 1)


@pytest.mark.parametrize(
    ("dtype", "size", "window", "launches"),
    [
        (torch.float32, 12, None, Launches(LARGE, SMALL, Launch(16, 32, 4, 1))),
        (torch.float32, 16, 5, Launches(SMALL, LARGE, Launch(16, 32, 4, 1))),
        (torch.float16, 16, 40, Launches(SMALL, SMALL, SMALL)),
    ],
)
def interpreted_blocks_are_dense_attention(
    dtype: torch.dtype, size: int, window: int | None, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, of segments of several blocks and of a part of one, and of heads of any width."""
    monkeypatch.setattr(block_attention, "choose_launches", lambda *_: launches)
    segments = join([(37, [18, 20, 3]), (16, [16]), (1, [1, 2])])
    source = torch.Generator().manual_seed(0)
    states = [
        torch.randn(sum(part.length for part in segments), heads, size, generator=source).to(dtype).requires_grad_()
        for heads in (2, 1, 1)
    ]
    found = attend_blocks(RowBlocks(segments, CPU), *states, 0.3, window)
    expected = attend_densely(segments, [one.float().transpose(0, 1)[None] for one in states], window)
    gradients = [torch.autograd.grad(one.float().sin().sum(), states) for one in (found, expected)]
    for one, other in [(found, expected), *zip(*gradients, strict=True)]:
        assert one.dtype in (dtype, torch.float32)
        assert (one - other).float().norm() <= (2e-3 if dtype == torch.float16 else 2e-6) * other.float().norm()


@pytest.fixture
def blocks_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A CPU that takes the way of a CUDA device, without its kernels; returns the number of calls."""
    calls = [0]

    def attend(row: RowBlocks, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
        calls[0] += 1
        segments = [Segment(*each) for each in row.segments.tolist()]
        states = [one.transpose(0, 1)[None] for one in (query * scaling / 0.3, key, value)]
        return attend_densely(segments, states, window)

    monkeypatch.setattr(block_attention, "_find_fault", lambda shape: "")
    monkeypatch.setattr(block_attention, "DEVICES", ("cpu",))
    monkeypatch.setattr(attention, "attend_blocks", attend)
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
        monkeypatch.setattr(attention, "attend_blocks", fail)
        with pytest.warns(UserWarning, match="by spans from here on"):
            found = compute_packed_states(body, pack_batch(batch))
    torch.testing.assert_close(found, expected)
    (reason,) = list_faults()
    assert "RuntimeError: no compiler" in reason
    assert "place" not in reason


def test_a_kernel_is_tried_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it has no backward pass; one that is wrong is found by its values."""
    shape = Shape(CPU, torch.float32, 4, 2, 16)
    assert "it fails for" in block_attention._find_fault(shape)

    def attend(row: RowBlocks, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
        states = (one.transpose(0, 1)[None] for one in (query, key, value))
        return scaled_dot_product_attention(*states, is_causal=True, scale=scaling, enable_gqa=True)[0].transpose(0, 1)

    monkeypatch.setattr(block_attention, "attend_blocks", attend)
    assert "it is wrong by" in block_attention._find_fault(shape)
    assert find_refusal(shape) == "cpu devices have no kernel for attention by blocks"
    assert list_faults() == []


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [16, 64, 80, 128])
def test_blocks_are_spans_on_a_device(dtype: torch.dtype, size: int) -> None:
    """Values and gradients of rows of several lengths, with and without windows."""
    device = torch.device("cuda", torch.cuda.current_device())
    shape = Shape(device, dtype, 4, 2, size)
    assert find_refusal(shape) == ""
    source = random.Random(0)
    for window in WINDOWS:
        lengths = [(source.randint(1, 400), [source.randint(1, 300) for _ in range(3)]) for _ in range(3)]
        segments = join(lengths)
        count = sum(segment.length for segment in segments)
        states = [torch.randn(1, heads, count, size, device=device).to(dtype).requires_grad_() for heads in (4, 2, 2)]
        given = (one[0].transpose(0, 1) for one in states)
        found = attend_blocks(RowBlocks(segments, device), *given, 0.3, window)
        expected = attend_by_spans(segments, states, window)
        gradients = [torch.autograd.grad(one.float().sin().sum(), states) for one in (found, expected)]
        for one, other in [(found, expected), *zip(*gradients, strict=True)]:
            assert (one - other).float().norm() <= (0.02 if dtype == torch.bfloat16 else 2e-3) * other.float().norm()


@pytest.mark.gpu
@NEEDS_CUDA
def test_a_long_row_on_a_device_needs_little_memory() -> None:
    """A row of 32,768 inputs with a shared prompt, forward and backward; a mask of it would be 1 GiB."""
    device = torch.device("cuda", torch.cuda.current_device())
    segments = join([(8000, [12000, 12768])])
    states = [torch.randn(32768, heads, 64, device=device).bfloat16().requires_grad_() for heads in (4, 2, 2)]
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    for window in (None, 4096):
        torch.autograd.grad(attend_blocks(RowBlocks(segments, device), *states, 0.1, window).float().sum(), states)
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
