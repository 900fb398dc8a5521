"""One turn: the policy answers, and nothing is said after it."""

from __future__ import annotations

from qed.environments.base import SINGLE

environment = SINGLE
