"""Repeats a computation with smaller micro-batches when memory runs out.

A loss is a sum, so the gradient does not depend on how a step is cut. A step that does not fit is restarted with half
as many tokens per micro-batch, and so are all later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from qed.errors import QedError, is_out_of_memory
from qed.guards.out_of_memory import call_if_it_fits
from qed.training.batch import Batch
from qed.training.parallel import Parallel

Result = TypeVar("Result")
WHAT_FITS = (
    "To save memory: model.gradient_checkpointing=true, model.precision=bfloat16 and model.dtype=bfloat16, "
    "learner.optimizer=adamw_offload, adapters (model.lora_rank=16), shorter rows (sampling.max_tokens, "
    "data.max_prompt_tokens), or more processes that share the model. qed doctor --fit measures what fits."
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a computation in one process.

    `failed` tells whether memory ran out. `tokens` and `alone` describe the last micro-batch: the total tokens of its
    rows, and whether they cannot be split.
    """

    failed: bool = False
    tokens: int = 0
    alone: bool = True


def choose_budget(outcomes: Sequence[Outcome], budget: int) -> int | None:
    """Return the micro-batch size in tokens to repeat a computation with; None if it fitted on all processes.

    Args:
        outcomes: outcomes of all processes that share the computation, so that all choose the same.
        budget: current micro-batch size in tokens.

    Raises:
        QedError: rows that cannot be split do not fit.
    """
    failed = [outcome for outcome in outcomes if outcome.failed]
    if not failed:
        return None
    alone = max((outcome.tokens for outcome in failed if outcome.alone), default=None)
    if alone is not None:
        part = f"a micro-batch of {alone:,} tokens, which cannot be split: it is one row, or rows that belong together"
        raise QedError(f"The device's memory does not hold {part if alone else 'the rows of a step'}. {WHAT_FITS}")
    return max(1, min(budget, *(outcome.tokens for outcome in failed)) // 2)


class MicrobatchBudget:
    """A micro-batch size in tokens, halved for the rest of the run whenever memory runs out.

    `report` is called with each smaller budget.

    Args:
        tokens: initial size.
        join: exchanges this process's outcome for those of all processes that share the computation.
        repeats: whether a computation can be repeated; if not, its errors are raised.
    """

    def __init__(
        self,
        tokens: int,
        join: Callable[[Outcome], list[Outcome]] = lambda outcome: [outcome],
        repeats: bool = True,
    ) -> None:
        self.tokens = tokens
        self.join = join
        self.repeats = repeats
        self.report: Callable[[int], None] = lambda tokens: None
        self._current = Outcome()

    def watch(self, parts: Iterable[list[int]], batch: Batch, together: int = 1) -> Iterator[list[int]]:
        """Yield the rows of each micro-batch of a batch, and record which one is being computed.

        `together` is the number of rows that are never separated.
        """
        lengths = batch.attention.sum(1).tolist()
        for rows in parts:
            self._current = Outcome(tokens=sum(lengths[row] for row in rows), alone=len(rows) <= together)
            yield rows

    def repeat(self, compute: Callable[[], Result], clear: Callable[[], None] | None = None) -> Result:
        """Call a function that cuts its rows by `tokens` until it fits, and return its result.

        Args:
            compute: function to call.
            clear: drops the remains of a failed call, such as a partial gradient.

        Raises:
            QedError: rows that cannot be split do not fit.
        """
        while self.repeats:
            self._current = Outcome()
            found = call_if_it_fits(compute)
            tokens = choose_budget(self.join(replace(self._current, failed=not found)), self.tokens)
            if tokens is None:
                return found[0]
            found.clear()  # this process's result, because another process has failed
            if clear is not None:
                clear()
            self.tokens = tokens
            self.report(tokens)
        return compute()


class SingleTry(MicrobatchBudget):
    """A budget for ranks that wait for each other within a micro-batch, so none can repeat it alone."""

    def repeat(self, compute: Callable[[], Result], clear: Callable[[], None] | None = None) -> Result:
        """Return the result of a function.

        Raises:
            QedError: memory ran out; the message says how to resume.
        """
        half = max(1, self.tokens // 2)
        advice = f"a micro-batch. Resume with --resume and --learner.tokens_per_microbatch {half}"
        with explain_out_of_memory(advice):
            return compute()


def share_budget(tokens: int, parallel: Parallel) -> MicrobatchBudget:
    """Return a budget on which all ranks agree; those of a sharded model cannot repeat a micro-batch."""
    kind = SingleTry if parallel.shards else MicrobatchBudget
    return kind(tokens, lambda own: parallel.exchange(lambda: own))


@contextmanager
def explain_out_of_memory(what: str) -> Iterator[None]:
    """Convert an out-of-memory error that cannot be retried into a QedError about `what`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        first = str(error).split("\n")[0][:300].rstrip(".")
        raise QedError(f"The device's memory does not hold {what}: {first}. {WHAT_FITS}") from error
