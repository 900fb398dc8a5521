"""Decoding steps as CUDA graphs: one call launches a few hundred kernels.

A graph replays kernels on the memory that it was captured with, so it is valid for one layout of the sequences. When
rows are added or removed or need more columns, the next step is captured again. Inputs that change between steps are
copied into fixed buffers.

A graph reads the weights directly, or casts of them. On a device, a decoder casts the weights of plain and adapted
linear layers once, when it is created. Other modules are called under autocast, which caches the cast of a trained
weight until its context ends, and that context surrounds all steps of a call. torch advises turning this cache off
during a capture, because a cast made then has no content until the graph is replayed and belongs to the graph's memory,
while the cache returns it to all later users. But then every step would cast every weight again, which reads and writes
several times as much memory as the step itself. So the cache stays on, and a step is run once before it is captured:
all cached casts then exist in ordinary memory, and none is made during a capture. Untrained weights of these modules
are never cached, so their casts are part of the graph. The end of a call releases the casts and its decoder with all
graphs.
"""

from __future__ import annotations

import gc
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from qed.errors import is_out_of_memory
from qed.guards.out_of_memory import call_if_it_fits
from qed.sampling.native.cuda_decoder import CudaDecoder
from qed.sampling.native.decoder import Decoder, LlamaDecoder
from qed.sampling.native.kv_cache import SPARE
from qed.sampling.native.sequences import Sequences

GROW = 4  # 1/4 more columns are allocated than needed: torch's attention reads all of them; a capture costs a few steps
LEAST = 512  # columns allocated at first if attention reads only those in use; later twice as many as needed

Step = Callable[[], Tensor]

# One stream for all calls, because memory that was freed on a stream is reused only on that stream.
_side_stream = cache(torch.cuda.Stream)


def with_cuda_graphs(decoder: Decoder, device: torch.device, refuse: Callable[[str], None]) -> Decoder:
    """Return a decoder whose steps are CUDA graphs, or the decoder itself if device or model do not support them."""
    if device.type != "cuda" or not isinstance(decoder, LlamaDecoder):
        return decoder
    return GraphedDecoder(decoder, Capture(device), refuse)


class GraphedDecoder:
    """Replays a captured step as long as the layout of the sequences stays the same.

    Args:
        decoder: computes the steps; used directly if a step cannot be captured.
        capture: returns a function that replays a step.
        refuse: called with the reason if a step cannot be captured; the rest of the call uses no graphs.
    """

    def __init__(self, decoder: LlamaDecoder, capture: Callable[[Step], Step], refuse: Callable[[str], None]) -> None:
        self.decoder, self.capture, self.refuse = decoder, capture, refuse
        self.shares_prefix, self.copied_bytes = decoder.shares_prefix, decoder.copied_bytes
        self.possible = True
        self.graph: _Layout | None = None

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """Compute the logits of the next token, see `Decoder`; the next step overwrites them."""
        if self.possible and (self.graph is None or not self.graph.is_valid_for(rows)):
            try:
                # Release the previous graph after the capture: a memory pool ends with the last graph that uses it.
                self.graph = _Layout(self.decoder, rows, last, self.capture)
            except RuntimeError as error:
                # If an operation invalidates a capture, the end of the capture raises another error; report the first.
                cause = error.__context__ or error
                if is_out_of_memory(cause):  # fewer rows may fit
                    raise cause from None
                self.possible, self.graph = False, None
                self.refuse(f"{type(cause).__name__}: {cause}".splitlines()[0])
        if self.graph is None:
            return self.decoder(rows, last)
        return self.graph.step(rows, last)


class _Layout:
    """A step that was captured for the current layout of the sequences."""

    def __init__(self, decoder: LlamaDecoder, rows: Sequences, last: Tensor, capture: Callable[[Step], Step]) -> None:
        self.columns = _choose_columns(decoder, rows)
        rows.reserve(self.columns)
        self.buffers = _list_buffers(rows)
        self.last, self.positions = last.clone(), rows.prompt_lens + rows.output_lens - 1
        self.column = last.new_full((1,), rows.used)
        self.replay = capture(lambda: decoder.step_in_place(rows, self.last, self.positions, self.column))

    def is_valid_for(self, rows: Sequences) -> bool:
        """Return whether the sequences still have the same buffers, with space for another column."""
        return rows.used < self.columns and all(map(operator.is_, self.buffers, _list_buffers(rows)))

    def step(self, rows: Sequences, last: Tensor) -> Tensor:
        """Replay the step with the next column."""
        self.last.copy_(last)
        torch.add(rows.prompt_lens, rows.output_lens, out=self.positions).sub_(1)
        self.column.fill_(rows.used)
        logits = self.replay()
        rows.commit_slot()
        return logits


class Capture:
    """Captures steps as CUDA graphs that share a memory pool.

    That is safe because only one graph is replayed at a time, and its logits are read before the next capture. torch's
    own capture context waits for the device and returns all cached memory to it, which the learner then has to request
    again. Here that is done only if a capture, during which torch takes memory only from the device, finds too little.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Run a step once, then capture it, so that the graph has no handles, workspaces and casts of a first run."""
        current, side = torch.cuda.current_stream(self.device), _side_stream(self.device)
        side.wait_stream(current)
        try:
            with torch.cuda.stream(side), _collect_no_garbage():
                with _forbid_synchronization():
                    step()
                ((graph, logits),) = call_if_it_fits(lambda: self._capture(step)) or [self._capture(step)]
        finally:
            current.wait_stream(side)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    def _capture(self, step: Step) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device during the capture.
        graph.capture_begin(self.pool, capture_error_mode="thread_local")
        try:
            logits = step()
        finally:
            graph.capture_end()
        return graph, logits


@contextmanager
def _collect_no_garbage() -> Iterator[None]:
    """Disable garbage collection: a cycle may hold memory that must not be freed during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _forbid_synchronization() -> Iterator[None]:
    """Raise on operations that wait for the device, because they would invalidate a capture."""
    previous = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(previous)


def _choose_columns(decoder: LlamaDecoder, rows: Sequences) -> int:
    """Return the number of columns to allocate, a multiple of SPARE."""
    needed = rows.used + 1
    columns = needed + needed // GROW
    if isinstance(decoder, CudaDecoder):
        longest = rows.tokens.shape[1] + (0 if rows.shared_prefix is not None else int(rows.prompt_lens.max()))
        columns = max(columns, min(max(LEAST, 2 * needed), longest))
    return -(-columns // SPARE) * SPARE


def _list_buffers(rows: Sequences) -> tuple[object, ...]:
    """Return the objects that are replaced whenever rows are added, removed or get more columns.

    All layers are replaced at once, so the first one stands for all.
    """
    return rows.cache.layers[0].keys, rows.mask, rows.shared_prefix
