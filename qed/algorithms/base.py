"""What an algorithm is: settings and a few pure functions; the learner never knows which one it runs.

A loss is a sum: averaging is a column of weights, fixed over all rows of an optimizer step before any cutting. So
micro-batches, row order, padding and ranks cannot change a gradient. Nothing here imports torch at run time, which
keeps `qed grpo --help` instant: leaves use the methods of the tensors that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from qed.config.field_names import find_short_names, flatten_fields, replace_fields
from qed.errors import UsageError
from qed.types import Advantage, Group, Groups, Problem, Request, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.rollout.replay import ReplayBuffer
    from qed.training.batch import Batch

# The mean entropy and the mean log-prob of each of some answers, over their tokens, under the policy as it is.
ScoreFn = Callable[[Sequence[Rollout]], list[tuple[float, float]]]
Average = Literal["token", "sequence", "constant", "sequence_sum"]


def compute_token_weights(mask: Tensor, average: Average, length: int) -> Tensor:
    """The weight of every token in the step's loss, [B, T]; the rows of `mask` are all rows of the optimizer step.

    `token` is DAPO's mean over all tokens, `sequence` is GRPO's mean over rows of each row's mean, `constant` is Dr.
    GRPO's sum over rows times `length`, the generation budget or a number of the user's own, `sequence_sum` the mean
    over rows of each row's sum.
    """
    rows = len(mask)
    if average == "token":
        return mask / mask.sum().clamp(min=1)
    if average == "sequence":
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / rows
    return mask / (rows * length if average == "constant" else rows)


@dataclass(frozen=True)
class StepContext:
    """Where in a run an algorithm is asked: the phase's step, from 1, of `steps`, and the run's seed for its draws."""

    step: int
    steps: int
    seed: int


class BuiltByAnyName(type):
    """Lets an algorithm be built with the short names of its parts' settings too: `Grpo(clip_high=0.28)`."""

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
    """Whether a plain value is given for a field that holds a dataclass: it is the part's kind."""
    return not is_dataclass(value) and (is_dataclass(field.default) or is_dataclass(field.default_factory))


