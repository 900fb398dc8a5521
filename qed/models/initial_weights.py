"""Random initial weights by a seed, from torch's own generator, which every thread of a process shares."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qed.randomness import derive_seed

# Two threads that build models would draw from each other's seeds.
_lock = threading.Lock()


@contextmanager
def seed_initial_weights(seed: int, purpose: str) -> Iterator[None]:
    """Draw weights on the CPU by the seed of a run and a purpose, and leave torch's generator as it was."""
    with _lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, purpose))
        yield
