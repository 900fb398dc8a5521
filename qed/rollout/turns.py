"""Turns of answers: the environment's replies, and their positions in an answer.

A reply is tokenised once. Its tokens are in the answer with `sampled_mask` and `loss_mask` False: they are context for
the next turn, are never trained on, and count only towards `max_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from qed.data.prompts.base import PromptTemplate
from qed.environments.base import Environment, State
from qed.environments.calls import ask_grade, ask_replies
from qed.errors import UsageError
from qed.rewards.grader import Grader, WrappedGrader
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
    """Append the environment's replies to answers whose turn has ended, in place; return those that continue.

    An answer without room for the reply and one more token ends there, with stop reason `length`.

    Args:
        groups: groups of the step.
        places: group and index of the answers whose turn has just been sampled.
        template: prompt template with the environment.
        max_tokens: limit of an answer, replies included.
        sampler: if ranks share it, each queries the environment for its part of the answers.
        grader: grades answers for environments that need it.
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
    """Return the states passed to the environment, for answers whose turn has ended."""
    grades: list[Grade | None] = [None] * len(members)
    if template.environment.needs_grade and members:
        if grader is None:
            raise UsageError("The environment needs to know whether answers are correct, but nothing grades them here.")
        grades = [grade for (grade,) in grader([[member] for member in members])]
    return [
        State(member.problem, read_turns(member, template), grade, member.output[-1] in template.ends)
        for member, grade in zip(members, grades, strict=True)
    ]


def find_turns(rollout: Rollout) -> Iterator[tuple[bool, slice]]:
    """Yield, for each part of an output, whether the environment wrote it, and the slice of its tokens."""
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
class TurnGrader(WrappedGrader):
    """Grades final answers, with rewards as adjusted by the environment."""

    environment: Environment

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Grade the answers of each group."""
        return [
            [
                ask_grade(self.environment, grade, rollout.turn_rewards)
                for rollout, grade in zip(group, grades, strict=True)
            ]
            for group, grades in zip(groups, self.grader(groups), strict=True)
        ]
