"""The types that all packages share: problems, requests, completions, grades and rollouts.

The comment on each field of `Rollout` names the stage of a training step that writes it: `collect` samples or reads the
tokens, `grade` runs the rewards, `credit` computes the advantages, `score` computes log-probs. This module imports no
other module of qed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

StopReason = Literal["stop", "length"]
Source = Literal["policy", "greedy", "demonstration", "expert", "replay"]
UNGRADED = ("timeout", "error")  # values of `Grade.tier` if no grader could decide
# One number for the whole completion, or one per token.
Advantage = float | tuple[float, ...]
T = TypeVar("T", bound=float)


class Column(Sequence[T]):
    """An immutable sequence of one number per token of a rollout, in one block of memory.

    A token id takes 4 bytes, a log-prob 8 and a mask entry 1, instead of 36, 32 and 8 in a tuple. A column equals the
    tuple of its numbers, has the same hash, and can be concatenated with one. `numbers` is the block, of array type
    `i`, `d` or `b`; NumPy and torch read it without a copy.
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: array[Any]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[T]:
        read: Any = map(bool, self.numbers) if self.numbers.typecode == "b" else self.numbers
        return iter(read)

    def __getitem__(self, index: int | slice) -> Any:
        part: Any = self.numbers[index]
        if isinstance(index, slice):
            return Column(part) if part else ()
        return bool(part) if self.numbers.typecode == "b" else part

    def __add__(self, other: Sequence[T]) -> tuple[T, ...]:
        return (*self, *other)

    def __radd__(self, other: Sequence[T]) -> tuple[T, ...]:
        return (*other, *self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            # A NaN equals itself here, as the same object in two tuples does.
            return self.numbers == other.numbers or self.numbers.tobytes() == other.numbers.tobytes()
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def pack_column(kind: str, values: Sequence[T]) -> Sequence[T]:
    """Return values as a `Column` of array type `kind`, or as () if there are none."""
    if type(values) is Column:  # isinstance is slow for other types, because Column is an abstract sequence
        return values
    return Column(array(kind, values)) if len(values) else ()


@dataclass(frozen=True)
class Problem:
    """A question with its reference answer, as a task loads it.

    `solution` is the worked reasoning without its final answer, or empty. `meta` holds optional fields of the data:

    - `subject`, `level`, `source`: for grouping and reports;
    - `completion`: the complete demonstration, verbatim unless `adapt` lets the prompt rewrite it in its own format;
      `traces`: several of them; `trace_probabilities`: the probability of each token of the first one under the model
      that wrote it; `without_steps`: the demonstration deliberately consists of the answer alone;
    - `rendered`: the prompt as the model reads it, if the data provides it;
    - `chosen` and `rejected`: a preference pair;
    - `choices` and `options`: the texts and the letters of a multiple-choice question;
    - `k`: the number of answers to sample, if the data requests k answers by repeating the problem.
    """

    id: str
    question: str
    answer: str
    solution: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_preference(self) -> bool:
        """Whether the data gives a chosen and a rejected completion."""
        return "chosen" in self.meta and "rejected" in self.meta


@dataclass(frozen=True)
class Request:
    """The completions that an algorithm requests for one problem of a step.

    `count` is the size of the group. `shares` apply to its first completions: each begins with that share of the
    problem's demonstration, and the policy continues it. With a share of 1 the complete demonstration joins the group,
    and nothing is sampled. `extra_completions` are finished rollouts that join the group, such as replayed ones. Both
    count towards `count`. `demonstrations` is the number of complete demonstrations to add on top of `count`; fewer are
    added if the problem has fewer. `greedy` adds one completion by greedy decoding, which is graded as a baseline and
    never trained.
    """

    problem: Problem
    count: int
    shares: tuple[float, ...] = ()
    extra_completions: tuple[Rollout, ...] = ()
    demonstrations: int = 0
    greedy: bool = False


@dataclass(frozen=True)
class Prompt:
    """A problem rendered as text for the model.

    `opened` is the end of `text` that already belongs to the completion, such as `<think>`. It is part of the prompt,
    so it is never trained.
    """

    text: str
    opened: str = ""


@dataclass(frozen=True)
class Support:
    """The tokens that could be sampled at each position of a completion; log-probs are from a softmax over them.

    `counts` has one entry per position: n means that only the n listed tokens could be sampled, -n all tokens except
    the n listed ones, 0 every token. `ids` lists the tokens of all positions in order, 4 bytes each.
    """

    counts: array[int]
    ids: array[int]

    def cut(self, length: int) -> Support:
        """Return the support of the first `length` positions."""
        counts = self.counts[:length]
        return Support(counts, self.ids[: sum(map(abs, counts))])


@dataclass(frozen=True)
class Completion:
    """The output of a sampler: token ids, end token included, their log-probs, and why sampling stopped.

    `support` is None if every token could be sampled at every position, or if it was not requested. `version` is the
    version of the weights that sampled it, if the sampler reports it.
    """

    tokens: Sequence[int]
    logps: Sequence[float]
    stop_reason: StopReason
    support: Support | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        """Store the tokens and log-probs as columns."""
        object.__setattr__(self, "tokens", pack_column("i", self.tokens))
        object.__setattr__(self, "logps", pack_column("d", self.logps))


@dataclass(frozen=True)
class Grade:
    """The result of grading a completion: training uses `reward`, reports use `correct`.

    `tier` names the part of the grader that decided (`timeout` or `error` if none could), `reason` says why. If the
    reward is a weighted sum, `parts` and `weights` hold its terms and their weights. `has_reward` is False if no reward
    function applies to the completion: its `reward` of 0 is then meaningless, its advantage is 0, and reward statistics
    exclude it, both those of the group and the metrics.
    """

    reward: float
    correct: bool
    format_ok: bool
    extracted: str | None
    parts: Mapping[str, float] = field(default_factory=dict)
    tier: str = ""
    reason: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    has_reward: bool = True

    @property
    def is_decided(self) -> bool:
        """Whether there is a reward, and no grader timed out or failed."""
        return self.has_reward and self.tier not in UNGRADED


# The array type of each column of a rollout. Log-probs stay in float64, so that a resumed run has the same bits.
COLUMNS = {
    **dict.fromkeys(("prompt", "output", "teacher_prompt"), "i"),
    **dict.fromkeys(("logps", "behaviour", "old_logps", "ref_logps", "values", "returns"), "d"),
    **dict.fromkeys(("sampled_mask", "loss_mask"), "b"),
}


@dataclass
class Rollout:
    """One completion of one problem, with its prompt, grade, advantage and log-probs.

    The fields named in `COLUMNS` accept any sequence of numbers and store it as a `Column`, or as () if it is empty.
    """

    problem: Problem  # collect
    prompt: Sequence[int]  # collect: token ids
    output: Sequence[int]  # collect: token ids of the completion, end token included
    logps: Sequence[float]  # collect: the sampler's for `output`; 0 if not sampled; empty for a demonstration
    text: str  # collect: the completion as text, including what the prompt opened (`Prompt.opened`)
    stop_reason: StopReason  # collect: `stop` at an end token, `length` at max_tokens
    source: Source = "policy"  # collect: who wrote the completion
    version: int = 0  # collect: the version of the policy that sampled it
    index: int = 0  # collect: its position among the completions of its problem
    prompt_text: str = ""  # collect: the rendered prompt
    sampled_mask: Sequence[bool] = ()  # collect: which tokens of `output` this policy sampled; empty: all
    loss_mask: Sequence[bool] = ()  # collect: which tokens of `output` are trained; empty: all
    behaviour: Sequence[float] = ()  # collect: log-probs of `output` under its author; NaN or empty if unknown
    turns: Sequence[tuple[str, str]] = ()  # collect: each turn but the last, with the environment's reply
    turn_rewards: Sequence[float] = ()  # collect: one for each of these turns
    teacher_prompt: Sequence[int] = ()  # collect: the prompt that a teacher sees; empty: the same one
    grade: Grade | None = None  # grade
    advantage: Advantage = 0.0  # credit
    support: Support | None = None  # collect: which tokens could be sampled at each position of `output`; None: all
    old_logps: Sequence[float] | None = None  # score: the learner's, before the first update of the step
    ref_logps: Sequence[float] | None = None  # score: the reference model's
    values: Sequence[float] | None = None  # score: the critic's before each token of `output`; 0 if not trained
    returns: Sequence[float] | None = None  # credit: the critic's targets there; NaN where it has none

    def __post_init__(self) -> None:
        """Raise ValueError if a mask or the support differs in length from `output`."""
        if not (len(self.sampled_mask) or len(self.loss_mask) or self.support is not None):
            return
        lengths = {name: len(getattr(self, name)) or None for name in ("sampled_mask", "loss_mask")}
        lengths["support"] = None if self.support is None else len(self.support.counts)
        for name, length in lengths.items():
            if length not in (None, len(self.output)):
                raise ValueError(f"{name} has {length} entries for {len(self.output)} tokens; it needs one per token.")

    def copy_with(self, **changes: Any) -> Rollout:
        """Return a copy with some fields changed, like `dataclasses.replace` but without setting every field again."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        assert changes.keys() <= copy.__dict__.keys()
        for name, value in changes.items():
            setattr(copy, name, value)
        copy.__post_init__()
        return copy

    @property
    def reward(self) -> float:
        """The reward that training uses; 0 before grading."""
        return self.grade.reward if self.grade else 0.0

    @property
    def has_reward(self) -> bool:
        """Whether a reward function applies and could decide, see `Grade.is_decided`; True before grading."""
        return self.grade is None or self.grade.is_decided

    @property
    def trained(self) -> Sequence[bool]:
        """Whether each token of `output` is trained."""
        return self.loss_mask or (True,) * len(self.output)

    @property
    def trained_count(self) -> int:
        """The number of trained tokens in `output`."""
        return sum(self.loss_mask) if self.loss_mask else len(self.output)

    @property
    def on_policy(self) -> Sequence[bool]:
        """Whether each token of `output` is trained and was sampled by this policy."""
        if not self.sampled_mask:
            return self.trained
        return tuple(sampled and trained for sampled, trained in zip(self.sampled_mask, self.trained, strict=True))

    @property
    def off_policy(self) -> tuple[bool, ...]:
        """Whether each token of `output` is trained but was not sampled by this policy (LUFFY's prefix mask)."""
        if not self.sampled_mask:
            return (False,) * len(self.output)
        return tuple(trained and not sampled for sampled, trained in zip(self.sampled_mask, self.trained, strict=True))

    @property
    def is_on_policy(self) -> bool:
        """Whether this policy sampled every trained token; untrained ones, such as tool results, do not matter."""
        return not any(self.off_policy)

    @property
    def given(self) -> int:
        """The length of the prefix of `output` that this policy did not sample."""
        return self.sampled_mask.index(True) if True in self.sampled_mask else len(self.sampled_mask)


class _Packing:
    """A descriptor that packs values assigned to a field; without `__get__`, so reads cost no more than usual."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind

    def __set__(self, rollout: Rollout, value: Sequence[Any] | None) -> None:
        rollout.__dict__[self.name] = None if value is None else pack_column(self.kind, value)


for _name, _kind in COLUMNS.items():
    setattr(Rollout, _name, _Packing(_name, _kind))


Group = list[Rollout]
Groups = Sequence[Group]
