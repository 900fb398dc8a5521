"""One turn: the policy answers, and there is no reply."""

from __future__ import annotations

from qed.environments.base import SINGLE

environment = SINGLE
