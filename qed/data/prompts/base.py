"""A prompt leaf bound to a tokenizer: problems become token ids, demonstrations become rollouts.

A leaf has `render(problem, tokenizer) -> str`, `demonstration(problem) -> str | None`, the stop strings `STOP`, the
reward that fits it `REWARD`, and `CHAT`, whether the tokenizer's chat template renders it. `OPENS`, where a leaf has
it, are the tags that its text may end in and that belong to the answer. A leaf with options has a frozen dataclass of
the same members in `LEAF`, whose fields they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from qed.config import plugins
from qed.errors import ModelError, UsageError, suggest_nearest
from qed.models.chat_template import render_chat
from qed.types import Problem, Prompt, Rollout

THINK = "<think>"  # what the chat templates of reasoning models open, whatever the prompt
AT_ONCE = 1024  # texts that are tokenised together


class PromptTemplate:
    """How problems are put to one model.

    Args:
        leaf: a prompt on the shelf, or the user's own module.
        tokenizer: of the model.
        ends: the ids that end an answer; the first is appended to every demonstration and trained.
    """

    def __init__(self, leaf: Any, tokenizer: Any, ends: tuple[int, ...]) -> None:
        if leaf.CHAT and not tokenizer.chat_template:
            name = getattr(leaf, "__name__", type(leaf).__module__).rpartition(".")[2]
            raise ModelError(
                f"The prompt {name} needs a chat template, and the model's tokenizer has none. "
                "Take a plain prompt, such as --prompt r1_zero."
            )
        self.leaf = leaf
        self.tokenizer = tokenizer
        self.end = ends[0]
        self.stop: tuple[str, ...] = leaf.STOP

    def prompt(self, problem: Problem) -> Prompt:
        """The problem as the model reads it."""
        text: str = self.leaf.render(problem, self.tokenizer)
        bare = text.rstrip()
        tags = (THINK, *getattr(self.leaf, "OPENS", ()))
        opened = next((tag for tag in tags if bare.endswith(tag)), "")
        return Prompt(text, text[len(bare) - len(opened) :] if opened else "")

    def tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a prompt; a plain prompt begins as the tokenizer begins a text, a chat template writes its own
        beginning."""
        return tuple(self._ids([prompt.text])[0])

    def lengths(self, problems: Sequence[Problem]) -> list[int]:
        """The tokens of each problem's prompt; together they cost a fraction of one by one."""
        parts = (problems[start : start + AT_ONCE] for start in range(0, len(problems), AT_ONCE))
        return [len(ids) for part in parts for ids in self._ids([self.prompt(problem).text for problem in part])]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        plain = not self.leaf.CHAT
        found = self.tokenizer(texts, add_special_tokens=plain, return_attention_mask=False)["input_ids"]
        # Some tokenizers end every text, but these go on.
        return [ids[:-1] if plain and ids and ids[-1] == self.tokenizer.eos_token_id else ids for ids in found]

    def read(self, prompt: Prompt, output: tuple[int, ...]) -> str:
        """An answer as it reads: what the prompt opened for it, then what was sampled, up to its first stop string."""
        text: str = self.tokenizer.decode(output, skip_special_tokens=True)
        ends = [found + len(stop) for stop in self.stop if (found := text.find(stop)) >= 0]
        return prompt.opened + text[: min(ends, default=len(text))]

    def stops(self, output: tuple[int, ...]) -> bool:
        """Whether a stop string stands in an answer."""
        text = self.tokenizer.decode(output, skip_special_tokens=True) if self.stop else ""
        return any(stop in text for stop in self.stop)

    def demonstration(self, problem: Problem) -> Rollout | None:
        """A worked answer as a rollout to imitate, its end token included; None where the problem has none to show."""
        return next(iter(self.demonstrations(problem)), None)

    def has_demonstration(self, problem: Problem) -> bool:
        """Whether there is a worked answer to a problem."""
        return bool(find_demonstration(self.leaf, problem) or any(problem.meta.get("traces", ())))

    def demonstrations(self, problem: Problem) -> list[Rollout]:
        """All worked answers to a problem, each once; the first is the one that the data names first.

        The probabilities under who wrote the first, where the data has them, are left alone if they are not one for
        each of its tokens, which is so when they were taken with another tokenizer.
        """
        first = find_demonstration(self.leaf, problem)
        texts = dict.fromkeys(text for text in (first, *problem.meta.get("traces", ())) if text)
        found = [self.build_rollout(problem, text) for text in texts]
        known = tuple(_log_probability(probability) for probability in problem.meta.get("trace_probabilities", ()))
        if found and len(known) == len(found[0].output):
            found[0] = replace(found[0], behaviour=known)
        return found

    def build_rollout(self, problem: Problem, text: str) -> Rollout:
        """A text as the answer to a problem, its end token included."""
        prompt = self.prompt(problem)
        # What the prompt has opened is not written, and not trained, a second time.
        opened = prompt.opened
        added = text.removeprefix(opened if text.startswith(opened) else opened.strip())
        output = (*self.tokenizer(added, add_special_tokens=False)["input_ids"], self.end)
        return Rollout(
            problem, self.tokens(prompt), output, (), opened + added, "stop", "demonstration", prompt_text=prompt.text
        )


def _log_probability(probability: float) -> float:
    """The logarithm of a probability; no number where it is negative, which marks what is not known."""
    if probability < 0:
        return math.nan
    return math.log(probability) if probability else -math.inf


def load_leaf(name: str, options: Sequence[str] = ()) -> Any:
    """The leaf of a prompt by its name.

    Args:
        name: on the shelf, or the user's own.
        options: NAME.FIELD=VALUE, such as working_out.reasoning_start=<think>; those of other prompts are left alone.

    Raises:
        UsageError: there is no such prompt, or it has no such option.
    """
    module = plugins.load_leaf("prompts", name)
    given = {}
    for option in options:
        key, equals, value = option.partition("=")
        owner, dot, field = key.rpartition(".")
        if not equals or not dot:
            raise UsageError(f"A prompt's option reads NAME.FIELD=VALUE, not '{option}'.")
        if owner.replace("-", "_") == name.replace("-", "_"):
            given[field] = value
    known = [field.name for field in fields(module.LEAF)] if hasattr(module, "LEAF") else []
    if unknown := [field for field in given if field not in known]:
        raise UsageError(
            f"The prompt {name} has no option '{unknown[0]}'.{suggest_nearest(unknown[0], known)} "
            f"There are: {', '.join(known) or 'none'}."
        )
    return replace(module.LEAF, **given) if given else module


def find_demonstration(leaf: Any, problem: Problem) -> str | None:
    """The text of a problem's demonstration: the data's own, else what the prompt makes of solution and answer.

    A completion that is None says that there is nothing to show, whatever the prompt could make of the answer.
    """
    own: str | None = problem.meta.get("completion", "")
    if own is None:
        return None
    return own or leaf.demonstration(problem)


def build_boxed_solution(problem: Problem) -> str | None:
    """The worked solution with its result in a box, which MATH's solutions already have; None without a solution."""
    if not problem.solution:
        return None
    if "\\boxed{" in problem.solution:
        return problem.solution
    return f"{problem.solution}\n\nThe answer is \\boxed{{{problem.answer}}}."


def apply_chat_template(question: str, tokenizer: Any, system: str = "") -> str:
    """A question in the tokenizer's own chat template, up to where the answer begins."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    return render_chat(messages, tokenizer, add_generation_prompt=True)
