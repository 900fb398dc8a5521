"""The run folder as the other ranks of a run see it: rank 0 writes it, and they write only logs of their own."""

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
        folder: of the run.
        home: the folder that messages about resuming name, if it is not the run's own.
        attempt: the number that rank 0 has given to this attempt.
        rank: of this process.
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
        """The file for what this rank's rewards print."""
        return self.log.with_name(f"rank_{self.rank}.rewards.log")

    def require_shared(self, host: str) -> None:
        """Refuse a folder in which this process does not see what rank 0 has written.

        Args:
            host: the name of this machine, for the message.

        Raises:
            UsageError: the log folder of this attempt is missing.
        """
        if not self.log.parent.is_dir():
            raise UsageError(
                f"{host} does not see the run's folder {self.folder.resolve()}, in which rank 0 writes. Put --out on "
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
        """Leave it to rank 0, which has the same events."""

    def metrics(self, row: Row) -> None:
        """Leave it to rank 0, which has the same metrics."""

    def rollouts(self, step: int, groups: Groups, trained: Groups | None = None) -> None:
        """Leave it to rank 0, which has all rollouts."""

    def evaluation(self, step: int, task: str, rows: Sequence[Row], summary: Row) -> None:
        """Leave it to rank 0, which has all answers."""

    def write(self, name: str, content: bytes) -> None:
        """Leave it to rank 0."""

    def sync(self) -> None:
        """Leave it to rank 0."""

    def truncate(self, step: int) -> None:
        """Leave it to rank 0."""
