"""A soft penalty for answers near the length limit: 0 at first, then linearly down to -1 at the limit.

The soft overlong punishment of DAPO (arXiv 2503.14476): with the limit L, a cache c and n tokens including the end
token, 0 up to L - c, (L - c - n) / c from there, and -1 beyond L.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.errors import UsageError
from qed.types import Grade, Rollout

JUDGES = False
CACHE_SHARE = 5  # DAPO's cache is 4,096 of 20,480 tokens


@dataclass(frozen=True)
class Overlong:
    """Reward = the penalty, in [-1, 0]."""

    max_tokens: int = 0
    """The length limit, in tokens; 0: the run's limit."""

    cache: int = 0
    """The number of tokens before the limit at which the penalty begins; 0: a fifth of the limit, as in DAPO."""

    def __post_init__(self) -> None:
        if self.max_tokens < 0 or not 0 <= self.cache <= (self.max_tokens or self.cache):
            raise UsageError(
                f"overlong: the cache must be between 0 and max_tokens, not {self.cache} of {self.max_tokens}."
            )

    def __call__(self, rollout: Rollout) -> Grade:
        if not self.max_tokens:
            raise UsageError("overlong needs the maximum answer length: set overlong.max_tokens.")
        cache = self.cache or max(1, self.max_tokens // CACHE_SHARE)
        over = rollout.trained_count - (self.max_tokens - cache)
        return Grade(-min(1.0, max(0, over) / cache) + 0.0, False, True, None)


reward = Overlong()
