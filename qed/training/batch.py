"""Padded batches of rollouts, aligned on labels, and micro-batches within a token budget.

Masks are made by position, never by comparing ids with pad or end tokens. Rows are never split.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qed.training.support import RowSupport
from qed.types import Column, Rollout

DTYPES = {"i": np.int32, "d": np.float64, "b": np.int8}  # of a rollout's columns, by typecode
UNKNOWN = ("behaviour_logps", "returns")  # columns that are NaN where there is no value
# Counts of rows, rows with a gradient, trained tokens and computed tokens: summed over updates, not averaged.
COUNTS = ("train/rows", "train/live_rows", "train/tokens", "train/computed_tokens")
MISMATCH = ("mismatch/logp", "mismatch/kl")  # the metrics of `measure_mismatch`


@dataclass(frozen=True)
class Batch:
    """The rows of a step as columns [B, T] aligned on labels; T is the length of the longest row minus one.

    `attention` marks inputs that are not padding, `mask` labels that are trained response tokens. A response token that
    is not trained, such as one of a tool's result, is an ordinary input; its other columns have padding values.
    """

    inputs: Tensor  # collate: int64, right-padded
    labels: Tensor  # collate: int64, the next tokens
    attention: Tensor  # collate: int64, 1 where the input is not padding
    mask: Tensor  # collate: float, 1 where the label is a trained response token
    advantages: Tensor  # collate: float, advantages of all response tokens
    expert: Tensor  # collate: float, 1 where a trained label is from a demonstration or a replay
    behaviour_logps: Tensor  # collate: float, labels' log-probs under the policy that wrote them; NaN if unknown
    sampled_logps: Tensor  # collate: float, the sampler's; NaN if unknown or in SFT data, 0 where `expert` is 1
    old_logps: Tensor  # collate: float, the learner's if it scored them, otherwise the sampler's
    ref_logps: Tensor  # collate: float, the reference model's; 0 without one
    values: Tensor  # collate: float, the critic's before the step's first update; 0 without a critic
    returns: Tensor  # collate: float, the critic's targets; NaN where it learns nothing
    weights: Tensor  # with_weights: float, the weight of each token in the step's loss; 0 until then
    prepared: Tensor  # prepare: float, values that the algorithm computed over all rows; 0 until then
    log_squares: Tensor  # learner: float, log sum_v p_v^2 of the current policy; 0 unless the algorithm reads it
    # collate: for each row, which tokens could be sampled at its labels; empty if all tokens could in all rows
    support: tuple[RowSupport | None, ...] = ()
    # collate: the same rows with the prompts that the teacher sees, with weights of 1 in rows whose prompt differs;
    # None if no prompt differs
    teacher: Batch | None = None
    # learner: float [B, T], current values of a value head on the policy's trunk, with a gradient, if there is one
    predicted: Tensor | None = None
    divergence: Tensor | None = (
        None  # learner: float [B, T], divergence to the teacher, with a gradient, if the algorithm reads it
    )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.inputs)

    def select(self, rows: Tensor | Sequence[int]) -> Batch:
        """Return a batch of the selected rows, in that order, cut to the longest of them."""
        # Convert to a tensor once; torch would do so for each column.
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.inputs.device)
        attention = self.attention.index_select(0, index)
        width = int(attention.sum(1).max()) if len(attention) else 0
        # Cut the columns first, so that the copied rows do not include them.
        columns = {name: getattr(self, name)[:, :width].index_select(0, index) for name in COLUMNS}
        support = tuple(self.support[int(row)] for row in rows) if self.support else ()
        return Batch(**columns, support=support, teacher=None if self.teacher is None else self.teacher.select(rows))

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        columns = {name: getattr(self, name).to(device) for name in COLUMNS}
        return Batch(**columns, support=self.support, teacher=None if self.teacher is None else self.teacher.to(device))

    def with_weights(self, weights: Tensor) -> Batch:
        """Return the batch with token weights."""
        return replace(self, weights=weights)


OPTIONAL = ("support", "teacher", "predicted", "divergence")
COLUMNS = tuple(column.name for column in fields(Batch) if column.name not in OPTIONAL)  # of a batch, [B, T] each


def collate(rollouts: Sequence[Rollout], pad: int = 0, dtype: torch.dtype = torch.float32) -> Batch:
    """Pad rollouts on the right into one batch; its weights are 0 until `with_weights`.

    Args:
        rollouts: rows of the batch, at least one.
        pad: padding id; any id will do, as nothing reads it.
        dtype: dtype of the float columns, float32 or float64.
    """
    rows, width = len(rollouts), max(len(r.prompt) + len(r.output) for r in rollouts) - 1
    # NumPy writes a few numbers into part of a row in a tenth of torch's time.
    ids, attention = np.full((rows, width + 1), pad, np.int64), np.zeros((rows, width), np.int64)
    blank = {name: np.nan if name in UNKNOWN else 0.0 for name in COLUMNS[3:]}
    kind = np.float64 if dtype == torch.float64 else np.float32
    columns = {name: np.full((rows, width), value, kind) for name, value in blank.items()}
    for row, rollout in enumerate(rollouts):
        start, end = len(rollout.prompt), len(rollout.prompt) + len(rollout.output)
        for begin, tokens in ((0, rollout.prompt), (start, rollout.output)):
            if tokens:
                ids[row, begin : begin + len(tokens)] = read_numbers(tokens)
        attention[row, : end - 1] = 1
        # The last prompt token's label is the first response token; without a prompt, the first token is not a label.
        first, unlabelled = max(0, start - 1), int(start == 0)
        for name, values in _read_columns(rollout).items():
            if isinstance(values, float | int):
                columns[name][row, first : end - 1] = values
            elif values is not None and len(values) > unlabelled:
                labelled = values[unlabelled:]
                columns[name][row, first : first + len(labelled)] = labelled
    not_trained = columns["mask"] == 0
    for name, column in columns.items():
        np.copyto(column, blank[name], where=not_trained)
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    support = tuple(RowSupport.of(rollout) for rollout in rollouts)
    return Batch(
        inputs=torch.from_numpy(ids[:, :-1]),
        labels=torch.from_numpy(ids[:, 1:]),
        attention=torch.from_numpy(attention),
        **tensors,
        support=support if any(row is not None for row in support) else (),
        teacher=_collate_teacher(rollouts, pad, dtype) if any(r.teacher_prompt for r in rollouts) else None,
    )


def _collate_teacher(rollouts: Sequence[Rollout], pad: int, dtype: torch.dtype) -> Batch:
    shown = collate(show_teacher(rollouts), pad, dtype)
    other = torch.tensor([bool(rollout.teacher_prompt) for rollout in rollouts])
    return shown.with_weights(shown.mask * other[:, None])


def show_teacher(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts with the prompts that the teacher sees."""
    return [
        replace(rollout, prompt=rollout.teacher_prompt, teacher_prompt=()) if rollout.teacher_prompt else rollout
        for rollout in rollouts
    ]


