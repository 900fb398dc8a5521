"""Points at which tests hurt a run do nothing unless one is armed, and meet their fault at the passing it names."""

from __future__ import annotations

import errno
import math

import pytest

from qed.errors import UsageError
from qed.guards import faults


def test_unarmed_points_do_nothing() -> None:
    assert faults.ARMED == ""
    for point in ("load", "rollout", "grade", "update", "evaluate", "save", "step"):
        faults.hit(point)
        assert faults.pass_through(point, 0.5) == 0.5


def test_the_passing_that_is_named_meets_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ARMED", "somewhere:enospc:3")
    met = []
    for passing in range(1, 6):
        faults.hit("elsewhere")
        try:
            faults.hit("somewhere")
        except OSError as error:
            met.append((passing, error.errno))
    assert met == [(3, errno.ENOSPC)]
    monkeypatch.setattr(faults, "ARMED", "number:nan")
    assert math.isnan(faults.pass_through("number", 1.0))
    assert faults.pass_through("number", 1.0) == 1


@pytest.mark.parametrize("armed", ["save", "save:explode", "save:kill:soon"])
def test_what_is_no_fault_is_refused(monkeypatch: pytest.MonkeyPatch, armed: str) -> None:
    monkeypatch.setattr(faults, "ARMED", armed)
    with pytest.raises(UsageError, match="is not a fault"):
        faults.hit("save")
