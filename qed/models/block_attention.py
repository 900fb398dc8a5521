"""Attention of a packed row by blocks, with Triton kernels, on CUDA devices.

The kernels read the row as it is: keys are not gathered or repeated, there is no mask, and only blocks with a visible
pair are read. They handle rows of any length, and are compiled once for each shape of heads. Before use they are tested
on a short row, because a compiler may be missing or a head too wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from qed.kernels.attention_blocks import Blocks, Launches, choose_launches
from qed.kernels.trials import describe_failure, measure_error
from qed.models.segments import Segment, compute_visible

DEVICES = ("cuda",)  # device types with the kernels
# The row that tests them, of several blocks: a prompt, two answers to it, and a separate row.
TRIAL = (Segment(0, 150), Segment(150, 110, 0, 150), Segment(260, 70, 0, 150), Segment(330, 90))
TRIAL_ERROR = 0.03  # largest relative error of values and gradients; bfloat16 rounding alone stays below 0.01


class Shape(NamedTuple):
    """The parameters that kernels are compiled for."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    kv_heads: int
    size: int  # of a head


_FAULTS: dict[Shape, str] = {}  # "" if there is none


class RowBlocks:
    """Cuts a packed row into blocks of queries and of keys, those with the most work first; see `Blocks`.

    Args:
        segments: segments of the row, in order. Those with the same prompt, itself a segment, follow it directly.
        device: device of the row.

    Raises:
        ValueError: the segments are in a different order.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.device = device
        # NumPy takes a third of torch's time for such small tables, and the device waits for them.
        self.segments = np.array(segments, np.int64).reshape(-1, 4)
        start, length, prompt, prompt_length = self.segments.T
        places = np.arange(length.sum()) - start.repeat(length) + prompt_length.repeat(length)
        self.positions = self._send(places)
        behind = prompt_length > 0
        owner = np.where(behind, np.searchsorted(start, prompt), np.arange(len(start)))
        before = owner[behind.nonzero()[0] - 1]
        if not (np.array_equal(owner[behind], before) and np.array_equal(length[owner[behind]], prompt_length[behind])):
            raise ValueError("a prompt is not a segment, or segments other than its own follow it")
        # End of the queries that see a segment: after the last segment whose prompt it is.
        self.seen_until = start + length
        np.maximum.at(self.seen_until, owner, start + length)
        self._queries: dict[int, Tensor] = {}  # by size
        self._keys: dict[int, Tensor] = {}

    def list_blocks(self, launches: Launches, window: int | None) -> Blocks:
        """Return the blocks in the sizes of `launches`."""
        return Blocks(
            self.list_queries(launches.forward.queries),
            self.list_queries(launches.queries.queries),
            self.list_keys(launches.keys.keys),
            self.positions,
            window or 0,
        )

    def list_queries(self, size: int) -> Tensor:
        """Return blocks of queries: first query, its segment's end and start, its prompt and the prompt's end."""
        if size not in self._queries:
            first, of_segment = self._cut(size)
            start, length, prompt, prompt_length = self.segments[of_segment].T
            table = np.stack([first, start + length, start, prompt, prompt + prompt_length], 1)
            self._queries[size] = self._sort(table, first - start + prompt_length)
        return self._queries[size]

    def list_keys(self, size: int) -> Tensor:
        """Return blocks of keys: first key, end of its segment, and end of the queries that see it."""
        if size not in self._keys:
            first, of_segment = self._cut(size)
            start, length, _, _ = self.segments[of_segment].T
            table = np.stack([first, start + length, self.seen_until[of_segment]], 1)
            self._keys[size] = self._sort(table, table[:, 2] - first)
        return self._keys[size]

    def _cut(self, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cut the segments; return the first input of each block and the number of its segment."""
        start, length, _, _ = self.segments.T
        counts = (length + size - 1) // size
        of_segment = np.arange(len(counts)).repeat(counts)
        number = np.arange(len(of_segment)) - (counts.cumsum() - counts)[of_segment]
        return start[of_segment] + number * size, of_segment

    def _sort(self, table: NDArray[np.int64], work: NDArray[np.int64]) -> Tensor:
        """Sort blocks by their work, most first, and move them to the device."""
        return self._send(table[np.argsort(-work, kind="stable")])

    def _send(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int32)).to(self.device)


class _Settings(NamedTuple):
    blocks: Blocks
    launches: Launches
    scaling: float


