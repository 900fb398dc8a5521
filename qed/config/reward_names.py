"""Parses reward names: NAME or WEIGHT*NAME.

NAME is a reward of qed, a dotted module, path.py or path.py:function, or model:FOLDER for a reward model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from qed.config import plugins
from qed.errors import UsageError

AUTO = "auto"  # the prompt's default reward
MODEL = "model"  # the reward with the folder of a reward model


@dataclass(frozen=True)
class RewardEntry:
    """A parsed `WEIGHT*NAME:FUNCTION`, or `WEIGHT*model:FOLDER`; weight and function are optional."""

    weight: float
    source: str
    function: str = ""
    folder: str = ""

    @property
    def name(self) -> str:
        """Return the name for options and records: the reward's, the file's stem, or the last part of the module."""
        if not self.source.endswith(".py"):
            return self.source.rpartition(".")[2]
        path = Path(self.source)
        return path.resolve().parent.name if path.name == "__init__.py" else path.stem


def parse_reward(text: str) -> RewardEntry:
    """Parse one reward; `auto` stands for the prompt's default reward.

    Raises:
        UsageError: the weight is not a finite number, or the name is missing.
    """
    weight, times, name = text.rpartition("*")
    factor = _read_weight(weight) if times else 1.0
    if not math.isfinite(factor):
        swapped = math.isfinite(_read_weight(name))
        hint = f" Write the weight first: {name.strip()}*{weight.strip()}." if swapped else ""
        raise UsageError(
            f"The reward '{text}' must be NAME or WEIGHT*NAME: '{weight.strip()}' is not a finite number.{hint}"
        )
    if name.strip().startswith(f"{MODEL}:"):
        return RewardEntry(factor, MODEL, folder=name.strip().removeprefix(f"{MODEL}:"))
    source, colon, function = name.strip().rpartition(":")
    if not colon or not function.isidentifier():
        source, function = name.strip(), ""
    if not source:
        raise UsageError(f"The reward '{text}' has no name.")
    return RewardEntry(factor, plugins.spell_leaf(source), function)


def _read_weight(text: str) -> float:
    """Return a weight; NaN if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
