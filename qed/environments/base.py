"""The interface of environments: the messages before an answer, and what is said after each turn of the policy.

A leaf of the shelf defines `environment`, an instance of a subclass of `Environment`; its fields are options. What an
environment says is part of the context of the next turn. It is never trained, and never counts as the policy's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, get_type_hints

from qed.config import plugins
from qed.errors import UsageError, suggest_nearest
from qed.rewards.options import coerce_text
from qed.types import Grade, Problem

Message = Mapping[str, str]  # role (system or user) and content


@dataclass(frozen=True)
class State:
    """An answer whose turn has just ended.

    `turns` are the texts that the policy wrote, the newest last; the first begins with the tag that the prompt opened.
    `grade` is that of the answer so far, for environments with `needs_grade`. `ended` says that the policy has ended
    its message, by an end token and not by a stop string: only a message may follow.
    """

    problem: Problem
    turns: tuple[str, ...]
    grade: Grade | None = None
    ended: bool = False


@dataclass(frozen=True)
class Reply:
    """What an environment says after a turn.

    `text` continues the answer's own message, as a tool's result does, or is a message of the user with `message`: the
    policy then begins a new answer, and only this one is graded. A message that has ended cannot be continued.
    `reward` is that of the turn, a number of Python, NumPy or torch; it is added to the reward of the final answer.
    """

    text: str
    message: bool = False
    reward: float = 0.0

    def __post_init__(self) -> None:
        """Make the reward a float, and the text one of letters alone.

        Raises:
            TypeError: the text is no text, or the reward no number.
            ValueError: the reward is not finite.
        """
        if not isinstance(self.text, str):
            raise TypeError(f"the text of a Reply must be a str, not {self.text!r}")
        if isinstance(self.reward, str) or not hasattr(self.reward, "__float__"):
            raise TypeError(f"the reward of a Reply must be a number, not {self.reward!r}")
        object.__setattr__(self, "text", replace_halves(self.text))
        object.__setattr__(self, "reward", float(self.reward))
        if not math.isfinite(self.reward):
            raise ValueError(f"the reward of a Reply must be finite, not {self.reward}")


@dataclass(frozen=True)
class Environment:
    """The base class: a single turn.

    `stop` are strings that end a turn, besides those of the prompt. With `needs_grade` every turn is graded before it
    is answered. `reply_tags` are around every reply that continues a message: in a demonstration the text between them,
    with the tags, is the environment's.
    """

    max_turns: int = 1
    """The most turns of the policy in an answer."""

    stop: ClassVar[tuple[str, ...]] = ()
    needs_grade: ClassVar[bool] = False
    reply_tags: ClassVar[tuple[str, str] | None] = None

    def __post_init__(self) -> None:
        """Refuse a number of turns below 1."""
        if self.max_turns < 1:
            raise UsageError("An environment's max_turns must be at least 1.")

    def start(self, problem: Problem) -> Sequence[Message]:
        """Return the messages that the prompt renders as one question: instructions, then the question itself."""
        return [{"role": "user", "content": problem.question}]

    def step(self, state: State) -> Reply | None:
        """Return what to say after a turn; None ends the answer. Never called after the last turn."""
        return None

    def reply(self, states: Sequence[State]) -> list[Reply | None]:
        """Return what to say after the turns of several answers, in order; an environment may compute them together."""
        return [self.step(state) for state in states]

    def finish(self, grade: Grade, rewards: Sequence[float]) -> Grade:
        """Return the grade of a whole answer.

        Args:
            grade: of the final answer.
            rewards: of the turns before the last one.
        """
        return replace(grade, reward=grade.reward + sum(rewards)) if any(rewards) else grade


def replace_halves(text: str) -> str:
    """Replace what is no letter, half a surrogate pair: it has no tokens and cannot be stored."""
    return text.encode(errors="replace").decode()


SINGLE = Environment()


def load_environment(name: str, options: Sequence[str] = ()) -> Environment:
    """Load an environment by its name.

    Args:
        name: on the shelf, a dotted module, or a path to a .py file that defines `environment`.
        options: NAME.FIELD=VALUE, such as retry.max_turns=3.

    Raises:
        UsageError: it does not exist, has no such option, or is never asked; or a value does not parse.
    """
    leaf = plugins.load_leaf("environments", name)
    environment = getattr(leaf, "environment", None)
    if not isinstance(environment, Environment):
        raise UsageError(
            f"{name} defines no environment: it needs `environment = YourClass()`, where YourClass is a subclass of "
            "qed.environments.base.Environment."
        )
    _check_texts(name, environment)
    changes = dict(_read_option(option, name, environment) for option in options)
    if _is_never_asked(environment) and "max_turns" not in changes:
        kind = type(environment)
        own = "max_turns" in vars(kind) and kind.max_turns > 1
        mend = "Write `@dataclass(frozen=True)` above" if own else "Give a field such as `max_turns: int = 3` to"
        raise UsageError(
            f"The environment {name} answers turns, but an answer has one turn, so it is never asked. {mend} "
            f"{kind.__name__}, or set its option {name}.max_turns."
        )
    return replace(environment, **changes)


def _check_texts(name: str, environment: Environment) -> None:
    """Refuse `stop` and `reply_tags` that are not tuples of texts; of a text alone, each letter would be one."""
    stop, tags = environment.stop, environment.reply_tags
    for field, texts, whole, form in (
        ("stop", stop, _are_texts(stop), '("</tool>",)'),
        ("reply_tags", tags, tags is None or (_are_texts(tags) and len(tags) == 2), '("<result>", "</result>")'),
    ):
        if not whole:
            raise UsageError(f"The environment {name}: {field} must be a tuple of texts, as {form}, not {texts!r}.")


def _are_texts(values: Any) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, str) and value for value in values)


def _is_never_asked(environment: Environment) -> bool:
    """Return whether an environment has something to say after a turn, and no answer has a turn after the first one."""
    kind = type(environment)
    return environment.max_turns == 1 and (kind.step, kind.reply) != (Environment.step, Environment.reply)


def _read_option(option: str, name: str, environment: Environment) -> tuple[str, Any]:
    target, equals, value = option.partition("=")
    owner, point, field = target.strip().rpartition(".")
    if not (equals and point and owner.replace("-", "_") == name.replace("-", "_")):
        raise UsageError(f"The environment option '{option}' is not of the form {name}.FIELD=VALUE.")
    kinds = get_type_hints(type(environment))
    names = [each.name for each in fields(environment)]
    field = field.strip().replace("-", "_")
    if field not in names:
        raise UsageError(
            f"The environment {name} has no option '{field}'.{suggest_nearest(field, names)} It has: "
            f"{', '.join(names)}."
        )
    try:
        return field, coerce_text(value.strip(), kinds[field])
    except ValueError as error:
        raise UsageError(f"The environment option '{option}': {field} must be {error}.") from None
