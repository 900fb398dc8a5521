"""Steps of a sampler as CUDA graphs: a few hundred kernels that one call starts.

A graph repeats kernels on the memory that it was captured over, so it stands for one layout of the rows: when rows
come, leave or need more columns, the next step is captured anew. What changes between two steps lies in buffers that
are filled before each.

Weights are read where they lie, and of those that autocast has cast, the casts. Autocast keeps the cast of a trained
weight until its context ends, and a call's context is around all of its steps. torch advises to switch that cache off
for a capture, because a cast that is made while capturing holds nothing until the graph is replayed, and is memory of
that graph, though the cache hands it to everybody. But then every step would cast every weight again, reading and
writing several times what the step itself reads. So the cache stays on, and a step is run once before it is captured:
every cast that the cache keeps is there by then, in ordinary memory, and none is made in a capture. Weights that are
not trained are never kept, so their casts are part of the graph. The call's end lets go of the casts, and its decoder
is dropped with all graphs.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from qed.sampling.native.decoder import Decoder, LlamaDecoder
from qed.sampling.native.kv_cache import SPARE
from qed.sampling.native.sequences import Sequences

GROW = 4  # a row gets room for a part in so many more than it needs: attention reads all, but a capture costs steps

Step = Callable[[], Tensor]

# One stream for all calls, because memory that was freed on a stream is reused on that stream alone.
_side_stream = cache(torch.cuda.Stream)


def with_cuda_graphs(decoder: Decoder, device: torch.device, refuse: Callable[[str], None]) -> Decoder:
    """A decoder of one call whose steps are graphs where the device has them, else the decoder as it is."""
    if device.type != "cuda" or not isinstance(decoder, LlamaDecoder):
        return decoder
    return GraphedDecoder(decoder, Capture(device), refuse)


class GraphedDecoder:
    """Continues rows by a token each, by repeating a captured step for as long as they lie where they are.

    Args:
        decoder: what is repeated, or asked directly where that cannot be.
        capture: makes a step repeatable.
        refuse: is told why a step cannot be; the rest of the call goes on without graphs.
    """

    def __init__(self, decoder: LlamaDecoder, capture: Callable[[Step], Step], refuse: Callable[[str], None]) -> None:
        self.decoder, self.capture, self.refuse = decoder, capture, refuse
        self.shares = decoder.shares
        self.possible = True
        self.graph: _Layout | None = None

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """One token more for every row; the logits are overwritten by the next step."""
        if self.possible and (self.graph is None or not self.graph.is_valid_for(rows)):
            try:
                # The graph before this one is let go afterwards: a pool of memory ends with the last graph that has it.
                self.graph = _Layout(self.decoder, rows, last, self.capture)
            except RuntimeError as error:
                self.possible, self.graph = False, None
                # An error that spoils a capture is the cause of the one that the capture's end raises.
                cause = error.__context__ or error
                self.refuse(f"{type(cause).__name__}: {cause}".splitlines()[0])
        if self.graph is None:
            return self.decoder(rows, last)
        return self.graph.step(rows, last)


class _Layout:
    """A step that was captured over the rows as they lie now."""

    def __init__(self, decoder: LlamaDecoder, rows: Sequences, last: Tensor, capture: Callable[[Step], Step]) -> None:
        self.columns = _round_up(rows.used + 1)
        rows.reserve(self.columns)
        self.over = _list_buffers(rows)
        self.last, self.positions = last.clone(), rows.prompt + rows.age - 1
        self.column = last.new_full((1,), rows.used)
        self.replay = capture(lambda: decoder.step_in_place(rows, self.last, self.positions, self.column))

    def is_valid_for(self, rows: Sequences) -> bool:
        """Whether the rows lie where they lay, with room for another column."""
        return rows.used < self.columns and all(map(operator.is_, self.over, _list_buffers(rows)))

    def step(self, rows: Sequences, last: Tensor) -> Tensor:
        """Repeat it, a column further."""
        self.last.copy_(last)
        torch.add(rows.prompt, rows.age, out=self.positions).sub_(1)
        self.column.fill_(rows.used)
        logits = self.replay()
        rows.commit_slot()
        return logits


class Capture:
    """Captures steps as CUDA graphs that share a pool of memory: one is replayed at a time, and its logits are read
    before the next is captured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Run a step once, then capture it: what a first run makes (handles, workspaces, casts) is no part of it."""
        here, side = torch.cuda.current_stream(self.device), _side_stream(self.device)
        graph = torch.cuda.CUDAGraph()
        side.wait_stream(here)
        try:
            with torch.cuda.stream(side):
                with _forbid_synchronization():
                    step()
                # Other threads of the process may use the device meanwhile.
                with torch.cuda.graph(graph, self.pool, side, capture_error_mode="thread_local"):
                    logits = step()
        finally:
            here.wait_stream(side)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


@contextmanager
def _forbid_synchronization() -> Iterator[None]:
    """Find operations that wait for the device before they are met in a capture, which they would spoil."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _round_up(columns: int) -> int:
    """The columns that a layout has room for, where so many are needed: a multiple of SPARE."""
    return -(-(columns + columns // GROW) // SPARE) * SPARE


def _list_buffers(rows: Sequences) -> tuple[object, ...]:
    """What is replaced whenever rows come, leave or get more room: the layers are, all at once."""
    return rows.cache.layers[0].keys, rows.mask, rows.prompts