class _Attention(torch.autograd.Function):
    """Computes the attention of queries [N, heads, D], keys and values [N, kv_heads, D]."""

    @staticmethod
    def forward(ctx: Any, settings: _Settings, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from qed.kernels.cuda import attention  # noqa: PLC0415 -- Triton may be missing

        launch = settings.launches.forward
        out, sums = attention.attend(query, key, value, settings.blocks, settings.scaling, launch)
        ctx.settings = settings
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        from qed.kernels.cuda import attention  # noqa: PLC0415

        settings: _Settings = ctx.settings
        query, key, value, out, sums = ctx.saved_tensors
        given = slopes[0].contiguous(), settings.blocks, settings.scaling, settings.launches
        return None, *attention.reverse((query, key, value), out, sums, *given)


def attend_blocks(
    row: RowBlocks, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
) -> Tensor:
    """Compute the attention of a packed row, [N, heads, D].

    Args:
        row: blocks of the row.
        query: [N, heads, D].
        key: [N, kv_heads, D].
        value: [N, kv_heads, D].
        scaling: multiplies the scores.
        window: number of inputs that an input sees, including itself; None for all.
    """
    launches = choose_launches(query.shape[-1], query.dtype)
    settings = _Settings(row.list_blocks(launches, window), launches, scaling)
    states = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key, value))
    attended: Tensor = _Attention.apply(settings, *states)
    return attended


def find_refusal(shape: Shape) -> str:
    """Return why attention is not computed by blocks, or "" if it is; kernels are tested once per shape."""
    if shape.device.type not in DEVICES:
        return f"{shape.device.type} devices have no kernel for attention by blocks"
    if shape not in _FAULTS:
        # In a separate thread, so that activation checkpointing does not take the test's tensors for a layer's.
        with ThreadPoolExecutor(1) as thread:
            _FAULTS[shape] = thread.submit(_find_fault, shape).result()
    return _FAULTS[shape]


def refuse(shape: Shape, error: BaseException) -> str:
    """Stop computing attention of a shape by blocks, and return why."""
    _FAULTS[shape] = _describe(shape, error)
    return _FAULTS[shape]


def list_faults() -> list[str]:
    """Return the distinct reasons why attention by blocks is not used on devices that support it."""
    return sorted({reason for reason in _FAULTS.values() if reason})


def _find_fault(shape: Shape) -> str:
    """Compare attention by blocks with torch's; return a description of a fault, or ""."""
    source = torch.Generator().manual_seed(0)
    count, scaling = sum(part.length for part in TRIAL), shape.size**-0.5
    row, key = RowBlocks(TRIAL, shape.device), torch.arange(count, device=shape.device)

    def draw(heads: int) -> Tensor:
        states = torch.randn(count, heads, shape.size, generator=source)
        return states.to(shape.device, shape.dtype).requires_grad_()

    states = draw(shape.heads), draw(shape.kv_heads), draw(shape.kv_heads)
    try:
        for window in (None, TRIAL[1].length):
            own, prompt, prompt_end = (each[:, None] for each in compute_visible(TRIAL, window, shape.device))
            seen = ((key >= own) & (key <= key[:, None])) | ((key >= prompt) & (key < prompt_end))
            with torch.autocast(shape.device.type, enabled=False), torch.enable_grad():
                found = attend_blocks(row, *states, scaling, window)
                expected = _attend_by_mask(seen, *states, scaling)
                gradients = [torch.autograd.grad(one.float().sin().sum(), states) for one in (found, expected)]
            pairs = [(found, expected), *zip(*gradients, strict=True)]
            error = measure_error((one.detach(), other.detach()) for one, other in pairs)
            if not error <= TRIAL_ERROR:
                return f"it is wrong by {error:.2g} for {shape}"
    except Exception as error:  # noqa: BLE001 -- a compiler fails in many ways
        return _describe(shape, error)
    return ""


def _attend_by_mask(seen: Tensor, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Compute the attention of a row, [N, heads, D], in float32 with a mask [N, N]."""
    queries, keys, values = (each.float().transpose(0, 1)[None] for each in (query, key, value))
    attended = scaled_dot_product_attention(
        queries, keys, values, attn_mask=seen, scale=scaling, enable_gqa=key.shape[1] != query.shape[1]
    )
    return attended[0].transpose(0, 1)


def _describe(shape: Shape, error: BaseException) -> str:
    cause = error.__cause__ or error  # the compiler's own error rather than its wrapper
    return f"it fails for {shape}: {describe_failure(cause)}"