def _read_columns(rollout: Rollout) -> dict[str, NDArray[Any] | float | None]:
    """Return the columns of a rollout from its first response token on: one value for all tokens, or one per token."""
    advantage, sampled = rollout.advantage, rollout.sampled_mask
    return {
        "mask": read_numbers(rollout.loss_mask) if rollout.loss_mask else 1.0,
        "advantages": advantage if isinstance(advantage, float | int) else read_numbers(advantage),
        # `collate` removes it from tokens that are not trained.
        "expert": 1 - read_numbers(sampled) if sampled else 0.0,
        "behaviour_logps": read_numbers(rollout.behaviour),
        "sampled_logps": read_numbers(rollout.logps) if rollout.logps else torch.nan,
        "old_logps": read_numbers(rollout.logps if rollout.old_logps is None else rollout.old_logps),
        "ref_logps": None if rollout.ref_logps is None else read_numbers(rollout.ref_logps),
        "values": None if rollout.values is None else read_numbers(rollout.values),
        "returns": None if rollout.returns is None else read_numbers(rollout.returns),
    }


def read_numbers(values: Sequence[float]) -> NDArray[Any]:
    """Return numbers as an array; a `Column` shares its memory, anything else becomes float64."""
    if type(values) is Column:
        return np.frombuffer(values.numbers, DTYPES[values.numbers.typecode])
    return np.asarray(values, np.float64)


