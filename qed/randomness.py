"""Stateless random numbers: every draw is a function of an address, never of earlier draws.

An address is a tuple such as (run seed, purpose, step, problem id, sample number, …), and the seed of a draw is its
hash. So the random numbers of a rollout do not depend on the other rollouts of its batch, and a resumed run draws the
same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def derive_seed(*address: int | str) -> int:
    """Compute the 63-bit seed of an address, for example `derive_seed(run_seed, "order", epoch)`."""
    return hash_parts(address)


def hash_parts(parts: Iterable[int | str]) -> int:
    """Compute the seed of an address whose parts come one at a time and may be too many to hold in memory."""
    digest, separator = hashlib.blake2b(digest_size=8), ""
    for part in parts:
        digest.update(f"{separator}{type(part).__name__}:{part}".encode())
        separator = "\x1f"
    return int.from_bytes(digest.digest(), "big") >> 1


def shuffle_indices(count: int, *address: int | str) -> list[int]:
    """Return the numbers 0 … count-1, shuffled by the seed of an address."""
    order = list(range(count))
    random.Random(derive_seed(*address)).shuffle(order)
    return order


def draw_uniform(*address: int | str) -> float:
    """Return a uniform number in [0, 1), drawn with the seed of an address."""
    return random.Random(derive_seed(*address)).random()


def draw_uniforms(seeds: Tensor, positions: int) -> Tensor:
    """Draw uniform numbers in [0, 1) by seed and position, with a counter-based hash (SplitMix64, Steele et al. 2014).

    Args:
        seeds: [B] int64, one seed for each row.
        positions: the number of positions, counted from the first.

    Returns:
        [B, positions] float64; each number depends on its seed and position alone.
    """
    # Only methods of the tensor: algorithms import this file, and `--help` must not import torch.
    counter = seeds.new_ones(positions).cumsum(0)
    z = seeds[:, None] + counter[None, :] * _as_signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift_right(z, 30)) * _as_signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _as_signed(0x94D049BB133111EB)
    z = z ^ _shift_right(z, 31)
    return _shift_right(z, 11).double() * 2.0**-53


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift right without sign extension; torch's own shift keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _as_signed(value: int) -> int:
    """Return the int64 with the bit pattern of an unsigned 64-bit constant."""
    return value - (1 << 64) if value >= 1 << 63 else value
