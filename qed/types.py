"""The words of the house: the few things that travel through a run.

Each field has one writer, named in its comment. This file imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    beside: tuple[Rollout, ...] = ()
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
    given: int = 0  # gather: how many tokens of `output`, from its first, this policy did not sample
    behaviour: tuple[float, ...] = ()  # gather: log-probs of the given tokens under who wrote them, where known
    grade: Grade | None = None  # grade
    advantage: Advantage = 0.0  # credit
    old_logps: tuple[float, ...] | None = None  # score: the learner's, before the step's first update
    ref_logps: tuple[float, ...] | None = None  # score: the reference model's

    @property
    def reward(self) -> float:
        """The reward that trains; 0 before grading."""
        return self.grade.reward if self.grade else 0.0

    @property
    def has_reward(self) -> bool:
        """Whether `reward` means something, see `Grade`; True before grading."""
        return self.grade is None or self.grade.has_reward


Group = list[Rollout]
Groups = Sequence[Group]
