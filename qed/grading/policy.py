"""The conventions on which graders differ, one setting each. The defaults are those of MATH."""

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
    """20 % equals both 20 and 0.2, because the sign may be dropped; but 0.4 is a fraction and never 0.4 %. Off: 20 %
    equals only 0.2."""

    ordered_lists: bool = False
    """A list of answers without brackets must be in the order of the gold. Off: `1, 2` equals `2, 1`."""

    convert_units: bool = True
    """3 hours equal 180 minutes, and 30° equals π/6. Off: different units never match."""

    bare_list_as_tuple: bool = True
    """`2, 4` and `x = 2, y = 4` equal `(2, 4)` if the order is the same."""

    interval_as_inequality: bool = True
    """`2 < x < 4` and `|x - 3| < 1` equal the interval `(2, 4)`."""

    number_words: bool = True
    """`six`, `sixth` and `6th` equal 6, `two thirds` 2/3, and `1 million` equals 1,000,000."""

    half_day_optional: bool = True
    """7:45 equals 7:45 a.m. and 7:45 p.m., and 19:45 equals 7:45 p.m.; a.m. never equals p.m."""

    base_optional: bool = True
    """`52` equals `52_8`: the base may be omitted, but not changed."""

    rounded_gold: bool = False
    """A gold with a decimal point accepts every value that rounds to it: 100/3 is correct for 33.3."""

    rounded_answer: bool = True
    """A number of six or more digits equals an irrational or periodic gold that rounds to it: 1.41421 equals √2. Off:
    only exact forms are correct."""

    hundredfold: bool = False
    """A decimal number equals 100 times itself and a hundredth of itself, with or without a percent sign: 25 is correct
    for 0.25, and 2500 for 25."""

    relative_tolerance: float = 0.0
    """Two real values are equal if they differ by at most this share of the larger one: 1e-4 accepts 3.1416 for π."""

    symbolic: bool = True
    """math-verify compares what the parser cannot read, in a child process. Off: such an answer is wrong."""

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
    """Return the policy with a name.

    Raises:
        UsageError: there is no such policy.
    """
    policies: dict[str, Policy] = {"math": MATH, "qwen": QWEN, "strict": STRICT}
    if name not in policies:
        raise UsageError(
            f"There is no grading policy '{name}'.{suggest_nearest(name, policies)} There are: {', '.join(policies)}."
        )
    return policies[name]
