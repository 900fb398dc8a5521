"""A rank whose peers do not come says what it waits for, and gives up when it is told to."""

from __future__ import annotations

import pytest
from ranks import find_port

from qed.errors import RankLost
from qed.training import joining
from qed.training.joining import join_ranks


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> int:
    """This process is rank 0 of two; the port where it waits for the other."""
    port = find_port()
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joining, "SILENT", 0.3)
    return port


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_a_rank_that_waits_says_so(
    first_of_two: int, local_rank: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Again and again, but only one on each machine."""
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    with pytest.raises(RankLost, match=r"WORLD_SIZE is 2, .* cannot find the others: .*[^.]\. Start all of them"):
        join_ranks("cpu", seconds=1.0)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("Rank 0 of 2 has waited")]
    assert all(f"127.0.0.1:{first_of_two}" in line for line in said)
    assert len(said) >= 2 if local_rank == "0" else not said
