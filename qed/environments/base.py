"""The interface of environments: the messages before an answer, and the reply after each turn of the policy.

An environment's module defines `environment`, an instance of a subclass of `Environment`; its fields are options. An
environment's replies are part of the context of the next turn. They are never trained and do not count as the policy's
tokens.
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
    `grade` grades the answer so far, for environments with `needs_grade`. `ended` is True if the policy ended its
    message with an end token, not a stop string: only a new message may follow.
    """

    problem: Problem
    turns: tuple[str, ...]
    grade: Grade | None = None
    ended: bool = False


@dataclass(frozen=True)
class Reply:
    """An environment's reply to a turn.

    `text` continues the answer's message, like a tool's result; with `message` it is a new user message instead, after
    which the policy begins a new answer, and only this one is graded. A message that has ended cannot be continued.
    `reward` is the turn's reward, a Python, NumPy or torch number; it is added to the reward of the final answer.
    """

    text: str
    message: bool = False
    reward: float = 0.0

    def __post_init__(self) -> None:
        """Convert the reward to a float, and replace lone surrogates in the text.

        Raises:
            TypeError: the text is not a str, or the reward not a number.
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

    `stop` lists strings that end a turn, in addition to those of the prompt. With `needs_grade` every turn is graded
    before the reply. `reply_tags` surround every reply that continues a message: in a demonstration, the text between
    them, including the tags, is the environment's.
    """

    max_turns: int = 1
    """The maximum number of policy turns in an answer."""

    stop: ClassVar[tuple[str, ...]] = ()
    needs_grade: ClassVar[bool] = False
    reply_tags: ClassVar[tuple[str, str] | None] = None

    def __post_init__(self) -> None:
        """Reject a number of turns below 1."""
        if self.max_turns < 1:
            raise UsageError("An environment's max_turns must be at least 1.")

    def start(self, problem: Problem) -> Sequence[Message]:
        """Return the messages that the prompt renders as one question: instructions, then the question."""
        return [{"role": "user", "content": problem.question}]

    def step(self, state: State) -> Reply | None:
        """Return the reply to a turn; None ends the answer. Not called after the last turn."""
        return None

    def reply(self, states: Sequence[State]) -> list[Reply | None]:
        """Return the replies to the turns of several answers, in order; an environment may compute them together."""
        return [self.step(state) for state in states]

    def finish(self, grade: Grade, rewards: Sequence[float]) -> Grade:
        """Return the grade of a whole answer.

        Args:
            grade: the grade of the final answer.
            rewards: the rewards of the turns before the last one.
        """
        return replace(grade, reward=grade.reward + sum(rewards)) if any(rewards) else grade


def replace_halves(text: str) -> str:
    """Replace lone surrogates (halves of a pair): they have no tokens and cannot be stored."""
    return text.encode(errors="replace").decode()


SINGLE = Environment()


def load_environment(name: str, options: Sequence[str] = ()) -> Environment:
    """Load an environment by its name.

    Args:
        name: a built-in name, a dotted module, or the path of a .py file; it defines `environment`.
        options: NAME.FIELD=VALUE, such as retry.max_turns=3.

    Raises:
        UsageError: it does not exist, has no such option, or would never be called; or a value does not parse.
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
            f"The environment {name} replies to turns, but an answer has only one turn, so it is never asked. {mend} "
            f"{kind.__name__}, or set its option {name}.max_turns."
        )
    return replace(environment, **changes)


def _check_texts(name: str, environment: Environment) -> None:
    """Reject `stop` and `reply_tags` that are not tuples of texts; in a single text, each character would be one."""
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
    """Return whether an environment defines a reply, but answers have only one turn, so that it is never called."""
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
