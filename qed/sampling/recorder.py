"""Records which tokens could be sampled at each position of the sequences that a sampler decodes."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from qed import host
from qed.errors import UsageError
from qed.types import Support

WIDTH = array("i").itemsize  # bytes of a token id
# Largest share of the machine's memory that one call's records may take. Language models need far less; records of a
# flat distribution over a large vocabulary would fill the memory.
SHARE = 0.25


class SupportRecorder:
    """Records the supports of running sequences, by arbitrary keys."""

    def __init__(self) -> None:
        self.supports: dict[Hashable, Support] = {}
        self.ids = self.positions = 0
        self.limit = SHARE * host.total_memory() / WIDTH

    def start(self, keys: Iterable[Hashable]) -> None:
        """Start recording new sequences."""
        self.supports |= {key: Support(array("i"), array("i")) for key in keys}

    def append(self, keys: Sequence[Hashable], logits: Tensor) -> None:
        """Append a position to the sequences of some rows; rows whose key was not started are skipped.

        Args:
            keys: keys of the rows.
            logits: [R, V], from `shape_logits`: minus infinity where a token cannot be sampled.

        Raises:
            UsageError: the records take too much memory.
        """
        possible = logits > -torch.inf
        counts = possible.view(torch.int8).sum(1, dtype=torch.int32)  # sums of bool take twice as long
        only = 2 * counts <= logits.shape[1]  # the shorter list is stored
        listed = possible if bool(only.all()) else possible == only[:, None]
        sizes = counts.where(only, logits.shape[1] - counts)
        ids = listed.nonzero()[:, 1].int().cpu().numpy().tobytes()
        end = 0
        for key, size, signed in zip(keys, sizes.tolist(), sizes.where(only, -sizes).tolist(), strict=True):
            begin, end = end, end + size * WIDTH
            if key in self.supports:
                self.supports[key].counts.append(signed)
                self.supports[key].ids.frombytes(ids[begin:end])
                self.ids, self.positions = self.ids + size, self.positions + 1
        if self.ids > self.limit:
            raise UsageError(
                f"sampling.top_p, top_k and min_p leave about {self.ids / self.positions:,.0f} tokens at a position, "
                f"or exclude as many, and recording them has taken {self.ids * WIDTH / 2**30:.1f} GiB: a quarter of "
                "this machine's memory. Use a smaller top_p or top_k or a larger min_p, sample fewer "
                "answers a step, or remove the filters. A model with so flat a distribution may have diverged."
            )

    def finish(self, key: Hashable, length: int) -> Support | None:
        """Stop recording a sequence, and return the support of its first `length` positions."""
        support = self.supports.pop(key, None)
        return support and support.cut(length)
