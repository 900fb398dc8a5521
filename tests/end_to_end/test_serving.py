"""`qed serve` as a user starts it: a saved model behind the API, asked by the standard library, up to its end."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("serving")
TOKEN = "correct-horse"
KEY = {"Authorization": f"Bearer {TOKEN}"}
PROMPT = "1 and 2 €"
