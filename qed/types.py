"""The words of the house: the few things that travel through a run.

Each field has one writer, named in its comment. This file imports nothing of ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

StopReason = Literal["stop", "length"]
Source = Literal["policy", "greedy", "demonstration", "expert", "replay"]
UNGRADED = ("timeout", "error")  # tiers of what could not be graded
# One number for the whole answer, or one for each of its tokens.
Advantage = float | tuple[float, ...]


@dataclass(frozen=True)
class Problem:
    """A question with its known answer, as a task loads it.

    `solution` is the worked reasoning without its final answer, or empty. `meta` holds what else is known: `subject`,
    `level`, `source`; `completion` where the data gives the whole demonstration as it is to be written, `traces` where
    it gives several, `trace_probabilities` how likely each token of the first was to its writer; `chosen` and
    `rejected`, a better and a worse reply; `choices` and
    `options`, the texts and the letters of a multiple choice; `k` where the data asks for k answers by repeating the
    problem.
    """

    id: str
    question: str
    answer: str
    solution: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_preference(self) -> bool:
        """Whether the data gives a better and a worse reply."""
        return "chosen" in self.meta and "rejected" in self.meta


@dataclass(frozen=True)
class Request:
    """What an algorithm asks for one problem of a step: how many answers, after which given beginning, beside which.

    `shares` belong to the first answers: how much of the problem's demonstration each is given to go on from. 1 is the
    whole of it, which joins the group as it stands and is not sampled. `beside` are complete answers that join the
    group too, such as replayed ones. Both count towards `count`. `greedy` asks for one more answer, the likeliest at
    every token: it is graded as a baseline, and is never trained.
    """

    problem: Problem
    count: int
    shares: tuple[float, ...] = ()
    extra_completions: tuple[Rollout, ...] = ()
    greedy: bool = False


@dataclass(frozen=True)
class Prompt:
    """A problem as the model reads it: the rendered text, and the tag that the text has already opened for the answer.

    `opened` is the end of `text` that belongs to the answer, such as `<think>`: it is given, so it is never trained.
    """

    text: str
    opened: str = ""


@dataclass(frozen=True)
class Completion:
    """What a sampler returns: token ids with the end token included, their log-probs, and why it ended."""

    tokens: tuple[int, ...]
    logps: tuple[float, ...]
    stop_reason: StopReason


@dataclass(frozen=True)
class Grade:
    """A reward's verdict: `reward` trains, `correct` is reported.

    `tier` says which part of the grader decided (`timeout` and `error` where none could), `reason` says why. Where the
    reward is a sum, `weights` are those of the parts that were added up. `has_reward` is False where no reward function
    applies to the answer: `reward` is 0 then and means nothing, the advantage is 0, and no statistic of rewards counts
    the answer, neither a group's nor a metric's.
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


@dataclass
class Rollout:
    """One answer to one problem, from its prompt's tokens to its advantage."""

    problem: Problem  # gather
    prompt: tuple[int, ...]  # gather: token ids
    output: tuple[int, ...]  # gather: token ids, end token included
    logps: tuple[float, ...]  # gather: the sampler's log-probs of `output`, 0 where given; empty for a demonstration
    text: str  # gather: the answer as it reads, with what the prompt opened for it
    stop_reason: StopReason  # gather
    source: Source = "policy"  # gather
    version: int = 0  # gather: the policy's version that sampled it
    index: int = 0  # gather: which of its problem's answers it is
    prompt_text: str = ""  # gather: the rendered prompt
    sampled_mask: tuple[bool, ...] = ()  # gather: whether this policy sampled each token of `output`; empty: all
    loss_mask: tuple[bool, ...] = ()  # gather: whether each token of `output` is trained; empty: all
    behaviour: tuple[float, ...] = ()  # gather: log-probs of `output` under who wrote it, NaN or empty where unknown
    grade: Grade | None = None  # grade
    advantage: Advantage = 0.0  # credit
    old_logps: tuple[float, ...] | None = None  # score: the learner's, before the step's first update
    ref_logps: tuple[float, ...] | None = None  # score: the reference model's

    def __post_init__(self) -> None:
        """Refuse a mask that is not aligned on `output`."""
        for name in ("sampled_mask", "loss_mask"):
            found = len(getattr(self, name))
            if found not in (0, len(self.output)):
                raise ValueError(f"{name} has {found} entries for {len(self.output)} tokens; it takes one a token.")

    @property
    def reward(self) -> float:
        """The reward that trains; 0 before grading."""
        return self.grade.reward if self.grade else 0.0

    @property
    def has_reward(self) -> bool:
        """Whether `reward` means something, see `Grade`; True before grading."""
        return self.grade is None or self.grade.has_reward

    @property
    def trained(self) -> tuple[bool, ...]:
        """Whether each token of `output` is trained."""
        return self.loss_mask or (True,) * len(self.output)

    @property
    def trained_count(self) -> int:
        """How many tokens of `output` are trained."""
        return sum(self.loss_mask) if self.loss_mask else len(self.output)

    @property
    def on_policy(self) -> tuple[bool, ...]:
        """Whether each token of `output` is trained, and was sampled by this policy."""
        if not self.sampled_mask:
            return self.trained
        return tuple(own and trained for own, trained in zip(self.sampled_mask, self.trained, strict=True))

    @property
    def off_policy(self) -> tuple[bool, ...]:
        """Whether each token of `output` is trained, though this policy did not sample it (LUFFY's prefix mask)."""
        if not self.sampled_mask:
            return (False,) * len(self.output)
        return tuple(trained and not own for own, trained in zip(self.sampled_mask, self.trained, strict=True))

    @property
    def is_on_policy(self) -> bool:
        """Whether this policy sampled every token that is trained; a tool's result in between changes nothing."""
        return not any(self.off_policy)

    @property
    def given(self) -> int:
        """How many tokens `output` begins with that this policy did not sample."""
        return self.sampled_mask.index(True) if True in self.sampled_mask else len(self.sampled_mask)


def append_tokens(
    rollout: Rollout,
    tokens: Sequence[int],
    logps: Sequence[float] = (),
    *,
    sampled: bool = True,
    trained: bool = True,
) -> Rollout:
    """Return the rollout with more tokens behind its output, and its masks extended.

    Args:
        rollout: must not be graded or scored yet.
        tokens: token ids, such as an answer, a tool's result or a user's turn.
        logps: the sampler's log-probs of the tokens; empty where they are not known.
        sampled: whether the policy wrote the tokens.
        trained: whether the loss counts them.
    """
    count, before = len(tokens), len(rollout.output)
    known = rollout.logps or (math.nan,) * before
    return replace(
        rollout,
        output=(*rollout.output, *tokens),
        logps=(*known, *(logps or (math.nan if sampled else 0.0,) * count)),
        sampled_mask=_extend_mask(rollout.sampled_mask, before, count, sampled),
        loss_mask=_extend_mask(rollout.loss_mask, before, count, trained),
        behaviour=(*rollout.behaviour, *(math.nan,) * count) if rollout.behaviour else (),
    )


def _extend_mask(mask: tuple[bool, ...], before: int, count: int, value: bool) -> tuple[bool, ...]:
    """A mask of `before` tokens with one value for `count` more; empty where all are True."""
    longer = (mask or (True,) * before) + (value,) * count
    return () if all(longer) else longer


Group = list[Rollout]
Groups = Sequence[Group]
