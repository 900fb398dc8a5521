"""The base class of all algorithms: settings, and pure functions that the learner and the collector call.

A loss is a weighted sum: averaging is a column of token weights, computed over all rows of an optimizer step before
the split into micro-batches. So micro-batches, row order, padding and ranks cannot change a gradient. Nothing here
imports torch at import time, to keep `qed grpo --help` fast: algorithms use only methods of the tensors they receive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from qed.algorithms.parts.estimators import call_for_group
from qed.config.field_names import find_short_names, flatten_fields, replace_fields
from qed.config.settings import require as require
from qed.types import Advantage, Group, Groups, Problem, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.algorithms.parts.critic import Critic
    from qed.rollout.replay import ReplayBuffer
    from qed.training.batch import Batch

# Computes the mean entropy and the mean log-prob of each rollout, over its tokens, under the current policy.
ScoreFn = Callable[[Sequence[Rollout]], list[tuple[float, float]]]
Average = Literal["token", "sequence", "constant", "sequence_sum"]


def compute_token_weights(mask: Tensor, average: Average, length: int) -> Tensor:
    """Compute the weight of every token in the step's loss, [B, T]; `mask` holds all rows of the optimizer step.

    `token` is DAPO's mean over all tokens; `sequence` is GRPO's mean over rows of each row's mean; `constant` is Dr.
    GRPO's sum divided by rows times `length` (the generation budget or a user-defined number); `sequence_sum` is the
    mean over rows of each row's sum.
    """
    rows = len(mask)
    if average == "token":
        return mask / mask.sum().clamp(min=1)
    if average == "sequence":
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / rows
    return mask / (rows * length if average == "constant" else rows)


class Divergence(NamedTuple):
    """A divergence over the vocabulary, see `qed.training.fused_divergence`."""

    beta: float
    clip: float = math.inf
    top_k: int = 0


@dataclass(frozen=True)
class StepContext:
    """The current step of the phase (counted from 1), its number of steps, and the run's seed for random draws."""

    step: int
    steps: int
    seed: int


class BuiltByAnyName(type):
    """Metaclass that accepts the settings of an algorithm's parts by their short names: `Grpo(clip_high=0.28)`."""

    def __call__(cls, *parts: Any, **settings: Any) -> Any:
        own = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
        other = {name for name, value in settings.items() if name not in own or _is_part(own[name], value)}
        if not other:
            return super().__call__(*parts, **settings)
        defaults = super().__call__(*parts)
        paths = flatten_fields(defaults)
        if other <= {*paths, *find_short_names(paths)}:
            return replace_fields(defaults, settings)
        return super().__call__(*parts, **settings)  # raises the usual TypeError


def _is_part(field: Field[Any], value: Any) -> bool:
    """Whether a plain value is passed for a field that holds a dataclass; it then sets the part's kind."""
    return not is_dataclass(value) and (is_dataclass(field.default) or is_dataclass(field.default_factory))