@dataclass(frozen=True)
class Algorithm(metaclass=BuiltByAnyName):
    """The default of every stage: one group a problem, all rows count, the token mean."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    average_length: int = 0
    """The length that the constant average divides by; 0 takes sampling.max_tokens."""

    online: ClassVar[bool] = True
    # So many consecutive rows belong together, such as the two of a preference pair: cutting never parts them.
    together: ClassVar[int] = 1
    # Whether the loss is of advantages: a row whose advantages are all 0 has no gradient then.
    by_advantage: ClassVar[bool] = True
    # The metrics of `loss` that its weights have made means already; every other is a sum over the trained tokens.
    step_means: ClassVar[tuple[str, ...]] = ()
    # What this algorithm sets in place of the defaults in settings.py, and for a model made from nothing besides:
    # weights that are random numbers bear, and need, a far larger learning rate than those that were trained before.
    defaults: ClassVar[dict[str, Any]] = {}
    fresh_defaults: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        """Refuse numbers that no run can mean."""
        require(self.average_length >= 0, "algorithm.average_length must not be negative.")

    @property
    def reference(self) -> bool:
        """Whether a frozen reference model is kept, whose log-probs the loss reads."""
        return False

    @property
    def reference_name(self) -> str:
        """The reference model by its name or folder; empty for the model as it stands when the phase begins."""
        return ""

    @property
    def reference_moves(self) -> tuple[int, float]:
        """After how many steps the reference model moves towards the policy, and how far; 0 steps never."""
        return 0, 1.0

    @property
    def log_squares(self) -> bool:
        """Whether the loss reads the batch's `log_squares`."""
        return False

    @property
    def restarts_each_step(self) -> bool:
        """Whether every step begins from the weights that the phase began with."""
        return False

    @property
    def guided(self) -> bool:
        """Whether groups hold written answers, so that it needs problems which have one."""
        return False

    @property
    def needs_correctness(self) -> bool:
        """Whether it reads which answers are right, which only a reward that judges can say."""
        return False

    @property
    def needs_old_logps(self) -> bool:
        """Whether `old_logps` must be the learner's own even where there is a single update for a sampling."""
        return False

    @property
    def has_ratio(self) -> bool:
        """Whether the loss reads `old_logps`: a sampler's that are not exact would be no ratio of two policies."""
        return False

    @property
    def scored_before_credit(self) -> bool:
        """Whether the advantages read `old_logps` or `ref_logps`, as a KL in the reward does."""
        return False

    @property
    def two_pass(self) -> bool:
        """Whether `prepare` reads the policy's log-probs and entropies over all rows, which costs a forward pass."""
        return False

    def check(self, group_size: int) -> None:
        """Refuse groups, of so many answers, that the algorithm could learn nothing from."""

    def plan(self, problems: Sequence[Problem], group_size: int, moment: StepContext) -> list[Request]:
        """What to ask of the sampler in this step."""
        return [Request(problem, group_size) for problem in problems]

    def recall(
        self, pool: ReplayBuffer, wanted: int, group_size: int, moment: StepContext, look: ScoreFn
    ) -> list[Request]:
        """What to ask again with earlier answers beside it; it counts among the `wanted` problems of the step.

        Args:
            pool: what `remember` has kept.
            wanted: the problems of the step.
            group_size: answers for each.
            moment: of the run.
            look: how the policy as it is sees some answers.
        """
        return []

    def remember(self, groups: Groups, pool: ReplayBuffer, version: int) -> None:
        """Keep what later steps may recall from the step's groups, graded, credited and scored.

        Args:
            groups: of the step.
            pool: keeps them; it is part of every checkpoint.
            version: of the policy that sampled.
        """

    def filter_groups(self, groups: Groups) -> list[Group]:
        """The graded groups that may count, of those just sampled; the others are recorded and dropped."""
        return list(groups)

    def enough(self, groups: Groups, wanted: int, rounds: int) -> bool:
        """Whether the kept groups suffice after so many rounds of sampling, or the recipe should gather more."""
        return rounds > 0

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """The advantage of every rollout of every group; of each group by itself, where nothing else is said.

        A rollout without a reward gets 0 and stays out of its group's statistics.
        """
        return [self._advantages(group) for group in groups]

    def _advantages(self, group: Group) -> list[Advantage]:
        # Imported here, because nothing else of this file needs torch, and the command line reads it for its help.
        from torch import float64, tensor  # noqa: PLC0415

        rewards = tensor([rollout.reward for rollout in group if rollout.has_reward], dtype=float64)
        found = iter(self.advantages(rewards).tolist() if len(rewards) else [])
        return [next(found) if rollout.has_reward else 0.0 for rollout in group]

    def advantages(self, rewards: Tensor) -> Tensor:
        """The advantages of one group, [G] float64, from its rewards, [G] float64."""
        return rewards

    def rows(self, groups: Groups) -> list[Rollout]:
        """The rollouts that count in this step's average."""
        return [rollout for group in groups for rollout in group]

    def weights(self, batch: Batch, length: int) -> Tensor:
        """The weight of every token, [B, T], over all rows of the optimizer step; `length` is the generation budget."""
        return compute_token_weights(batch.mask, self.average, self.average_length or length)

    def prepare(self, batch: Batch, logps: Tensor | None, entropy: Tensor | None) -> Batch:
        """What has to be worked out over all rows of the optimizer step before they are cut, in the weighted batch.

        Args:
            batch: all rows of the step, weights included.
            logps: [B, T], the policy's log-probs of the labels without a gradient; None unless `two_pass`.
            entropy: [B, T], its entropies; None unless `two_pass`.
        """
        return batch

    def compute_metrics(self, batch: Batch) -> dict[str, float]:
        """Metrics over all rows of the optimizer step, those without a gradient too, before `prepare` changes them."""
        return {}

    def has_gradient(self, batch: Batch) -> Tensor:
        """The rows that have a gradient, [B] bool; the others count in the average but are not computed."""
        return (batch.advantages != 0).any(1) if self.by_advantage else batch.mask.any(1)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of some rows as a weighted sum, and sums for the metrics, see `step_means`.

        Args:
            batch: the rows, columns [B, T] aligned on labels.
            logps: [B, T], log-probs of the labels under the current policy.
            entropy: [B, T], entropy of the current policy.
        """
        raise NotImplementedError

    def adapt(self, stats: Mapping[str, float]) -> Self:
        """The algorithm for the next step, given this step's metrics: itself, or a copy with adapted coefficients."""
        return self


def require(condition: bool, message: str) -> None:
    """Raise a UsageError when an algorithm's setting is out of its range."""
    if not condition:
        raise UsageError(message)


def require_moves(every: int, mix: float) -> None:
    """Refuse a reference model that moves after less than no steps, or not towards the policy."""
    require(every >= 0, "algorithm.reference_every must not be negative.")
    require(0 < mix <= 1, "algorithm.reference_mix must lie in (0, 1].")


def select_correct(group: Group) -> list[Rollout]:
    """The answers of a group that the grader found right and that have a reward."""
    return [one for one in group if one.grade is not None and one.grade.correct and one.grade.has_reward]
