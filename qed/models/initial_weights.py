"""Random initial weights by seed, from torch's generator, and a lock for threads that build models.

All threads of a process share the generator, and the functions and default dtype that transformers replaces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qed.randomness import derive_seed

# Held while a model is built or loaded. While loading, transformers replaces functions of its classes and of torch,
# such as `tie_weights`, and the default dtype, for all threads: if two threads load at once, the second takes the
# replacements for the originals and restores them permanently. Also, threads would draw from each other's seeds.
build_turn = threading.RLock()


@contextmanager
def seed_initial_weights(seed: int, purpose: str) -> Iterator[None]:
    """Draw weights on the CPU by a run's seed and a purpose, and restore torch's generators afterwards."""
    with build_turn, torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the generators of all devices, which are not restored.
        torch.default_generator.manual_seed(derive_seed(seed, purpose))
        yield