def split_rows(values: Tensor, rollouts: Sequence[Rollout]) -> list[Sequence[float]]:
    """Split a column of the batch that `collate` builds into columns aligned on the output of each rollout.

    A first token without a prompt before it is not a label, and gets 0.
    """
    outputs: list[Sequence[float]] = []
    for row, rollout in zip(values.double().cpu().numpy(), rollouts, strict=True):
        first, end = len(rollout.prompt) - 1, len(rollout.prompt) + len(rollout.output) - 1
        numbers = array("d", [0.0] if first < 0 else [])
        numbers.frombytes(row[max(0, first) : end].tobytes())
        outputs.append(Column(numbers) if numbers else ())
    return outputs


def cut_microbatches(batch: Batch, budget: int, together: int = 1) -> list[list[int]]:
    """Return the rows of each micro-batch, sorted by length, with at most `budget` padded tokens.

    Every `together` consecutive rows, such as the two of a preference pair, stay in one micro-batch. Rows longer than
    the budget get their own micro-batch.
    """
    lengths = batch.attention.sum(1).tolist()
    bundles = [range(start, start + together) for start in range(0, len(batch), together)]
    widths = [max(lengths[row] for row in bundle) for bundle in bundles]
    parts: list[list[int]] = []
    for number in sorted(range(len(bundles)), key=widths.__getitem__):
        # Bundles are sorted by width, so this one sets the width of the part that it joins.
        if parts and (len(parts[-1]) + together) * widths[number] <= budget:
            parts[-1] += bundles[number]
        else:
            parts.append(list(bundles[number]))
    return parts


def compute_row_means(columns: Tensor, batch: Batch) -> list[list[float]]:
    """Return the mean of each column, of [C, B, T], over the trained tokens of each row, [C, B]."""
    means: list[list[float]] = ((columns * batch.mask).sum(2) / batch.mask.sum(1).clamp(min=1)).tolist()
    return means


def has_sampled_logp(batch: Batch) -> Tensor:
    """Return which tokens are trained and have a log-prob from the sampler, [B, T] bool.

    Tokens of demonstrations have none, and a sampler may report NaN.
    """
    return (batch.mask != 0) & (batch.expert == 0) & ~batch.sampled_logps.isnan()


def split_by_gradient(rollouts: Sequence[Rollout], live: Sequence[bool]) -> tuple[list[Rollout], list[Rollout]]:
    """Split rows into those with a gradient (`live`) and the others; an empty `live` means all have one."""
    flags = live or [True] * len(rollouts)
    pairs = list(zip(rollouts, flags, strict=True))
    return [row for row, flag in pairs if flag], [row for row, flag in pairs if not flag]


def measure_mismatch(logps: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Compare the sampler's log-probs with the learner's: return sums of |d| and of the KL estimate e^d - 1 - d.

    The sums are over the tokens of `has_sampled_logp`. From a step's second update on, they include the change of the
    policy itself.
    """
    difference = (logps - batch.sampled_logps).masked_fill(~has_sampled_logp(batch), 0)
    sums = difference.abs().sum(), (difference.exp() - 1 - difference).sum()
    return dict(zip(MISMATCH, sums, strict=True))


def compute_means(sums: Mapping[str, Tensor | float], step_means: Sequence[str], batch: Batch) -> dict[str, float]:
    """Turn the sums of a step's micro-batches into its metrics.

    Args:
        sums: sums over all micro-batches, by name.
        step_means: names of metrics that are already weighted by the step's token weights, as the loss is. These,
        counts
            and maxima are not divided; all others are divided by the number of trained tokens, and `MISMATCH` by that
            of `has_sampled_logp`, or left out if there are none.
        batch: rows of all micro-batches.
    """
    tokens, compared = float(batch.mask.sum()) or 1.0, float(has_sampled_logp(batch).sum())
    final = {name for name in sums if name.endswith("_max")} | {"train/loss", *COUNTS, *step_means}
    counts = dict.fromkeys(final, 1.0) | dict.fromkeys(MISMATCH, compared)
    means = {name: (float(total), counts.get(name, tokens)) for name, total in sums.items()}
    return {name: total / count for name, (total, count) in means.items() if count}
