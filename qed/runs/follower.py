"""The run folder for the ranks other than 0: rank 0 writes it, and the others write only their own logs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from qed.errors import QedError, UsageError
from qed.guards.ranks import claim_failure
from qed.runs.run import Row, Run
from qed.types import Groups


class FollowerRun(Run):
    """A run's folder in which this process writes only its log, `logs/attempt_N/rank_K.log`.

    Args:
        folder: the folder of the run.
        home: the folder to name in messages about resuming, if it is not the run's own.
        attempt: the number that rank 0 has assigned to this attempt.
        rank: the rank of this process.
    """

    def __init__(self, folder: Path, home: str, attempt: int, rank: int) -> None:
        self.folder = folder
        self.home = Path(home) if home else folder
        self.attempt = attempt
        self.log = folder / "logs" / f"attempt_{attempt}" / f"rank_{rank}.log"
        self.rank = rank
        self._written = set()

    @property
    def reward_log(self) -> Path:
        """The file for the output of this rank's rewards."""
        return self.log.with_name(f"rank_{self.rank}.rewards.log")

    def require_shared(self, host: str) -> None:
        """Check that this process sees what rank 0 has written to the folder.

        Args:
            host: the name of this machine, for the message.

        Raises:
            UsageError: the log folder of this attempt is missing.
        """
        if not self.log.parent.is_dir():
            raise UsageError(
                f"{host} does not see the run's folder {self.folder.resolve()}, to which rank 0 writes. Put --out on "
                "storage that all machines share, under the same path."
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is not None and claim_failure():  # rank 0 has not noticed it yet
            with suppress(OSError, QedError):
                code = getattr(error, "exit_code", 1)
                super().event("failed", reason=str(error)[:500], exit_code=code, rank=self.rank)

    def event(self, kind: str, **what: Any) -> None:
        """Do nothing: rank 0 records the same events."""

    def metrics(self, row: Row) -> None:
        """Do nothing: rank 0 has the same metrics."""

    def rollouts(self, step: int, groups: Groups, trained: Groups | None = None) -> None:
        """Do nothing: rank 0 has all rollouts."""

    def evaluation(self, step: int, task: str, rows: Sequence[Row], summary: Row) -> None:
        """Do nothing: rank 0 has all answers."""

    def write(self, name: str, content: bytes) -> None:
        """Do nothing: rank 0 writes the files."""

    def sync(self) -> None:
        """Do nothing: rank 0 writes the files."""

    def truncate(self, step: int) -> None:
        """Do nothing: rank 0 deletes the files."""