@dataclass(frozen=True)
class Algorithm(metaclass=BuiltByAnyName):
    """Base class with a default for every stage: one group per problem, all rows trained, token mean."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    average_length: int = 0
    """Length that average=constant divides by; 0 takes sampling.max_tokens."""

    online: ClassVar[bool] = True
    # Number of consecutive rows that stay in one micro-batch, such as the two of a preference pair.
    together: ClassVar[int] = 1
    # Whether the trained model has a scalar head instead of its output layer.
    has_scalar_head: ClassVar[bool] = False
    # Whether the loss is proportional to the advantages, so that a row whose advantages are all 0 has no gradient.
    by_advantage: ClassVar[bool] = True
    # Metrics of `loss` that are already means; all others are sums over the trained tokens.
    step_means: ClassVar[tuple[str, ...]] = ()
    # Defaults that override those of settings.py; `fresh_defaults` are added for a randomly initialised model, which
    # tolerates, and needs, a far larger learning rate than a pretrained one.
    defaults: ClassVar[dict[str, Any]] = {}
    fresh_defaults: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        require(0 <= self.average_length < 2**31, "algorithm.average_length must be 0 or more, and below 2^31.")

    @property
    def unread(self) -> dict[str, str]:
        """The settings that have no effect, by path, each with the setting that disables it."""
        return {} if self.average == "constant" else {"average_length": f"average={self.average}"}

    @property
    def moving_weights(self) -> dict[str, float]:
        """The loss weights that `adapt` adjusts to reach a target, by the names of their metrics."""
        return {}

    @property
    def reference(self) -> bool:
        """Whether the loss reads the log-probs of a frozen reference model."""
        return False

    @property
    def reference_name(self) -> str:
        """The name or folder of the reference model; empty for the model at the start of the phase."""
        return ""

    @property
    def teacher_setting(self) -> str:
        """The setting that must name the reference model because it is a teacher; empty if none is required."""
        return ""

    @property
    def teacher_server(self) -> tuple[str, str]:
        """The address of the teacher server that scores answers, and its model's name; empty for none."""
        return "", ""

    @property
    def reference_moves(self) -> tuple[int, float]:
        """The interval in steps at which the reference model moves towards the policy, and how far; 0 steps: never."""
        return 0, 1.0

    @property
    def scores_reference(self) -> bool:
        """Whether the reference model scores the answers before the update; a divergence reads no such scores."""
        return self.reference

    @property
    def teacher_divergence(self) -> Divergence | None:
        """The divergence to the teacher that the loss reads from the batch; None for none.

        The teacher is the reference model if there is one, otherwise the policy itself.
        """
        return None

    @property
    def teacher_wording(self) -> str:
        """Template of the teacher's prompt; empty if the teacher sees the policy's prompt.

        `{question}` and `{demonstration}` are placeholders.
        """
        return ""

    @property
    def value_model(self) -> Critic | None:
        """The settings of the critic whose values the advantages use; None without a critic."""
        return None

    @property
    def log_squares(self) -> bool:
        """Whether the loss reads the batch's `log_squares`."""
        return False

    @property
    def reads_rewards(self) -> bool:
        """Whether the loss reads rewards, so that nothing is learned if all rewards are equal."""
        return True

    @property
    def restarts_each_step(self) -> bool:
        """Whether every step starts from the initial weights of the phase."""
        return False

    @property
    def guided(self) -> bool:
        """Whether groups contain demonstrations, so that problems need one."""
        return False

    @property
    def needs_correctness(self) -> bool:
        """Whether the algorithm reads `Grade.correct`, which requires a reward that judges correctness."""
        return False

    @property
    def needs_old_logps(self) -> bool:
        """Whether the learner must compute `old_logps` even with a single update per step."""
        return False

    @property
    def has_ratio(self) -> bool:
        """Whether the loss reads `old_logps` for a ratio, which a sampler's inexact log-probs would distort."""
        return False

    @property
    def scored_before_credit(self) -> bool:
        """Whether the advantages read `old_logps` or `ref_logps`, as a KL in the reward does."""
        return False

    @property
    def two_pass(self) -> bool:
        """Whether `prepare` needs the policy's log-probs and entropies of all rows, which costs a forward pass."""
        return False

    def at_step(self, context: StepContext) -> Self:
        """Return the algorithm with this step's values of the coefficients that follow a schedule."""
        return self

    def check(self, group_size: int) -> None:
        """Reject a group size from which the algorithm cannot learn anything."""

    def plan(self, problems: Sequence[Problem], group_size: int, context: StepContext) -> list[Request]:
        """Return the requests to the sampler for this step."""
        return [Request(problem, group_size) for problem in problems]

    def recall(
        self, pool: ReplayBuffer, wanted: int, group_size: int, context: StepContext, score: ScoreFn
    ) -> list[Request]:
        """Return requests that replay earlier completions; they count towards the `wanted` problems of the step.

        Args:
            pool: the completions stored by `remember`.
            wanted: the number of problems in the step.
            group_size: completions per problem.
            context: the current step.
            score: computes the mean entropy and the mean log-prob of rollouts under the current policy.
        """
        return []

    def remember(self, groups: Groups, pool: ReplayBuffer, version: int) -> None:
        """Store the completions of the step's groups that later steps may recall.

        Args:
            groups: the step's groups, graded, scored and with advantages.
            pool: stores them; saved in every checkpoint.
            version: version of the policy that sampled them.
        """

    def extra_minibatches(self, sampled: Groups, pool: ReplayBuffer, wanted: int) -> list[list[Rollout]]:
        """Return minibatches to train after those of the step, each in a separate update.

        Args:
            sampled: all graded groups sampled for the step, including those that `filter_groups` drops.
            pool: holds the `waiting` demonstrations, saved in every checkpoint.
            wanted: the number of problems in the step.
        """
        return []

    def filter_groups(self, groups: Groups) -> list[Group]:
        """Return the newly sampled, graded groups to train on; the others are recorded and dropped."""
        return list(groups)

    def enough(self, groups: Groups, wanted: int, rounds: int) -> bool:
        """Whether `groups` suffice after this many rounds of sampling, so that the collector need not sample more."""
        return rounds > 0

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute the advantage of every rollout of every group; by default from each group alone.

        A rollout without a reward gets 0 and is not part of its group's statistics.
        """
        return [self._advantages(group) for group in groups]

    def _advantages(self, group: Group) -> list[Advantage]:
        # Imported here because nothing else in this file needs torch, and the command line imports it for `--help`.
        from torch import float64, tensor  # noqa: PLC0415

        rewards = tensor([rollout.reward for rollout in group if rollout.has_reward], dtype=float64)
        values = iter(call_for_group(self.advantages, rewards).tolist())
        return [next(values) if rollout.has_reward else 0.0 for rollout in group]

    def advantages(self, rewards: Tensor) -> Tensor:
        """Compute the advantages of one group, [G] float64, from its rewards, [G] float64."""
        return rewards

    def compute_returns(self, rollout: Rollout) -> Sequence[float]:
        """Compute the critic's target at each token of a graded rollout with values; NaN where there is none."""
        return (math.nan,) * len(rollout.output)

    def rows(self, groups: Groups) -> list[Rollout]:
        """Return the rollouts that the loss of this step averages over."""
        return [rollout for group in groups for rollout in group]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """Compute the weight of every token, [B, T], of all rows of the step; `length` is the generation budget."""
        return compute_token_weights(batch.mask, self.average, self.average_length or length)

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """Return the batch with everything that must be computed over all rows of the step before they are split.

        Args:
            batch: all rows of the step, with their weights.
            logps: [B, T], the policy's log-probs of the labels, without a gradient; None unless `two_pass`.
            entropy: [B, T], the policy's entropies; None unless `two_pass`.
        """
        return batch

    def compute_metrics(self, batch: Batch) -> dict[str, float]:
        """Compute metrics over all rows of the step, including those without a gradient; called before `prepare`."""
        return {}

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return which rows have a gradient, [B] bool; the others count in the average but need no forward pass."""
        return (batch.advantages != 0).any(1) if self.by_advantage else batch.mask.any(1)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a micro-batch as a weighted sum, and sums for the metrics (see `step_means`).

        Args:
            batch: the rows; its columns are [B, T], aligned on labels.
            logps: [B, T], log-probs of the labels under the current policy.
            entropy: [B, T], entropy of the current policy.
        """
        raise NotImplementedError

    def adapt(self, stats: Mapping[str, float]) -> Self:
        """Return the algorithm for the next step, given this step's metrics: itself or a copy with new coefficients."""
        return self


def require_moves(every: int, mix: float, setting: str = "reference") -> None:
    """Reject a negative interval for moving the reference model (`setting`), and a mix outside (0, 1]."""
    require(every >= 0, f"algorithm.{setting}_every must not be negative.")
    require(0 < mix <= 1, f"algorithm.{setting}_mix must lie in (0, 1].")


def select_correct(group: Group) -> list[Rollout]:
    """Return the group's completions that are correct and have a reward."""
    return [rollout for rollout in group if (grade := rollout.grade) is not None and grade.correct and grade.has_reward]
