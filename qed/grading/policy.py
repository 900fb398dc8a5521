"""The conventions on which graders differ, one switch each. The defaults are those of MATH."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from qed.errors import UsageError, suggest_nearest

PolicyName = Literal["math", "qwen", "strict"]
NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True)
class Policy:
    """What counts as the same answer where mathematics has no single convention."""

    percent_sign_optional: bool = True
    """20 % equals 20 as well as 0.2: the sign may be dropped, but 0.4 is a fraction and never 0.4 %. Off: 20 % equals
    only 0.2."""

    ordered_lists: bool = False
    """A bare list of answers must come in the order of the gold. Off: `1, 2` is `2, 1`."""

    convert_units: bool = True
    """3 hours equal 180 minutes, and 30° equals π/6. Off: two different units never match."""

    bare_list_as_tuple: bool = True
    """`2, 4` and `x = 2, y = 4` equal `(2, 4)` when the order is the same."""

    interval_as_inequality: bool = True
    """`2 < x < 4` and `|x - 3| < 1` equal the interval `(2, 4)`."""

    number_words: bool = True
    """`six`, `sixth` and `6th` equal 6, `two thirds` 2/3, and `1 million` equals 1,000,000."""

    half_day_optional: bool = True
    """7:45 equals 7:45 a.m., and 19:45 equals 7:45 p.m.; the other half of the day never does."""

    base_optional: bool = True
    """`52` equals `52_8`: the base may be dropped, but not changed."""

    rounded_gold: bool = False
    """A gold with a decimal point accepts every value that rounds to it: 33.3 accepts 100/3."""

    rounded_answer: bool = True
    """Six or more digits that round an irrational or periodic gold equal it: 1.41421 is √2. Off: only exact forms."""

    hundredfold: bool = False
    """A number in decimals equals its hundredfold and its hundredth, with or without a percent sign: 0.25 accepts 25,
    and 25 accepts 2500."""

    relative_tolerance: float = 0.0
    """Two real values are equal if they differ by at most this share of the larger one: 1e-4 accepts 3.1416 for π."""

    symbolic: bool = True
    """What the parser cannot read goes to math-verify, in a child process. Off: it is wrong."""

    @property
    def approximate(self) -> bool:
        """Whether plain numbers that are not equal can be the same answer."""
        return self.hundredfold or self.relative_tolerance > 0 or self.rounded_gold


MATH = Policy()
# `math_equal` of QwenLM/Qwen2.5-Math, evaluation/grader.py: `include_percentage` and `numeric_equal`.
QWEN = Policy(hundredfold=True, relative_tolerance=1e-4)
STRICT = Policy(
    percent_sign_optional=False,
    ordered_lists=True,
    convert_units=False,
    bare_list_as_tuple=False,
    interval_as_inequality=False,
    number_words=False,
    half_day_optional=False,
    base_optional=False,
    rounded_answer=False,
    symbolic=False,
)


def find_policy(name: str) -> Policy:
    """Return the policy of a name.

    Raises:
        UsageError: there is none of that name.
    """
    policies: dict[str, Policy] = {"math": MATH, "qwen": QWEN, "strict": STRICT}
    if name not in policies:
        raise UsageError(
            f"There is no grading policy '{name}'.{suggest_nearest(name, policies)} There are: {', '.join(policies)}."
        )
    return policies[name]
