"""Randomness with an address: every draw is a function of where in the run it stands, never of what was drawn before.

The seed of a draw is a hash of (run seed, purpose, step, problem id, sample number, …), so a rollout's random numbers
do not depend on which others share its batch, and a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def derive_seed(*address: int | str) -> int:
    """A 63-bit seed for an address, for example `seed_of(run_seed, "order", epoch)`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def shuffle_indices(count: int, *address: int | str) -> list[int]:
    """The numbers 0 … count-1 in the order that belongs to the address."""
    order = list(range(count))
    random.Random(derive_seed(*address)).shuffle(order)
    return order


def draw_uniform(*address: int | str) -> float:
    """A uniform number in [0, 1) that belongs to the address."""
    return random.Random(derive_seed(*address)).random()


def draw_uniforms(seeds: Tensor, positions: int) -> Tensor:
    """Uniform numbers in [0, 1) for every seed and position, by a counter-based hash (SplitMix64, Steele et al. 2014).

    Args:
        seeds: [B] int64, one seed for each row.
        positions: how many positions, from the first.

    Returns:
        [B, positions] float64, a function of seed and position alone.
    """
    # Methods of the tensor alone: algorithms draw by address too, and their help must not wait for torch.
    counter = seeds.new_ones(positions).cumsum(0)
    z = seeds[:, None] + counter[None, :] * _as_signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift_right(z, 30)) * _as_signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _as_signed(0x94D049BB133111EB)
    z = z ^ _shift_right(z, 31)
    return _shift_right(z, 11).double() * 2.0**-53


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """A logical right shift; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _as_signed(value: int) -> int:
    """The 64-bit pattern of an unsigned constant as the signed number that torch takes."""
    return value - (1 << 64) if value >= 1 << 63 else value
