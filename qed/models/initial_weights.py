"""Random initial weights by a seed, from torch's own generator, and the turns of threads that build models.

Every thread of a process shares the generator, and the functions and the default dtype that transformers replaces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qed.randomness import derive_seed

# Held while a model is built or loaded. While transformers loads one, it replaces functions of its classes and of
# torch, such as `tie_weights`, and the default dtype, for all threads: of two that load at a time, the second keeps the
# replacements for the originals, and puts them back for good. And two threads would draw from each other's seeds.
build_turn = threading.RLock()


@contextmanager
def seed_initial_weights(seed: int, purpose: str) -> Iterator[None]:
    """Draw weights on the CPU by the seed of a run and a purpose, and leave torch's generators as they were."""
    with build_turn, torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the generators of all devices too, which are not restored.
        torch.default_generator.manual_seed(derive_seed(seed, purpose))
        yield
