"""How a reward is named: NAME or WEIGHT*NAME, the name a leaf, a dotted module, path.py or path.py:function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from qed.config import plugins
from qed.errors import UsageError

AUTO = "auto"  # the reward that fits the prompt, whoever that is


@dataclass(frozen=True)
class RewardEntry:
    """One reward as it is written: `WEIGHT*NAME:FUNCTION`, the weight and the function left out as a rule."""

    weight: float
    source: str
    function: str = ""

    @property
    def name(self) -> str:
        """What the source is called in options and records: the leaf, the file's stem, or the module's last word."""
        return Path(self.source).stem if self.source.endswith(".py") else self.source.rpartition(".")[2]


def parse_reward(text: str) -> RewardEntry:
    """An entry as it is written; `auto` stands for the reward that fits the prompt.

    Raises:
        UsageError: the weight is not a finite number, or the name is missing.
    """
    weight, times, name = text.rpartition("*")
    try:
        factor = float(weight) if times else 1.0
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor):
        raise UsageError(f"The reward '{text}' must be NAME or WEIGHT*NAME: '{weight.strip()}' is not a finite number.")
    source, colon, function = name.strip().rpartition(":")
    if not colon or not function.isidentifier():
        source, function = name.strip(), ""
    if not source:
        raise UsageError(f"The reward '{text}' has no name.")
    users_own = plugins.is_users_own(source)
    return RewardEntry(factor, source if users_own else source.replace("-", "_"), function)
