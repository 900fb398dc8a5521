"""The turns of answers: the environment's reply to each turn, and where it is in an answer.

A reply is tokenised once, and its tokens are in the answer with `sampled_mask` and `loss_mask` False: they are context
of the next turn, are never trained, and count towards `max_tokens` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from qed.data.prompts.base import PromptTemplate
from qed.environments.base import Environment, State
from qed.environments.calls import ask_grade, ask_replies
from qed.errors import UsageError
from qed.rewards.grader import Grader
from qed.rollout.append import append_tokens
from qed.sampling.base import Sampler, share_work
from qed.types import Grade, Group, Rollout


def add_replies(
    groups: Sequence[Group],
    places: Sequence[tuple[int, int]],
    template: PromptTemplate,
    max_tokens: int,
    sampler: Sampler,
    grader: Grader | None,
) -> list[tuple[int, int]]:
    """Append the environment's replies to answers whose turn has ended, in place; return those that go on.

    An answer without room for the reply and a further token ends there, with stop reason `length`.

    Args:
        groups: of the step.
        places: group and index of the answers whose turn has just been sampled.
        template: with the environment.
        max_tokens: of an answer, replies included.
        sampler: which ranks may share; then each asks the environment about its part of the answers.
        grader: for an environment that needs grades.
    """
    environment = template.environment
    ended = [place for place in places if groups[place[0]][place[1]].stop_reason == "stop"]
    members = [groups[group][index] for group, index in ended]
    states = _describe_states(members, template, grader)
    replies = share_work(sampler, partial(ask_replies, environment), states)
    going = []
    for (group, index), member, state, reply in zip(ended, members, states, replies, strict=True):
        if reply is None:
            continue
        prompt = template.make_prompt(member.prompt_text)
        ids = template.encode_reply(reply, prompt, member.output)
        if len(member.output) + len(ids) >= max_tokens:
            groups[group][index] = replace(member, stop_reason="length")
            continue
        said = append_tokens(member, ids, sampled=False, trained=False)
        text = prompt.opened if reply.message else member.text
        said_so_far = (*member.turns, (state.turns[-1], reply.text))
        groups[group][index] = replace(
            said, text=text, turns=said_so_far, turn_rewards=(*member.turn_rewards, reply.reward)
        )
        going.append((group, index))
    return going


def _describe_states(members: Sequence[Rollout], template: PromptTemplate, grader: Grader | None) -> list[State]:
    """Return what the environment is told of some answers whose turn has ended."""
    grades: list[Grade | None] = [None] * len(members)
    if template.environment.needs_grade and members:
        if grader is None:
            raise UsageError("The environment must know whether answers are right, and nothing grades them here.")
        grades = [grade for (grade,) in grader([[member] for member in members])]
    return [
        State(member.problem, read_turns(member, template), grade, member.output[-1] in template.ends)
        for member, grade in zip(members, grades, strict=True)
    ]


def find_turns(rollout: Rollout) -> Iterator[tuple[bool, slice]]:
    """Yield the parts of an output in order: whether the environment wrote it, and its tokens."""
    place = 0
    for trained, part in groupby(rollout.trained):
        count = len(list(part))
        yield not trained, slice(place, place + count)
        place += count


def read_turns(rollout: Rollout, template: PromptTemplate) -> tuple[str, ...]:
    """Return the texts of the policy's turns; the first begins with the tag that the prompt opened."""
    decode = template.tokenizer.decode
    turns = [
        decode(list(rollout.output[tokens]), skip_special_tokens=True)
        for replied, tokens in find_turns(rollout)
        if not replied
    ]
    opened = template.make_prompt(rollout.prompt_text).opened
    return tuple(opened + turn if number == 0 else turn for number, turn in enumerate(turns))


@dataclass(frozen=True)
class TurnGrader:
    """Grades the final answers of an environment, with what it makes of their reward."""

    grader: Grader
    environment: Environment

    @property
    def judge(self) -> str | None:
        """What decides correctness."""
        return self.grader.judge

    @property
    def checks_format(self) -> bool:
        """Whether the grader checks the format."""
        return self.grader.checks_format

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Those of the grader."""
        return self.grader.functions

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Grade the answers of each group."""
        return [
            [
                ask_grade(self.environment, grade, rollout.turn_rewards)
                for rollout, grade in zip(group, grades, strict=True)
            ]
            for group, grades in zip(groups, self.grader(groups), strict=True)
        ]

    def close(self) -> None:
        """Close the grader."""
        self.grader.close()
