"""Compare numbers with a unit or a base, ratios and times of day."""

from __future__ import annotations

from fractions import Fraction

from qed.grading.bounds import Work
from qed.grading.exact import compute_rational
from qed.grading.policy import Policy
from qed.grading.scalars import are_same_scalar, is_scalar
from qed.grading.tree import Node, make_number
from qed.grading.units import BARE
from qed.grading.vocabulary import UNITS

DAY_HALVES = {"am", "pm"}
POUND = UNITS["pound"][1]
ANGLES = {"degree", "radian"}


def are_same_quantity(gold: Node, answer: Node, policy: Policy, work: Work) -> bool:
    """Compare two values of which at least one has a unit: a unit may be missing, but not different."""
    if len({part.name for node in (gold, answer) for part in node.parts[2:] if node.kind == "unit"}) > 1:
        return False
    left, right = _split_unit(gold), _split_unit(answer)
    if left[0].kind == "ratio" or right[0].kind == "ratio" or {left[1], right[1]} & DAY_HALVES:
        return _are_same_time(left, right, policy, work)
    if not all(map(is_scalar, (left[0], right[0]))):
        return False
    if "percent" in (left[1], right[1]):
        return _are_same_percent(left, right, policy, work)
    bare = [side[1].startswith(f"{BARE}^") for side in (left, right)]
    if all(bare) or (left[1] and right[1] and not any(bare)):  # square units are not cubic units, but may be cm²
        return _have_same_units(left, right, policy, work)
    if are_same_scalar(left[0], right[0], work):
        return True
    return policy.convert_units and _are_same_angle(left, right, work)


def _split_unit(node: Node) -> tuple[Node, str, Fraction]:
    """Return value, dimension and factor of the unit; the dimension is "" for no unit and for the word `units`."""
    if node.kind != "unit":
        return node, "", Fraction(1)
    return node.parts[0], node.name, node.parts[1].number


def _scale(value: Node, factor: Fraction) -> Node:
    return Node("multiply", parts=(value, make_number(factor)))


def _have_same_units(
    left: tuple[Node, str, Fraction], right: tuple[Node, str, Fraction], policy: Policy, work: Work
) -> bool:
    if {left[1], right[1]} == ANGLES:
        return policy.convert_units and _are_same_angle(left, right, work)
    if {left[1], right[1]} == {"sterling", "mass"} and POUND in (left[2], right[2]):  # 20 pounds against £20
        return are_same_scalar(left[0], right[0], work)
    if left[1] != right[1]:
        return False
    if left[2] == right[2]:
        return are_same_scalar(left[0], right[0], work)
    return policy.convert_units and are_same_scalar(_scale(left[0], left[2]), _scale(right[0], right[2]), work)


def _are_same_angle(left: tuple[Node, str, Fraction], right: tuple[Node, str, Fraction], work: Work) -> bool:
    """Compare angles in degrees and radians: 30° equals π/6."""
    if (left[1] == "degree") == (right[1] == "degree") or not {left[1], right[1]} <= ANGLES | {""}:
        return False
    sides = [Node("degree", parts=(side[0],)) if side[1] == "degree" else side[0] for side in (left, right)]
    return are_same_scalar(sides[0], sides[1], work)


def _are_same_percent(
    left: tuple[Node, str, Fraction], right: tuple[Node, str, Fraction], policy: Policy, work: Work
) -> bool:
    """Compare percentages: 20 % equals 0.2, and by convention 20; but 0.4 is a fraction, so it does not equal 0.4 %."""
    if left[1] == right[1]:
        return are_same_scalar(left[0], right[0], work)
    percent, plain = (left, right) if left[1] == "percent" else (right, left)
    if plain[1]:
        return False
    if are_same_scalar(_scale(percent[0], Fraction(1, 100)), plain[0], work):
        return True
    if not policy.percent_sign_optional or not are_same_scalar(percent[0], plain[0], work):
        return False
    fraction = compute_rational(plain[0], work)
    return fraction is None or fraction == 0 or abs(fraction) >= 1


def are_same_ratio(gold: Node, answer: Node, work: Work) -> bool:
    """Compare ratios: 2:3 equals 4:6, 12:18 and 2/3; a time of day equals only itself."""
    if _is_time(gold) or (_is_time(answer) and not gold.name):  # a plain ratio of numbers has a name
        return _read_clock(gold) == _read_clock(answer) != ()
    if gold.kind != answer.kind:
        return (
            len(gold.parts) <= 2
            and len(answer.parts) <= 2
            and are_same_scalar(_build_quotient(gold), _build_quotient(answer), work)
        )
    if len(gold.parts) != len(answer.parts):
        return False
    pairs = list(zip(gold.parts, answer.parts, strict=True))
    first, second = pairs[0]
    return all(
        are_same_scalar(Node("multiply", parts=(first, two)), Node("multiply", parts=(second, one)), work)
        for one, two in pairs[1:]
    )


def _build_quotient(node: Node) -> Node:
    return Node("divide", parts=node.parts) if node.kind == "ratio" else node


def _is_time(node: Node) -> bool:
    """Return whether a node is a time of day: hours and two digits of minutes, with or without seconds."""
    hours, *rest = node.name.split(":") if node.kind == "ratio" else ("",)
    if not (hours.isdigit() and 0 < len(hours) <= 2 and int(hours) <= 24 and 0 < len(rest) <= 2):
        return False
    return all(len(part) == 2 and part.isdigit() and int(part) < 60 for part in rest)


def _read_clock(node: Node) -> tuple[int, ...]:
    """Return hours, minutes and seconds; a bare number is the hour. Return () if the node is not a time."""
    if node.kind == "ratio" and all(part.isdigit() and len(part) <= 4 for part in node.name.split(":")):
        return (*map(int, node.name.split(":")), 0, 0)[:3]
    if node.kind == "number" and node.number.denominator == 1:
        return (node.number.numerator, 0, 0)
    return ()


def _are_same_time(
    left: tuple[Node, str, Fraction], right: tuple[Node, str, Fraction], policy: Policy, work: Work
) -> bool:
    halves = {left[1], right[1]}
    if halves <= DAY_HALVES | {""}:
        if len(halves) > 1 and not ("" in halves and policy.half_day_optional):
            return False
        times = [_read_clock(side[0]) for side in (left, right)]
        hours = {time[0] for time in times if time}
        if "" in halves and len(halves) > 1 and all(times) and (max(hours) > 12 or 0 in hours):  # 15:30 is 3:30 p.m.
            times = [_shift_half_day(time, side[1]) for time, side in zip(times, (left, right), strict=True)]
        return times[0] == times[1] != ()
    if halves & DAY_HALVES or (left[1] and right[1] and left[1] != right[1]):
        return False
    return left[0].kind == right[0].kind and are_same_ratio(left[0], right[0], work)


def _shift_half_day(time: tuple[int, ...], half: str) -> tuple[int, ...]:
    return (time[0] % 12 + 12 * (half == "pm"), *time[1:]) if half else time


def are_same_in_base(gold: Node, answer: Node, policy: Policy) -> bool:
    """Compare numbers with a base, such as 52_8: the base may be omitted but not changed."""
    if gold.parts or answer.parts:  # 2516_2 is not a valid number
        return False
    if gold.kind == answer.kind:
        return gold.name == answer.name
    based, plain = (gold, answer) if gold.kind == "based" else (answer, gold)
    return (
        policy.base_optional
        and not based.number
        and plain.kind == "number"
        and str(plain.number) == based.name.partition("_")[0]
    )
